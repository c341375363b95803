"""A wrong layout has the right shape: it must be refused, whoever brought it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from heads_zoo import GPT2, LLAMA, B, H, N, NanoAttention, T, noise, on_noise, stack, tokens
from torch import nn

from headwatch.heads import NoAttentionError, find_heads, named_parameters, read_factors

ROWS = np.arange(N).reshape(H, 16)


def handed(layout="concatenated", block=0, **more):
    weight = f"{block}.attn.c_attn.weight"
    return {"module": f"{block}.attn", "W_Q": weight, "W_K": weight, "n_heads": H, "layout": layout, **more}


def test_the_right_layout_handed_over_is_proven():
    model = stack(NanoAttention)
    found = find_heads(model, probe=on_noise(model, B, T, N), heads=[handed()])

    assert [site.status for site in found.sites] == ["proven", "proven"]
    assert found.sites[0].flags == ("handed_over",)
    W = model[0].attn.c_attn.weight
    factors = read_factors(found.sites[0], named_parameters(model))
    assert torch.equal(factors.W_Q, W[:N].view(H, 16, N))
    assert torch.equal(factors.W_K, W[N : 2 * N].view(H, 16, N))


WRONG = {
    "interleaved for concatenated": {"layout": "interleaved"},
    "heads rolled by one": {"rows": (np.roll(ROWS, 1, axis=0), N + ROWS)},
    "dimension-major for head-major": {"rows": (ROWS.reshape(16, H).T, N + ROWS.reshape(16, H).T)},
    "query and value": {"rows": (ROWS, 2 * N + ROWS)},
    "query twice": {"rows": (ROWS, ROWS)},
    "one pair of rows exchanged": {"rows": (ROWS, N + np.where(ROWS == 3, 4, np.where(ROWS == 4, 3, ROWS)))},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_layout_handed_over_is_refused_by_name(name):
    model = stack(NanoAttention)
    found = find_heads(model, probe=on_noise(model, B, T, N), heads=[handed(**WRONG[name])])

    assert [site.module for site in found.sites] == ["1.attn"]
    assert found.sites[0].layer == 1
    (left_out,) = found.left_out
    assert left_out.module == "0.attn"
    assert "handed over, but not proven" in left_out.reason
    assert "scores of all pairs of tokens" in left_out.reason


def test_swapping_query_and_key_is_refused():
    """L and Lᵀ have the same profile but not the same scores."""
    model = stack(NanoAttention, depth=1)
    with pytest.raises(NoAttentionError, match="not proven"):
        find_heads(model, probe=on_noise(model, B, T, N), heads=[handed(rows=(N + ROWS, ROWS))])


def llama_heads(**more):
    name = "layers.0.self_attn"
    weights = {"W_Q": f"{name}.q_proj.weight", "W_K": f"{name}.k_proj.weight"}
    return {"module": name, **weights, "n_heads": H, "n_kv_heads": 2, **more}


def test_key_heads_of_grouped_attention_in_the_wrong_order_are_refused():
    built = LLAMA()
    right = find_heads(built.model, probe=built.probe, heads=[llama_heads()])
    swapped = find_heads(
        built.model,
        probe=built.probe,
        heads=[llama_heads(rows=(ROWS, np.roll(np.arange(32).reshape(2, 16), 1, axis=0)))],
    )
    assert [site.layer for site in right.sites] == [0, 1]
    assert right.sites[0].kv_head == (0, 0, 1, 1)
    assert [site.layer for site in swapped.sites] == [1]


def test_rows_out_of_rotary_pairs_are_refused():
    """Exchanging coordinates of query and key alike keeps q·k without positions, and breaks it with them."""
    built = LLAMA()
    order = np.arange(16).reshape(2, 8).T.reshape(-1)
    rows = ROWS[:, order], np.arange(32).reshape(2, 16)[:, order]
    found = find_heads(built.model, probe=built.probe, heads=[llama_heads(rows=rows)])
    assert [site.layer for site in found.sites] == [1]


def test_a_transposed_weight_is_read_as_such():
    built = GPT2()
    entry = {"module": "h.0.attn", "W_Q": "h.0.attn.c_attn.weight", "W_K": "h.0.attn.c_attn.weight", "n_heads": H}
    found = find_heads(built.model, probe=built.probe, heads=[{**entry, "transposed": True}])
    assert found.sites[0].status == "proven"
    assert found.sites[0].layout == "transposed fused-concat"


def test_without_a_probe_what_is_handed_over_is_structural():
    found = find_heads(stack(NanoAttention), heads=[handed("interleaved")])
    assert [site.status for site in found.sites] == ["structural", "structural"]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"module": "9.attn"}, "no module '9.attn'"),
        ({"W_Q": "0.attn.q.weight"}, "no parameter '0.attn.q.weight'; near it: none"),
        ({"layout": "thirds"}, "expected one of: separate, concatenated, interleaved, grouped"),
        ({"n_heads": 0}, "must be a positive number, found 0"),
        ({"heads": 4}, "unknown key 'heads'"),
        ({"rows": (ROWS, ROWS + 4 * N)}, "found weights of 192 and 192 rows"),
    ],
)
def test_what_cannot_be_a_hand_over_is_said(entry, says):
    with pytest.raises(ValueError, match=says):
        find_heads(stack(NanoAttention), heads=[{**handed(), **entry}])


def trained_like(model):
    """What training leaves behind: dead channels, rows that are the same, heads at zero, keys tied to queries."""
    W, b = model[0].attn.c_attn.weight.data, model[0].attn.c_attn.bias.data
    W[5], b[5] = 0, 0
    W[N + 20], b[N + 20] = 0, 0
    W[7], b[7] = W[6], b[6]
    W[16:32], b[16:32] = W[:16], b[:16]
    W[32:48], b[32:48] = 0, 0
    W[N + 48 : N + 64], b[N + 48 : N + 64] = W[48:64], b[48:64]
    return model


def test_dead_channels_equal_rows_and_tied_keys_keep_their_places():
    model = trained_like(stack(NanoAttention))
    found = find_heads(model, probe=on_noise(model, B, T, N))

    assert [site.status for site in found.sites] == ["proven", "proven"]
    for site in found.sites:
        assert np.array_equal(site.W_Q.terms[0].rows[0].index, ROWS)
        assert np.array_equal(site.W_K.terms[0].rows[0].index, N + ROWS)


def test_weights_that_start_at_zero_are_found():
    built = LLAMA()
    for layer in built.model.layers:
        layer.self_attn.q_proj.weight.data.zero_()
    found = find_heads(built.model, probe=built.probe)
    assert [site.status for site in found.sites] == ["proven", "proven"]
    assert np.array_equal(found.sites[0].W_Q.terms[0].rows[0].index, ROWS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_find_the_same_rows(dtype):
    built = LLAMA()
    model = built.model.to(dtype)
    found = find_heads(model, probe=built.probe)
    assert [site.status for site in found.sites] == ["proven", "proven"]
    assert np.array_equal(found.sites[1].W_Q.terms[0].rows[0].index, ROWS)
    assert found.sites[1].kv_head == (0, 0, 1, 1)


def test_bfloat16_refuses_a_wrong_layout_as_well():
    model = stack(NanoAttention).to(torch.bfloat16)
    runs = [lambda s=s: model(noise(s, B, T, N).bfloat16()) for s in (1, 2)]
    found = find_heads(model, probe=runs, heads=[handed("interleaved")])
    assert [site.module for site in found.sites] == ["1.attn"]


def test_under_autocast_the_same_heads_are_proven():
    built = LLAMA()

    def run(seed):
        with torch.autocast("cpu", torch.bfloat16):
            return built.model(input_ids=tokens(seed))

    found = find_heads(built.model, probe=[lambda: run(1), lambda: run(2)])
    assert [site.status for site in found.sites] == ["proven", "proven"]


def test_one_document_that_starts_like_all_others_is_enough():
    built = LLAMA()
    same_start = [torch.cat([torch.ones(1, 1, dtype=torch.long), tokens(s)[:1]], dim=1) for s in (1, 2)]
    found = find_heads(built.model, probe=[lambda ids=ids: built.model(input_ids=ids) for ids in same_start])
    assert [site.status for site in found.sites] == ["proven", "proven"]


def test_a_single_probe_serves_to_fit_and_to_verify():
    model = stack(NanoAttention)
    found = find_heads(model, probe=on_noise(model, B, T, N)[:1])
    assert [site.status for site in found.sites] == ["proven", "proven"]


class Opaque(torch.autograd.Function):
    """Something that autograd does not see through."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Closed(NanoAttention):
    """Projections that reach the attention call through an opaque function."""

    def forward(self, x):
        q, k, v = (Opaque.apply(y).view(*x.shape[:2], H, -1).transpose(1, 2) for y in self.c_attn(x).split(N, dim=2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape_as(x))


def test_where_the_forward_cannot_be_followed_rows_by_rule_are_proven_by_value():
    model = stack(Closed, depth=1)
    (site,) = find_heads(model, probe=on_noise(model, B, T, N)).sites
    assert site.status == "proven"
    assert "by_value" in site.flags


def test_where_the_forward_cannot_be_followed_a_wrong_rule_is_refused():
    class Wrong(Closed):
        def forward(self, x):
            mixed = self.c_attn(x).view(*x.shape[:2], H, 3, 16)
            q, k, v = (Opaque.apply(mixed[..., i, :]).transpose(1, 2) for i in range(3))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape_as(x))

    model = stack(Wrong, depth=1)
    with pytest.raises(NoAttentionError, match="rows by rule: predicted scores differ"):
        find_heads(model, probe=on_noise(model, B, T, N))


def test_finding_changes_nothing():
    model = stack(NanoAttention)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    x = noise(3, B, T, N)
    expected = model(x)
    expected.sum().backward()
    grads = [parameter.grad.clone() for parameter in model.parameters()]

    find_heads(model, probe=on_noise(model, B, T, N))

    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))
    assert torch.equal(model(x), expected)
    assert model.training
