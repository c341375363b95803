"""Numbers that hold: hard heads against dense float64, isolation of broken ones, dtypes, shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dense_forms import statistics_of
from headwatch.cores import gram_cores, qr_cores
from headwatch.forms import Factors
from headwatch.metrics import PROFILE_KEYS
from headwatch.profiles import problems, spectra, statistics, tolerance

N, n = 64, 8
Pair = tuple[np.ndarray, np.ndarray]


def gaussian(rng: np.random.Generator, rows: int = n, columns: int = N) -> np.ndarray:
    return rng.standard_normal((rows, columns))


def rank_one(rng: np.random.Generator, noise: float = 0.0) -> Pair:
    W_K, W_Q = (np.outer(rng.standard_normal(n), rng.standard_normal(N)) for _ in range(2))
    return W_K + noise * gaussian(rng), W_Q + noise * gaussian(rng)


def tied(rng: np.random.Generator, noise: float = 0.0, sign: int = 1) -> Pair:
    W = gaussian(rng)
    return W, sign * W + noise * gaussian(rng)


def balanced(rng: np.random.Generator, noise: float) -> Pair:
    """A symmetric form with spectrum ±x, moved by noise: next to the vertex b."""
    basis = np.linalg.qr(rng.standard_normal((N, 2 * n)))[0].T
    return basis[:n] + basis[n:] + noise * gaussian(rng), basis[:n] - basis[n:] + noise * gaussian(rng)


def next_to_M(rng: np.random.Generator, noise: float) -> Pair:
    """Rank one with tr L = 0, moved by noise."""
    u, v = np.linalg.qr(rng.standard_normal((N, 2)))[0].T
    x = rng.standard_normal(n)
    return np.outer(x, u) + noise * gaussian(rng), np.outer(x, v) + noise * gaussian(rng)


def row_scaled(rng: np.random.Generator) -> Pair:
    scale = np.logspace(-18, 18, n)[:, None]
    return scale * gaussian(rng), gaussian(rng) / scale


FAMILIES: dict[str, Callable[[np.random.Generator], Pair]] = {
    "gaussian": lambda rng: (gaussian(rng), gaussian(rng)),
    "ill-conditioned": lambda rng: (np.logspace(0, -10, n)[:, None] * gaussian(rng), gaussian(rng)),
    "rank one": rank_one,
    "rank one + 1e-8": lambda rng: rank_one(rng, 1e-8),
    "rank one + 1e-3": lambda rng: rank_one(rng, 1e-3),
    "rank deficient": lambda rng: (gaussian(rng, n, 3) @ gaussian(rng, 3), gaussian(rng, n, 5) @ gaussian(rng, 5)),
    "tied": tied,
    "tied + 1e-7": lambda rng: tied(rng, 1e-7),
    "tied + 1e-3": lambda rng: tied(rng, 1e-3),
    "anti-tied": lambda rng: tied(rng, sign=-1),
    "tiny × huge": lambda rng: (1e-20 * gaussian(rng), 1e20 * gaussian(rng)),
    "tiny × tiny": lambda rng: (1e-20 * gaussian(rng), 1e-20 * gaussian(rng)),
    "huge × huge": lambda rng: (1e20 * gaussian(rng), 1e20 * gaussian(rng)),
    "nearly balanced": lambda rng: balanced(rng, 1e-9),
    "next to M": lambda rng: next_to_M(rng, 1e-9),
    "2n > N": lambda rng: (gaussian(rng, 8, 12), gaussian(rng, 8, 12)),
    "n > N": lambda rng: (gaussian(rng, 8, 5), gaussian(rng, 8, 5)),
    "2n = N": lambda rng: (gaussian(rng, 8, 16), gaussian(rng, 8, 16)),
    "one row of zeros": lambda rng: (gaussian(rng) * np.arange(n)[:, None], gaussian(rng)),
}
SHAPE = {"rho", "lobe_departure"}  # of a lobe that is rounding
SPREAD = {"n_pos", "n_neg", "balance"}  # depend on a tolerance; tested by themselves


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-6)])
def test_hard_heads_against_dense_float64(family: str, dtype: torch.dtype, bound: float) -> None:
    """The profile to the bound; what divides by a small number, or has a square root at 0, to its own condition."""
    for seed in range(3):
        W_K, W_Q = (torch.tensor(W).to(dtype) for W in FAMILIES[family](np.random.default_rng(seed)))
        want = statistics_of(W_K.double().numpy(), W_Q.double().numpy())
        found = {key: value.item() for key, value in statistics(Factors(W_K, W_Q)).items()}
        for key in "abcd":
            assert abs(found[key] - want[key]) <= bound, (key, seed)
        one_lobe = min(want["rho"], 1 / want["rho"]) < 1e-9
        for key in set(want) - set("abcd") - SPREAD - (SHAPE if one_lobe else set()):
            assert found[key] == pytest.approx(want[key], rel=1e-6, abs=1e-6), (key, seed)


def test_factors_with_rows_of_very_different_size() -> None:
    W_K, W_Q = row_scaled(np.random.default_rng(0))
    size = np.abs(W_K).max(1, keepdims=True)
    want = statistics_of(W_K / size, W_Q * size)
    found = statistics(Factors(torch.tensor(W_K), torch.tensor(W_Q)))
    for key in "abcd":
        assert abs(found[key].item() - want[key]) <= 1e-12


def test_cholesky_and_qr_agree_where_cholesky_is_taken() -> None:
    rng = np.random.default_rng(0)
    heads = [FAMILIES[name](rng) for name in FAMILIES if not name.startswith(("2n >", "n >", "2n ="))]
    factors = Factors(*(torch.tensor(np.stack(W)) for W in zip(*heads, strict=True)))
    fast, slow = gram_cores(factors), qr_cores(factors)
    assert slow.sound.all()
    assert 3 <= int(fast.sound.sum()) < len(heads)
    energy = [(c.scale * c.K.norm(dim=(-2, -1)))[fast.sound] for c in (fast, slow)]
    torch.testing.assert_close(*energy, rtol=1e-13, atol=0)


def broken_batch() -> tuple[Factors, list[str]]:
    generator = torch.Generator().manual_seed(0)
    W_K, W_Q = (torch.randn(6, n, N, generator=generator) for _ in range(2))
    W_K[1, 2, 3] = torch.nan
    W_Q[2, 0, 0] = -torch.inf
    W_K[3] = 0
    W_K[4], W_Q[4] = 0, 0
    W_K[4, 0], W_Q[4, 1] = 1.0, 2.0  # neither factor is zero, their form is
    return Factors(W_K, W_Q), ["", "nan", "inf", "zero_form", "zero_form", ""]


def test_broken_heads_are_named_and_leave_the_others_unchanged() -> None:
    factors, names = broken_batch()
    assert problems(factors) == names
    found = statistics(factors)
    for i, name in enumerate(names):
        alone = statistics(factors.take(slice(i, i + 1)))
        for key, values in found.items():
            assert torch.isnan(values[i]) if name else torch.equal(values[i], alone[key][0]), key


def test_spectra_of_broken_heads_are_nan() -> None:
    factors, names = broken_batch()
    broken = torch.tensor([bool(name) for name in names])
    found = spectra(factors)
    for values in (found.S, found.T, found.L):
        assert torch.equal(values.isnan().all(-1), broken)
        assert torch.equal(values.isnan().any(-1), broken)


def test_norm_of_tiny_and_huge_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    W_K, W_Q = (torch.randn(n, N, generator=generator, dtype=torch.float64) for _ in range(2))
    want = (W_K.T @ W_Q).norm().item()
    for k in (1e-150, 1e-20, 1e20, 1e150):
        assert statistics(Factors(k * W_K, W_Q))["norm"].item() == pytest.approx(k * want, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_weights_are_taken_exactly(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    W_K, W_Q = (torch.randn(4, n, N, generator=generator).to(dtype) for _ in range(2))
    found = statistics(Factors(W_K, W_Q), eps=0.0)
    want = statistics(Factors(W_K.double(), W_Q.double()), eps=0.0)
    assert all(torch.equal(found[key], want[key]) for key in want)


def test_every_profile_metric_but_those_with_a_history() -> None:
    found = statistics(Factors(torch.randn(3, 4, n, N), torch.randn(3, 4, n, N)))
    assert set(found) == set(PROFILE_KEYS) - {"drift", "path_length"}
    assert {(value.shape, value.dtype) for value in found.values()} == {((3, 4), torch.float64)}


def test_batch_of_many_chunks_equals_its_heads_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    W_K, W_Q = (torch.randn(2, 5, 16, 40_000, generator=generator) for _ in range(2))
    found = statistics(Factors(W_K, W_Q))
    for i, j in ((0, 0), (0, 4), (1, 0), (1, 4)):
        alone = statistics(Factors(W_K[i, j], W_Q[i, j]))
        assert all(abs(found[key][i, j] - alone[key]) <= 1e-12 * (1 + abs(alone[key])) for key in alone)


def test_an_empty_batch_stays_empty() -> None:
    assert statistics(Factors(torch.zeros(0, n, N), torch.zeros(0, n, N)))["a"].shape == (0,)


def test_tolerance_of_signature_counts() -> None:
    assert tolerance(64, torch.finfo(torch.float64).eps) == 1e-9
    assert tolerance(64, torch.finfo(torch.float32).eps) == 8 * 128 * torch.finfo(torch.float32).eps
    assert tolerance(64, torch.finfo(torch.bfloat16).eps) == 0.01


def test_signature_counts_leave_out_what_rounding_made() -> None:
    """A tied head kept in float32 whose copies differ by rounding is positive semidefinite still."""
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(n, N, generator=generator, dtype=torch.float64)
    factors = Factors(W, W * (1 + 1e-7 * torch.randn(n, N, generator=generator)))
    kept_in_float32 = statistics(factors, eps=torch.finfo(torch.float32).eps)
    assert (kept_in_float32["n_pos"].item(), kept_in_float32["n_neg"].item()) == (n, 0)


@pytest.mark.parametrize(("sign", "rho"), [(1, 0.0), (-1, np.inf)])
def test_an_empty_lobe_has_no_shape(sign: int, rho: float) -> None:
    W_K, W_Q = tied(np.random.default_rng(0), sign=sign)
    found = statistics(Factors(torch.tensor(W_K), torch.tensor(W_Q)))
    assert found["rho"].item() == rho
    assert found["lobe_departure"].isnan()
    assert found["pairing"].item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("noise", [0.0, 1e-12])
def test_parity_is_dead_at_M(noise: float) -> None:
    for seed in range(20):
        W_K, W_Q = next_to_M(np.random.default_rng(seed), noise)
        assert statistics(Factors(torch.tensor(W_K), torch.tensor(W_Q)))["parity"].item() == 0


def test_factors_say_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"one shape \(\.\.\., d_head, d_model\), found \(2, 4, 8\) and \(1, 4, 8\)"):
        Factors(torch.zeros(2, 4, 8), torch.zeros(1, 4, 8))
