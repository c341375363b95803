"""Column statistics and signatures against brute force in float64, for each kind of mask."""

import marginal_brute as brute
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from headwatch.marginal import column_statistics, from_scores, from_weights, ignored_keys, signatures

B, H, G, T, n = 2, 4, 2, 37, 8


@pytest.fixture
def qk():
    generator = torch.Generator().manual_seed(0)
    q = 2 * torch.randn(B, H, T, n, generator=generator)
    k = torch.randn(B, G, T, n, generator=generator)
    return q, k


def causal():
    return torch.ones(T, T, dtype=torch.bool).tril()


def padding(side):
    lengths = torch.tensor([T, T - 11])
    position = torch.arange(T)
    return position < lengths[:, None] if side == "right" else position >= T - lengths[:, None]


def packed():
    return torch.block_diag(*[torch.ones(size, size, dtype=torch.bool) for size in (9, 20, 8)])


def window(width=7):
    position = torch.arange(T)
    return causal() & (position[:, None] - position < width)


def random_mask():
    mask = torch.rand(B, H, T, T, generator=torch.Generator().manual_seed(1)) < 0.4
    mask[:, :, :, 3] = True
    mask[:, :, 5] = False  # a query that sees nothing
    return mask


def alibi():
    position = torch.arange(T)
    slopes = 2.0 ** -torch.arange(1, H + 1)
    return -slopes[:, None, None] * (position[:, None] - position).abs()


def first_of_segments(*starts):
    ignored = torch.zeros(B, 1, T, dtype=torch.bool)
    for b, start in enumerate(starts):
        ignored[b, 0, list(start)] = True
    return ignored


WHOLE, LEFT = ((0,), (0,)), ((0,), (11,))
SEGMENTS = ((0, 9, 29),) * 2
ROWS = [list(range(T))] * B
CASES = {
    # name: (arguments, visible, bias, rows that count, starts of segments)
    "none": ({}, torch.ones(T, T, dtype=torch.bool), None, ROWS, WHOLE),
    "is_causal": ({"is_causal": True}, causal(), None, ROWS, WHOLE),
    "causal mask": ({"mask": causal()}, causal(), None, ROWS, WHOLE),
    "right padding": (
        {"mask": padding("right")[:, None, None]},
        padding("right")[:, None, None],
        None,
        [range(T), range(T - 11)],
        WHOLE,
    ),
    "left padding, causal": (
        {"mask": padding("left")[:, None, None] & causal()},
        padding("left")[:, None, None] & causal(),
        None,
        [range(T), range(11, T)],
        LEFT,
    ),
    "packed": ({"mask": packed()}, packed(), None, ROWS, SEGMENTS),
    "packed causal": ({"mask": packed() & causal()}, packed() & causal(), None, ROWS, SEGMENTS),
    "window": ({"mask": window()}, window(), None, ROWS, WHOLE),
    "packed window": ({"mask": window() & packed()}, window() & packed(), None, ROWS, SEGMENTS),
    "finfo.min": (
        {"mask": torch.where(causal(), 0.0, torch.finfo(torch.float32).min)},
        causal(),
        None,
        ROWS,
        WHOLE,
    ),
    "minus infinity": ({"mask": torch.where(window(), 0.0, -torch.inf)}, window(), None, ROWS, WHOLE),
    "position bias": (
        {"mask": alibi() + torch.where(causal(), 0.0, -torch.inf)},
        causal(),
        alibi().expand(B, H, T, T),
        ROWS,
        WHOLE,
    ),
    "random": ({"mask": random_mask()}, random_mask(), None, [[t for t in range(T) if t != 5]] * B, WHOLE),
    "by chunks": ({"mask_chunk": lambda i, j: window()[i:j]}, window(), None, ROWS, WHOLE),
}


