"""The facts of the theory of profiles, each as a property."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dense_forms import profile_of
from headwatch.forms import Factors
from headwatch.lobes import lobe_shares, lobes
from headwatch.metrics import HEAD_TYPES
from headwatch.profiles import spectra, statistics

TIGHT = 1e-11
facts = settings(max_examples=25, deadline=None)


@dataclass
class Head:
    W_K: np.ndarray
    W_Q: np.ndarray

    def __post_init__(self) -> None:
        self.n, self.N = self.W_K.shape
        self.L = self.W_K.T @ self.W_Q


@st.composite
def heads(draw: st.DrawFn, min_n: int = 1, slack: int | None = None) -> Head:
    """A Gaussian head; with ``slack`` 2n ≤ N ≤ 2n + slack, else any N ≥ 2."""
    n = draw(st.integers(min_n, 5))
    N = draw(st.integers(2 * n, 2 * n + slack) if slack is not None else st.integers(2, 14))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Head(rng.standard_normal((n, N)), rng.standard_normal((n, N)))


seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def measured(W_K: np.ndarray, W_Q: np.ndarray) -> dict[str, float]:
    return {key: value.item() for key, value in statistics(Factors(torch.tensor(W_K), torch.tensor(W_Q))).items()}


def pi(W_K: np.ndarray, W_Q: np.ndarray) -> np.ndarray:
    found = measured(W_K, W_Q)
    return np.array([found[key] for key in "abcd"])


def same(found: object, want: object, atol: float = TIGHT) -> None:
    np.testing.assert_allclose(found, want, rtol=0, atol=atol)


def orthogonal(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


def symmetric_head(eigenvalues: list[float], rng: np.random.Generator, N: int | None = None) -> Head:
    """A head whose form is symmetric with these eigenvalues and zeros."""
    values = np.array(eigenvalues)
    basis = orthogonal(rng, N or 2 * len(values))[: len(values)]
    return Head(np.sqrt(np.abs(values))[:, None] * basis, (np.sign(values) * np.sqrt(np.abs(values)))[:, None] * basis)


def antisymmetric_head(x: np.ndarray, y: np.ndarray) -> Head:
    return Head(np.stack([x, -y]), np.stack([y, x]))


# the simplex and what does not move a profile


@facts
@given(heads())
def test_profile_is_a_point_of_the_simplex_and_equals_brute_force(head: Head) -> None:
    found = pi(head.W_K, head.W_Q)
    assert (found >= 0).all()
    same(found.sum(), 1)
    same(found, profile_of(head.L))


@facts
@given(heads(), seeds)
def test_invariant_under_orthogonal_change_of_the_residual_stream(head: Head, rng: np.random.Generator) -> None:
    U = orthogonal(rng, head.N)
    same(pi(head.W_K @ U, head.W_Q @ U), pi(head.W_K, head.W_Q))


@facts
@given(heads(), st.floats(1e-12, 1e12))
def test_invariant_under_positive_scale(head: Head, k: float) -> None:
    same(pi(k * head.W_K, head.W_Q), pi(head.W_K, head.W_Q))


@facts
@given(heads())
def test_invariant_under_transposition(head: Head) -> None:
    same(pi(head.W_Q, head.W_K), pi(head.W_K, head.W_Q))


@facts
@given(heads(), seeds)
def test_invariant_under_the_gauge_of_the_head(head: Head, rng: np.random.Generator) -> None:
    A = orthogonal(rng, head.n) @ np.diag(rng.uniform(0.5, 2, head.n)) @ orthogonal(rng, head.n)
    same(pi(np.linalg.inv(A).T @ head.W_K, A @ head.W_Q), pi(head.W_K, head.W_Q))


@facts
@given(heads())
def test_minus_the_form_swaps_c_and_d(head: Head) -> None:
    a, b, c, d = pi(head.W_K, head.W_Q)
    same(pi(-head.W_K, head.W_Q), [a, b, d, c])


@facts
@given(heads())
def test_trace_identities(head: Head) -> None:
    found = measured(head.W_K, head.W_Q)
    X, P, R = head.W_Q @ head.W_K.T, head.W_K @ head.W_K.T, head.W_Q @ head.W_Q.T
    square = np.trace(P @ R)
    same(found["norm"], np.sqrt(square), atol=1e-9)
    same(found["trace_ratio"], np.trace(X) / np.sqrt(square))
    same(found["a"], (square - np.trace(X @ X)) / 2 / square)
    same(1 - found["a"], (square + np.trace(X @ X)) / 2 / square)


# spectra in the reduced space


@facts
@given(heads(slack=6))
def test_spectra_are_those_of_the_gram_form(head: Head) -> None:
    n = head.n
    M = np.vstack([head.W_K, head.W_Q])
    zero, one = np.zeros((n, n)), np.eye(n)
    found = spectra(Factors(torch.tensor(head.W_K), torch.tensor(head.W_Q)))
    J, J_T = np.block([[zero, one], [one, zero]]), np.block([[zero, one], [-one, zero]])
    C = np.linalg.cholesky(M @ M.T + 1e-300 * np.eye(2 * n))
    same(found.S, np.sort(np.linalg.eigvals(J @ M @ M.T).real) / 2, atol=1e-7)
    same(found.S, np.linalg.eigvalsh(C.T @ J @ C) / 2, atol=1e-9)
    same(found.T, np.linalg.svd(C.T @ J_T @ C, compute_uv=False)[::2] / 2, atol=1e-9)
    E = np.block([[zero, one], [zero, zero]])
    same(found.L, np.linalg.svd(C.T @ E @ C, compute_uv=False)[:n], atol=1e-9)


@facts
@given(heads())
def test_spectra_are_those_of_the_dense_form(head: Head) -> None:
    found = spectra(Factors(torch.tensor(head.W_K), torch.tensor(head.W_Q)))
    padded = np.sort(np.pad(found.S.numpy(), (0, head.N - found.S.numel())))
    same(padded, np.linalg.eigvalsh((head.L + head.L.T) / 2), atol=1e-10)
    every_second = np.linalg.svd((head.L - head.L.T) / 2, compute_uv=False)[::2]
    same(found.T, every_second[: found.T.numel()], atol=1e-10)
    same(found.L, np.linalg.svd(head.L, compute_uv=False)[: found.L.numel()], atol=1e-10)


# signature


@facts
@given(heads(slack=6))
def test_generic_head_is_n_hyperbolic_planes(head: Head) -> None:
    found = measured(head.W_K, head.W_Q)
    assert (found["n_pos"], found["n_neg"], found["balance"]) == (head.n, head.n, 1)


@facts
@given(heads(slack=6))
def test_tied_head_is_positive_semidefinite(head: Head) -> None:
    found = measured(head.W_K, head.W_K)
    assert (found["n_pos"], found["n_neg"]) == (head.n, 0)
    same([found[key] for key in "abcd"], [0, 0, 1, 0])


@facts
@given(heads())
def test_counts_are_bounded_when_2n_exceeds_N(head: Head) -> None:
    found = measured(head.W_K, head.W_Q)
    assert max(found["n_pos"], found["n_neg"]) <= min(head.n, head.N)
    assert found["n_pos"] + found["n_neg"] <= head.N


# faces

magnitudes = st.lists(st.floats(0.1, 10), min_size=1, max_size=4)


@facts
@given(heads(min_n=2))
def test_a_is_inside_for_a_generic_head(head: Head) -> None:
    assert 0 < measured(head.W_K, head.W_Q)["a"] < 1


@facts
@given(magnitudes, magnitudes, seeds)
def test_a_is_0_for_a_symmetric_form(alpha: list[float], beta: list[float], rng: np.random.Generator) -> None:
    head = symmetric_head(alpha + [-x for x in beta], rng)
    same(measured(head.W_K, head.W_Q)["a"], 0)


@facts
@given(seeds, st.integers(2, 9))
def test_a_is_1_for_an_antisymmetric_form(rng: np.random.Generator, N: int) -> None:
    head = antisymmetric_head(*rng.standard_normal((2, N)))
    found = measured(head.W_K, head.W_Q)
    same([found[key] for key in "abcd"], [1, 0, 0, 0])
    assert np.isnan([found["pairing"], found["rho"], found["c_sym"], found["head_type"]]).all()


@facts
@given(magnitudes, st.sampled_from([1, -1]), seeds)
def test_b_is_0_for_a_semidefinite_form(values: list[float], sign: int, rng: np.random.Generator) -> None:
    head = symmetric_head([sign * x for x in values], rng)
    found = measured(head.W_K, head.W_Q)
    same([found["b"], found["c"], found["d"]], [0, sign > 0, sign < 0])
    assert found["parity"] == sign


@facts
@given(magnitudes, magnitudes, seeds)
def test_b_is_positive_for_an_indefinite_form(alpha: list[float], beta: list[float], rng: np.random.Generator) -> None:
    head = symmetric_head(alpha + [-x for x in beta], rng)
    assert measured(head.W_K, head.W_Q)["b"] > 1e-6


@facts
@given(magnitudes, st.lists(st.floats(0, 1), min_size=4, max_size=4), seeds)
def test_d_is_0_when_the_positive_lobe_dominates(
    alpha: list[float], shares: list[float], rng: np.random.Generator
) -> None:
    beta = [a * s for a, s in zip(sorted(alpha, reverse=True), shares, strict=False)]
    head = symmetric_head(alpha + [-x for x in beta], rng)
    same(measured(head.W_K, head.W_Q)["d"], 0)
    same(measured(-head.W_K, head.W_Q)["c"], 0)


@facts
@given(magnitudes, seeds)
def test_d_is_positive_when_one_negative_eigenvalue_sticks_out(alpha: list[float], rng: np.random.Generator) -> None:
    head = symmetric_head([*alpha, -1.5 * max(alpha)], rng)
    assert measured(head.W_K, head.W_Q)["d"] > 1e-4


@facts
@given(magnitudes, seeds)
def test_hyperbolic_form_is_the_vertex_b(alpha: list[float], rng: np.random.Generator) -> None:
    head = symmetric_head(alpha + [-x for x in alpha], rng)
    found = measured(head.W_K, head.W_Q)
    same([found[key] for key in ("a", "b", "c", "d", "pairing", "rho")], [0, 1, 0, 0, 1, 1])
    assert found["parity"] == 0


# rank one


@facts
@given(seeds, st.integers(2, 9), st.integers(1, 4), st.floats(-1, 1))
def test_rank_one_profiles_are_theta(rng: np.random.Generator, N: int, n: int, t: float) -> None:
    u, v = orthogonal(rng, N)[:2]
    x, y = rng.standard_normal((2, n))
    assert abs(x @ y) > 0
    q = (t * u + np.sqrt(1 - t**2) * v) * np.sign(x @ y)
    found = measured(np.outer(x, u), np.outer(y, q))
    same([found[key] for key in "abcd"], [(1 - t**2) / 2, (1 - t**2) / 2, max(t, 0) ** 2, min(t, 0) ** 2], 1e-10)
    same([found["trace_ratio"], found["theta_position"]], [t, t], atol=1e-7)
    same([found["theta_distance"], found["participation_ratio"], found["stable_rank"]], [0, 1, 1], atol=1e-10)


@facts
@given(heads(min_n=2, slack=6))
def test_only_rank_one_has_participation_ratio_and_stable_rank_1(head: Head) -> None:
    found = measured(head.W_K, head.W_Q)
    assert 1 + 1e-9 < found["participation_ratio"] <= head.n + 1e-9
    assert 1 + 1e-9 < found["stable_rank"] <= head.n + 1e-9


@facts
@given(st.integers(1, 5), seeds)
def test_flat_singular_values_have_full_ranks(n: int, rng: np.random.Generator) -> None:
    U, V = orthogonal(rng, 12)[:n], orthogonal(rng, 12)[:n]
    found = measured(U, V)
    same([found["participation_ratio"], found["stable_rank"], found["leading_share"]], [n, n, 1 / n])


# lobes


@facts
@given(heads(slack=6))
def test_pairing_and_its_bound(head: Head) -> None:
    found = measured(head.W_K, head.W_Q)
    rho = found["rho"]
    assert 0 <= found["pairing"] <= found["pairing_bound"] + 1e-12
    same(found["pairing"], 1 - np.sqrt(1 - found["b_sym"]), atol=1e-7)
    same(found["pairing_bound"], 1 - abs(1 - rho) / np.sqrt(1 + rho**2))
    same(found["pairing_gap"], found["pairing_bound"] - found["pairing"])
    same(found["b_sym"] + found["c_sym"] + found["d_sym"], 1)
    assert (found["lobe_departure"] < 1e-9) == (found["pairing_gap"] < 1e-9)


@facts
@given(magnitudes, st.floats(0.1, 10), seeds)
def test_lobes_of_one_shape_reach_the_bound(alpha: list[float], rho: float, rng: np.random.Generator) -> None:
    head = symmetric_head(alpha + [-rho * x for x in alpha], rng)
    found = measured(head.W_K, head.W_Q)
    same(found["rho"], rho, atol=1e-10)
    same([found["pairing_gap"], found["lobe_departure"]], [0, 0], atol=1e-9)


@facts
@given(magnitudes, magnitudes, seeds)
def test_lobe_departure_is_an_angle(alpha: list[float], beta: list[float], rng: np.random.Generator) -> None:
    head = symmetric_head(alpha + [-x for x in beta], rng)
    size = max(len(alpha), len(beta))
    x, y = (np.pad(np.sort(lobe)[::-1], (0, size - len(lobe))) for lobe in (alpha, beta))
    cosine = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    same(measured(head.W_K, head.W_Q)["lobe_departure"], np.sqrt(max(0, 2 * (1 - cosine))), atol=1e-7)


LAWS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "uniform": lambda rng, n: rng.uniform(0, 1, n),
    "exponential": lambda rng, n: rng.exponential(1, n),
    "half-normal": lambda rng, n: np.abs(rng.standard_normal(n)),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("rho", [0.5, 1.0, 2.0])
def test_accumulation_for_lobes_of_one_law(law: str, rho: float) -> None:
    """(b_s, c_s, d_s) → (2ρ, (1−ρ)₊², (ρ−1)₊²)/(1+ρ²) as the lobes grow."""
    rng, n = np.random.default_rng(3), 20_000
    values = np.concatenate([LAWS[law](rng, n), -rho * LAWS[law](rng, n)])
    shares = torch.stack(lobe_shares(*lobes(torch.tensor(np.sort(values))))) / (values @ values)
    limit = np.array([2 * rho, max(1 - rho, 0) ** 2, max(rho - 1, 0) ** 2]) / (1 + rho**2)
    same(shares, limit, atol=0.02)


@pytest.mark.parametrize(
    ("alpha", "beta", "kind"),
    [([3, 1.2], [3, 1], "II"), ([5, 1], [3, 1], "I+"), ([3, 1], [5, 1], "I-"), ([5, 1], [3, 2], "I+")],
)
def test_head_type_by_the_papers_rule(alpha: list[float], beta: list[float], kind: str) -> None:
    """Excess over ‖S‖²: .04/20.4 ≤ .02, then 4/36 on either side, then 4/39 against 1/39."""
    head = symmetric_head(alpha + [-x for x in beta], np.random.default_rng(1))
    assert HEAD_TYPES[int(measured(head.W_K, head.W_Q)["head_type"])] == kind
