"""The null: its medians, its exact mean, its false-alarm rate, its cache."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from headwatch import null
from headwatch.forms import Factors
from headwatch.metrics import NULL_KEYS, REGISTRY
from headwatch.null import null_for
from headwatch.profiles import statistics

MEDIANS = {  # published medians over 100 Gaussian heads: a, b, c, d, pairing, PR, SR
    (128, 32): (0.4974, 0.5016, 2e-4, 3e-4, 0.957, 21.1, 11.1),
    (64, 16): (0.490, 0.507, 9e-4, 9e-4, 0.930, 10.6, 6.0),
}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One cache for the module, so that a null is simulated once."""
    path = tmp_path_factory.getbasetemp() / "headwatch-cache"
    monkeypatch.setenv("HEADWATCH_CACHE", str(path))
    return path


def gaussian_heads(N: int, n: int, heads: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Statistics of heads drawn as matrices, not as the null draws them."""
    generator = torch.Generator().manual_seed(seed)
    W_K, W_Q = (torch.randn(heads, n, N, generator=generator, dtype=torch.float64) for _ in range(2))
    return {key: value.numpy() for key, value in statistics(Factors(W_K, 3 * W_Q)).items()}


@pytest.mark.parametrize("shape", MEDIANS)
def test_medians_agree_with_the_published_ones(shape: tuple[int, int]) -> None:
    found = null_for(*shape)
    keys = ("a", "b", "c", "d", "pairing", "participation_ratio", "stable_rank")
    tolerances = (3e-3, 3e-3, 2e-4, 2e-4, 3e-3, 0.3, 0.3)
    for key, want, tolerance in zip(keys, MEDIANS[shape], tolerances, strict=True):
        assert abs(found.quantile(key, 0.5) - want) <= tolerance, key


@pytest.mark.parametrize(("N", "n"), [(64, 16), (12, 2), (5, 1), (12, 8), (6, 9)])
def test_the_mean_of_a_is_exact(N: int, n: int) -> None:
    """E[a] = (N − 1)/(2N) for Gaussian factors, whatever n and the variances."""
    draws = null.simulate(N, n, 4000, seed=5)["a"]
    assert abs(draws.mean() - (N - 1) / (2 * N)) <= 4 * draws.std() / np.sqrt(len(draws))


@pytest.mark.parametrize(("N", "n"), [(20, 4), (10, 5), (9, 6)])
def test_bartlett_draws_have_the_law_of_gaussian_heads(N: int, n: int) -> None:
    """Quantiles agree within what 4,000 draws on either side can tell."""
    drawn, matrices = null.simulate(N, n, 4000, seed=2), gaussian_heads(N, n, 4000)
    for key in NULL_KEYS:
        both = np.sort(np.concatenate([drawn[key], matrices[key]]))
        steps = [np.searchsorted(np.sort(x), both, "right") / len(x) for x in (drawn[key], matrices[key])]
        assert np.abs(steps[0] - steps[1]).max() <= 1.95 * np.sqrt(2 / 4000), key  # Kolmogorov–Smirnov at 1e-3


def test_trace_ratio_has_standard_deviation_one_over_root_N() -> None:
    assert null_for(64, 16).draws["trace_ratio"].std() == pytest.approx(1 / 8, rel=0.05)


def test_percentiles_of_random_heads_are_uniform() -> None:
    found = null_for(64, 16).percentile(gaussian_heads(64, 16, 1000))
    assert set(found) == set(NULL_KEYS)
    for key, values in found.items():
        assert abs(values.mean() - 50) <= 5 * 29 / np.sqrt(1000), key
        assert (values >= 0).all() and (values <= 100).all()  # noqa: PT018


def test_percentiles_rise_with_the_value_and_keep_nan() -> None:
    model = null_for(64, 16)
    values = np.array([0.0, 1.0, 4.0, 5.9, 6.0, 6.1, 9.0, 16.0, np.nan])
    found = model.percentile({"stable_rank": values})["stable_rank"]
    assert (np.diff(found[:-1]) >= 0).all()
    assert np.isnan(found[-1])
    assert found[0] < 1e-9
    assert 40 < found[4] < 60
    assert found[7] > 100 - 1e-9


def test_family_wise_false_alarms_stay_below_the_level() -> None:
    """1,000 models of 16 Gaussian heads: at most the level of them raise any alarm, and the test is not empty."""
    model, heads = null_for(64, 16), gaussian_heads(64, 16, 16 * 1000, seed=9)
    for level, at_least in ((0.01, 0), (0.2, 0.02)):
        alarms = model.beyond(heads, n_heads=16, level=level).reshape(-1, 16).any(axis=1).mean()
        assert at_least <= alarms <= level + 3 * np.sqrt(level * (1 - level) / 1000)


def test_uniform_initialisation_raises_no_more_alarms() -> None:
    generator = torch.Generator().manual_seed(4)
    W_K, W_Q = (torch.rand(4000, 16, 64, generator=generator, dtype=torch.float64) - 0.5 for _ in range(2))
    heads = {key: value.numpy() for key, value in statistics(Factors(W_K, W_Q)).items()}
    alarms = null_for(64, 16).beyond(heads, n_heads=16, level=0.2).reshape(-1, 16).any(axis=1).mean()
    assert alarms <= 0.2


def moved_head(key: str) -> dict[str, np.ndarray]:
    """Median values, but one: far out on the metric's side."""
    model = null_for(64, 16)
    sides = {"upper": (1,), "lower": (-1,), "two-sided": (1, -1)}[REGISTRY[key].tail or ""]
    spread = model.quantile(key, 0.84) - model.quantile(key, 0.16)
    values = {name: np.full(len(sides), model.quantile(name, 0.5)) for name in NULL_KEYS}
    values[key] = values[key] + 20 * spread * np.array(sides)
    return values


@pytest.mark.parametrize("key", NULL_KEYS)
def test_a_head_far_out_on_one_metric_is_beyond(key: str) -> None:
    assert null_for(64, 16).beyond(moved_head(key), n_heads=1024).all()


@pytest.mark.parametrize("key", [key for key in NULL_KEYS if REGISTRY[key].tail != "two-sided"])
def test_the_other_side_does_not_count(key: str) -> None:
    model = null_for(64, 16)
    values = {name: np.array([model.quantile(name, 0.5)]) for name in NULL_KEYS}
    values[key] = np.array([0.0 if REGISTRY[key].tail == "upper" else 1e3])
    assert not model.beyond(values, n_heads=1).any()


def test_a_head_without_a_profile_is_not_beyond() -> None:
    assert not null_for(64, 16).beyond({key: np.full(2, np.nan) for key in NULL_KEYS}, n_heads=2).any()


def test_simulation_is_seeded_and_leaves_global_random_states_alone() -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, again, other = (null.simulate(20, 4, 50, seed)["b"] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(null, "sample_size", lambda n: 60)
    null_for.cache_clear()
    yield tmp_path / "cache"
    null_for.cache_clear()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    simulate = null.simulate
    monkeypatch.setattr(null, "simulate", lambda *args: (calls.append(1), simulate(*args))[1])
    return calls


def test_a_null_is_simulated_once_and_read_back_as_it_was(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    first = null_for(20, 4)
    null_for.cache_clear()
    second = null_for(20, 4)
    assert len(calls) == 1
    assert all(np.array_equal(first.draws[key], second.draws[key]) for key in NULL_KEYS)
    assert [path.suffix for path in own_cache.iterdir()] == [".npz"]


@pytest.mark.parametrize("damage", [b"", b"not a zip", b"PK\x03\x04 broken"])
def test_a_damaged_cache_is_simulated_anew(own_cache: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    calls = counted(monkeypatch)
    null_for(20, 4)
    next(own_cache.iterdir()).write_bytes(damage)
    null_for.cache_clear()
    null_for(20, 4)
    assert len(calls) == 2


def test_pickled_arrays_in_the_cache_are_not_loaded(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    null_for(20, 4)
    path = next(own_cache.iterdir())
    with path.open("wb") as file:
        np.savez(file, **{key: np.array([object()] * 60) for key in NULL_KEYS})
    null_for.cache_clear()
    null_for(20, 4)
    assert len(calls) == 2


def test_a_cache_that_cannot_be_written_is_done_without(own_cache: Path) -> None:
    own_cache.parent.mkdir(exist_ok=True)
    own_cache.write_text("a file where the directory would be")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert null_for(20, 4).draws["a"].shape == (60,)