def compare(marginals, A, scores, visible, rows, ignored):
    found = signatures(marginals, ignored)
    ignored = ignored.expand(B, H, T).numpy()
    for b in range(B):
        for h in range(H):
            expected = brute.head_signatures(A[b, h], scores[b, h], visible[b, h], list(rows[b]), ignored[b, h])
            for key, value in expected.items():
                assert found[key][b, h].item() == pytest.approx(value, rel=2e-5, abs=2e-6), (key, b, h)


@pytest.mark.parametrize("block", [5, 64])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("name", CASES)
def test_signatures_equal_brute_force(qk, name, softcap, block):
    arguments, visible, bias, rows, starts = CASES[name]
    visible = visible.expand(B, H, T, T).numpy()
    q, k = qk
    A, scores = brute.attention(q.numpy(), k.numpy(), 0.7, visible, None if bias is None else bias.numpy(), softcap)
    marginals = column_statistics(q, k, scale=0.7, softcap=softcap, block=block, **arguments)
    ignored = first_of_segments(*starts)
    if name != "random":
        assert torch.equal(ignored_keys(marginals).expand(B, H, T), ignored.expand(B, H, T))
    compare(marginals, A, scores, visible, rows, ignored)
    for b in range(B):
        np.testing.assert_allclose(marginals.mass[b], A[b][:, list(rows[b])].sum(1), rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(marginals.peak[b], A[b][:, list(rows[b])].max(1), rtol=2e-5, atol=2e-6)


def test_scores_and_weights_that_a_model_forms_give_the_same(qk):
    q, k = qk
    visible = (window() & packed()).expand(B, H, T, T).numpy()
    A, scores = brute.attention(q.numpy(), k.numpy(), 0.7, visible)
    received = torch.tensor(np.where(visible, scores, torch.finfo(torch.float32).min)).float()
    ignored = first_of_segments(*SEGMENTS)
    compare(from_scores(received, block=16), A, scores, visible, ROWS, ignored)
    weights = from_weights(torch.tensor(A).float(), block=16)
    assert weights.max_logit.isnan().all()
    np.testing.assert_allclose(weights.mass, A.sum(2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights.peak, A.max(2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights.geometry.uniform.expand(B, H, T)[0, 0], uniform(visible[0, 0]), rtol=1e-5)


def uniform(visible):
    return (visible / visible.sum(1, keepdims=True)).sum(0)


@pytest.mark.parametrize("stride", [2, 4, 7])
def test_sampled_queries_are_every_strides_with_the_last(qk, stride):
    q, k = qk
    rows = list(range((T - 1) % stride, T, stride))
    assert rows[-1] == T - 1
    visible = causal().expand(B, H, T, T).numpy()
    A, scores = brute.attention(q.numpy(), k.numpy(), 0.7, visible)
    for arguments in ({"is_causal": True}, {"mask": causal()}):
        marginals = column_statistics(q, k, scale=0.7, block=3, query_stride=stride, **arguments)
        compare(marginals, A, scores, visible, [rows] * B, first_of_segments(*WHOLE))


def test_padding_that_the_mask_does_not_show_is_told(qk):
    q, k = qk
    visible = causal().expand(B, H, T, T).numpy()
    A, scores = brute.attention(q.numpy(), k.numpy(), 0.7, visible)
    marginals = column_statistics(q, k, scale=0.7, is_causal=True, valid=padding("right"))
    compare(marginals, A, scores, visible, [range(T), range(T - 11)], first_of_segments(*WHOLE))
    assert (marginals.mass[1, :, T - 11 :] == 0).all()


def test_special_tokens_join_the_ignored_keys(qk):
    q, k = qk
    special = torch.zeros(B, T, dtype=torch.bool)
    special[0, [4, 9]] = True
    marginals = column_statistics(q, k, scale=0.7, is_causal=True)
    ignored = ignored_keys(marginals, special)
    assert ignored[0, 0].nonzero().flatten().tolist() == [0, 4, 9]
    assert ignored[1, 0].nonzero().flatten().tolist() == [0]


def test_a_query_that_sees_nothing_does_not_count(qk):
    q, k = qk
    mask = causal()
    mask[6] = False
    marginals = column_statistics(q, k, scale=0.7, mask=mask)
    assert marginals.geometry.n.flatten().tolist() == [T - 1]
    assert torch.isfinite(marginals.mass).all()
    assert marginals.mass.sum(-1).numpy() == pytest.approx(T - 1, rel=1e-5)


def test_half_precision_inputs_are_reduced_in_float32(qk):
    q, k = (t.bfloat16() for t in qk)
    exact = column_statistics(q.double(), k.double(), scale=0.7, is_causal=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = column_statistics(q, k, scale=0.7, is_causal=True)
    assert found.mass.dtype == torch.float32
    np.testing.assert_allclose(found.mass, exact.mass, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_kernels_own_backward_gives_the_same_mass(is_causal):
    torch.manual_seed(0)
    q, k = torch.randn(B, H, 300, 16), torch.randn(B, H, 300, 16)
    v = torch.zeros(B, H, 300, 16, requires_grad=True)  # as wide as q and k, or the kernel is another one
    F.scaled_dot_product_attention(q, k, v, is_causal=is_causal).sum().backward()
    mass = column_statistics(q, k, scale=16**-0.5, is_causal=is_causal).mass
    np.testing.assert_allclose(mass, v.grad[..., 0], rtol=1e-4, atol=1e-5)


def test_the_kernels_own_backward_with_groups_and_a_padding_mask():
    torch.manual_seed(0)
    q, k = torch.randn(B, H, T, 16), torch.randn(B, G, T, 16)
    visible = padding("left")[:, None, None] & causal()
    v = torch.zeros(B, G, T, 16, requires_grad=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
    one_hot = torch.zeros_like(out)
    for h in range(H):  # member g of a group speaks in channel g alone
        one_hot[:, h, :, h % (H // G)] = 1
    one_hot = one_hot * visible.any(-1, keepdim=True)
    out.backward(one_hot)
    mass = column_statistics(q, k, scale=0.25, mask=visible).mass
    for h in range(H):
        np.testing.assert_allclose(mass[:, h], v.grad[:, h // (H // G), :, h % (H // G)], rtol=1e-4, atol=1e-5)


def test_every_block_can_be_watched(qk):
    q, k = qk
    visible = causal().expand(B, H, T, T).numpy()
    A, _ = brute.attention(q.numpy(), k.numpy(), 0.7, visible)
    seen = np.zeros((B, H, T, T))

    def observe(block, weights):
        seen[block.documents, block.heads, block.queries, block.keys] = weights.numpy()

    column_statistics(q, k, scale=0.7, is_causal=True, block=10, observe=observe)
    np.testing.assert_allclose(seen, A, atol=1e-6)


@pytest.mark.parametrize(
    ("q", "k", "found"), [((2, 4, 5, 8), (2, 3, 5, 8), "(2, 3, 5, 8)"), ((2, 4, 5, 8), (1, 4, 5, 8), "(1, 4, 5, 8)")]
)
def test_shapes_that_do_not_fit_are_named(q, k, found):
    with pytest.raises(ValueError, match="G dividing H") as error:
        column_statistics(torch.zeros(q), torch.zeros(k), scale=1.0)
    assert found in str(error.value)


def test_a_mask_that_does_not_fit_is_named(qk):
    with pytest.raises(ValueError, match=r"found \(3, 3\)"):
        column_statistics(*qk, scale=1.0, mask=torch.ones(3, 3, dtype=torch.bool))


def test_scores_with_pairs_hidden_by_a_moderate_constant(qk):
    q, k = qk
    visible = (window() & packed()).expand(B, H, T, T)
    A, scores = brute.attention(q.numpy(), k.numpy(), 0.7, visible.numpy())
    received = (0.7 * q @ k.repeat_interleave(H // G, 1).transpose(-1, -2)) - 100.0 * ~visible
    found = from_scores(received, visible=visible[:, :1], block=16)
    compare(found, A, scores, visible.numpy(), ROWS, first_of_segments(*SEGMENTS))
