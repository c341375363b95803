"""What is known of the signatures without a model: facts of uniform, sharp and empty attention."""

import math

import numpy as np
import pytest
import torch

from headwatch.marginal import Mask, column_statistics, from_weights, geometry, ignored_keys, signatures, token_signal

T = 48
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()
MASKS = {
    "none": None,
    "causal": CAUSAL,
    "window": CAUSAL & ~CAUSAL.tril(-9),
    "packed": torch.block_diag(*[torch.ones(s, s, dtype=torch.bool) for s in (20, 10, 18)]),
    "random": (torch.rand(T, T, generator=torch.Generator().manual_seed(0)) < 0.3).index_fill(1, torch.tensor(0), True),
}


def flat(mask, H=3):
    """Attention without any preference: all scores are equal."""
    q = torch.zeros(1, H, T, 4)
    return column_statistics(q, torch.randn(1, H, T, 4), scale=1.0, mask=mask, block=16)


@pytest.mark.parametrize("name", MASKS)
def test_uniform_attention_has_lift_one_and_signature_one(name):
    marginals = flat(MASKS[name])
    np.testing.assert_allclose(marginals.lift, 1, atol=1e-5)
    np.testing.assert_allclose(token_signal(marginals), 1, atol=1e-5)
    found = signatures(marginals)
    np.testing.assert_allclose(found["n_eff"], 1, atol=1e-6)
    np.testing.assert_allclose(found["c95"], 0.95, atol=1e-6)
    np.testing.assert_allclose(found["mutual_information"], 0, atol=1e-5)


def test_uniform_attention_of_all_to_all_carries_no_information_even_raw():
    known = flat(None).geometry
    raw = math.log(T) - known.log_keys.item()
    assert raw == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("T", "nats"), [(128, 0.56), (256, 0.57), (8192, 0.57722)])
def test_uniform_causal_attention_carries_half_a_nat_raw(T, nats):
    """Tends to Euler's constant: m(k)/n → −ln(k/T), whose entropy beside E ln q is 1 − ψ(2)."""
    known = geometry(Mask(T, T, is_causal=True))
    p = known.uniform[0, 0].double() / T
    assert -(p * p.log()).sum() - known.log_keys.item() == pytest.approx(nats, abs=0.006)


def test_near_one_when_logits_have_unit_deviation():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 8, 256, 64, generator=generator) for _ in range(2))
    found = signatures(column_statistics(q, k, scale=1 / 8))
    assert found["n_eff"].mean().item() == pytest.approx(0.985, abs=0.01)


def test_the_plain_head_marginal_is_the_same_for_every_head():
    q, k = (3 * torch.randn(2, 6, T, 8) for _ in range(2))
    for mask in (None, CAUSAL):
        mass = column_statistics(q, k, scale=1.0, mask=mask).mass
        np.testing.assert_allclose(mass.sum(-1), T, rtol=1e-5)


def test_bidirectional_without_padding_mass_mean_and_lift_coincide():
    q, k = (torch.randn(1, 2, T, 8) for _ in range(2))
    marginals = column_statistics(q, k, scale=1.0)
    np.testing.assert_allclose(marginals.geometry.uniform, 1, rtol=1e-5)
    np.testing.assert_allclose(marginals.mass, marginals.lift, rtol=1e-5)
    np.testing.assert_allclose(marginals.mass, T * marginals.mean, rtol=1e-5)


def test_n_eff_without_mask_is_the_perplexity_share():
    q, k = (torch.randn(1, 2, T, 8) for _ in range(2))
    marginals = column_statistics(q, k, scale=1.0)
    m = marginals.mass[..., 1:].double()
    p = m / m.sum(-1, keepdim=True)
    expected = (-(p * p.log()).sum(-1)).exp() / (T - 1)
    np.testing.assert_allclose(signatures(marginals)["n_eff"], expected, rtol=1e-5)


