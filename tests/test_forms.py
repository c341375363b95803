"""Which form is measured: biases, gains, rotary displacements, grouped queries, layouts of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dense_forms import profile_of
from headwatch.forms import Factors, homogenise
from headwatch.heads.headmap import Rope
from headwatch.heads.rotation import rotate
from headwatch.profiles import statistics

facts = settings(max_examples=25, deadline=None)
generators = st.integers(0, 2**31).map(lambda seed: torch.Generator().manual_seed(seed))
pairings = st.sampled_from(["half", "interleaved"])


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def pi(factors: Factors) -> np.ndarray:
    found = statistics(factors)
    return np.array([found[key].item() for key in "abcd"])


def with_gain(factors: Factors, gain: Tensor) -> Factors:
    """L → diag(g) L diag(g): the form on the normed input before its norm's gain."""
    return Factors(factors.W_K * gain, factors.W_Q * gain)


@facts
@given(generators, st.integers(1, 4), st.integers(1, 9))
def test_homogenised_form_includes_the_biases(generator: torch.Generator, n: int, N: int) -> None:
    W_K, W_Q, b_K, b_Q = normal(generator, n, N), normal(generator, n, N), normal(generator, n), normal(generator, n)
    u, v, one = normal(generator, N), normal(generator, N), torch.ones(1, dtype=torch.float64)
    form = homogenise(W_K, b_K).mT @ homogenise(W_Q, b_Q)
    score = torch.cat([u, one]) @ form @ torch.cat([v, one])
    torch.testing.assert_close(score, (W_K @ u + b_K) @ (W_Q @ v + b_Q))
    zero = torch.zeros(n)
    without = Factors(homogenise(W_K, zero), homogenise(W_Q, zero))
    np.testing.assert_allclose(pi(without), pi(Factors(W_K, W_Q)), rtol=0, atol=1e-12)


@facts
@given(generators, st.integers(1, 4), st.integers(2, 9))
def test_a_norm_gain_moves_the_profile_to_that_of_the_scaled_form(generator: torch.Generator, n: int, N: int) -> None:
    factors, gain = Factors(normal(generator, n, N), normal(generator, n, N)), normal(generator, N).abs() + 0.1
    L = (gain[:, None] * (factors.W_K.mT @ factors.W_Q) * gain).numpy()
    found = pi(with_gain(factors, gain))
    np.testing.assert_allclose(found, profile_of(L), rtol=0, atol=1e-11)


def test_a_profile_is_not_invariant_under_a_norm_gain() -> None:
    generator = torch.Generator().manual_seed(0)
    factors = Factors(normal(generator, 4, 16), normal(generator, 4, 16))
    moved = pi(with_gain(factors, torch.linspace(0.2, 5, 16, dtype=torch.float64)))
    assert np.abs(moved - pi(factors)).max() > 1e-3
    same = pi(with_gain(factors, torch.full((16,), 3.0, dtype=torch.float64)))
    np.testing.assert_allclose(same, pi(factors), rtol=0, atol=1e-12)


def rope_of(pairing: str, partial: int, n: int = 8) -> Rope:
    frequencies = tuple(10_000.0 ** (-2 * i / partial) for i in range(partial // 2))
    return Rope(pairing, 0, partial, frequencies)  # type: ignore[arg-type]


def turned(x: Tensor, rope: Rope, position: int) -> Tensor:
    """One vector as rotary models turn it: pairs as complex numbers times exp(i · position · frequency)."""
    part = x[rope.start : rope.stop]
    half = len(part) // 2
    pairs = torch.stack([part[:half], part[half:]], -1) if rope.pairing == "half" else part.reshape(half, 2)
    angle = position * torch.tensor(rope.frequencies, dtype=torch.float64)
    rotated = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle))
    flat = torch.cat([rotated[:, 0], rotated[:, 1]]) if rope.pairing == "half" else rotated.flatten()
    return torch.cat([x[: rope.start], flat, x[rope.stop :]])


@facts
@given(generators, pairings, st.sampled_from([4, 8]), st.integers(0, 50), st.integers(0, 50))
def test_rotary_scores_depend_on_the_displacement_as_the_form_says(
    generator: torch.Generator, pairing: str, partial: int, key: int, d: int
) -> None:
    rope = rope_of(pairing, partial)
    W_K, W_Q, u, v = normal(generator, 8, 12), normal(generator, 8, 12), normal(generator, 12), normal(generator, 12)
    score = turned(W_K @ u, rope, key) @ turned(W_Q @ v, rope, key + d)
    torch.testing.assert_close(u @ (W_K.mT @ rotate(W_Q, rope, d)) @ v, score)


@facts
@given(generators, pairings, st.integers(0, 99), st.integers(0, 99))
def test_rotations_compose(generator: torch.Generator, pairing: str, d: int, e: int) -> None:
    rope, rows = rope_of(pairing, 8), normal(generator, 8, 5)
    torch.testing.assert_close(rotate(rotate(rows, rope, d), rope, e), rotate(rows, rope, d + e))
    torch.testing.assert_close(rotate(rows, rope, 0), rows)


def test_grouped_queries_have_one_form_per_query_head() -> None:
    generator = torch.Generator().manual_seed(0)
    W_Q, W_K = normal(generator, 6, 4, 20), normal(generator, 2, 4, 20)
    found = statistics(Factors(W_K.repeat_interleave(3, dim=0), W_Q))
    for head in range(6):
        want = profile_of((W_K[head // 3].mT @ W_Q[head]).numpy())
        np.testing.assert_allclose([found[key][head] for key in "abcd"], want, rtol=0, atol=1e-12)


def test_one_key_head_for_all_needs_no_copies() -> None:
    generator = torch.Generator().manual_seed(0)
    W_Q, W_K = normal(generator, 6, 4, 20), normal(generator, 1, 4, 20)
    views, copies = W_K.expand(6, 4, 20), W_K.repeat(6, 1, 1)
    assert torch.equal(statistics(Factors(views, W_Q))["b"], statistics(Factors(copies, W_Q))["b"])


@pytest.mark.parametrize("lead", [(), (1,), (2, 3), (2, 1, 2)])
def test_the_batch_keeps_its_shape(lead: tuple[int, ...]) -> None:
    factors = Factors(torch.randn(*lead, 4, 10), torch.randn(*lead, 4, 10))
    assert statistics(factors)["a"].shape == lead
    assert (factors.d_head, factors.d_model) == (4, 10)