@pytest.mark.parametrize(("T", "n_eff"), [(64, 0.60), (256, 0.58), (1024, 0.57)])
def test_pure_self_attention_under_a_causal_mask(T, n_eff):
    A = torch.eye(T)[None, None]
    found = signatures(from_weights(A, mask=torch.ones(T, T, dtype=torch.bool).tril()))
    assert found["n_eff"].item() == pytest.approx(n_eff, abs=0.005)
    assert found["row_entropy"].item() == pytest.approx(0, abs=1e-6)
    assert found["peak_mean"].item() == pytest.approx(1)


def test_a_head_on_the_sink_alone_has_no_distribution():
    A = torch.zeros(1, 2, T, T)
    A[0, 0, :, 0] = 1
    A[0, 1] = CAUSAL.float() / CAUSAL.sum(-1, keepdim=True)
    found = signatures(from_weights(A, mask=CAUSAL))
    assert found["n_eff"][0].isnan().tolist() == [True, False]
    assert found["c95"][0].isnan().tolist() == [True, False]
    assert found["sink_share"][0, 0].item() == pytest.approx(1)
    assert found["peak_mean"][0, 0].item() == 0


def test_with_left_padding_the_sink_is_the_first_valid_token():
    valid = torch.arange(T) >= 7
    q, k = (torch.randn(1, 2, T, 8) for _ in range(2))
    marginals = column_statistics(q, k, scale=1.0, mask=CAUSAL & valid)
    assert ignored_keys(marginals)[0, 0].nonzero().flatten().tolist() == [7]
    assert marginals.geometry.n.item() == T - 7


def test_padding_changes_no_signature():
    q, k = (torch.randn(1, 2, T, 8) for _ in range(2))
    whole = signatures(column_statistics(q, k, scale=1.0, is_causal=True))
    wide_q, wide_k = (torch.cat((torch.randn(1, 2, 9, 8), t), 2) for t in (q, k))
    valid = torch.arange(T + 9) >= 9
    mask = torch.ones(T + 9, T + 9, dtype=torch.bool).tril() & valid
    padded = signatures(column_statistics(wide_q, wide_k, scale=1.0, mask=mask))
    for key, value in whole.items():
        np.testing.assert_allclose(padded[key], value, rtol=1e-5, atol=1e-6, err_msg=key)


def test_lift_is_free_of_the_geometry_that_mass_shares():
    generator = torch.Generator().manual_seed(0)
    a, b = (
        column_statistics(
            torch.randn(1, 8, 256, 16, generator=generator),
            torch.randn(1, 8, 256, 16, generator=generator),
            scale=0.25,
            is_causal=True,
        )
        for _ in range(2)
    )
    mass = np.corrcoef(a.mass.mean(1)[0, 4:-16], b.mass.mean(1)[0, 4:-16])[0, 1]
    lift = np.corrcoef(token_signal(a)[0, 4:-16], token_signal(b)[0, 4:-16])[0, 1]
    assert mass > 0.6
    assert abs(lift) < 0.25


def test_sampled_queries_keep_n_eff_and_the_last_rows_do_not():
    """Correlation over heads of different temperature, a strided quarter against the last quarter of the rows."""
    generator = torch.Generator().manual_seed(0)
    H, T = 24, 512
    base = torch.randn(1, H, 1, 16, generator=generator) * torch.linspace(0, 3, H)[:, None, None]
    q = torch.randn(1, H, T, 16, generator=generator) + base
    k = torch.randn(1, H, T, 16, generator=generator)
    options = {"scale": 0.25, "is_causal": True}
    full = signatures(column_statistics(q, k, **options))
    strided = signatures(column_statistics(q, k, query_stride=4, **options))
    for key, least in {"n_eff": 0.995, "c95": 0.995, "peak_mean": 0.9}.items():
        assert np.corrcoef(full[key][0], strided[key][0])[0, 1] >= least, key
