"""Comparing signatures and token signals."""

import numpy as np
import pytest
from scipy import stats

from headwatch.marginal import (
    compare_signatures,
    consistency,
    dispersion,
    drift,
    drift_noise_floor,
    pearson,
    permuted_consistency,
    swapped_token_agreement,
    token_agreement,
)

RNG = np.random.default_rng(0)
LAYER = np.repeat(np.arange(4), 6)


def test_pearson_is_scipys_and_ignores_heads_that_are_nan():
    x, y = RNG.random(24), RNG.random(24)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
    x[3], y[7] = np.nan, np.inf
    kept = np.isfinite(x) & np.isfinite(y)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x[kept], y[kept]).statistic)


def test_within_layers_only_differences_inside_a_layer_count():
    between = np.array([0.0, 10.0, 20.0, 30.0])[LAYER]
    x, y = RNG.standard_normal(24), RNG.standard_normal(24)
    assert pearson(x + between, y + between) > 0.9
    inside = [v - np.array([v[i : i + 6].mean() for i in range(0, 24, 6)])[LAYER] for v in (x, y)]
    assert pearson(x + between, y + between, LAYER) == pytest.approx(stats.pearsonr(*inside).statistic)


def test_rounding_is_no_signature():
    mass = 1 + 1e-8 * RNG.standard_normal(24)  # the plain head marginal: 1 for every head
    assert np.isnan(pearson(mass, mass))
    assert np.isnan(consistency(np.stack((mass, mass))))


def test_consistency_is_the_mean_over_pairs():
    values = RNG.random((5, 24))
    expected = np.corrcoef(values)[np.triu_indices(5, 1)].mean()
    assert consistency(values) == pytest.approx(expected)
    assert np.isnan(consistency(values[:1]))
    values[2, 5] = np.nan  # a head that is empty on one document
    rest = np.delete(np.arange(24), 5)
    pairs = [
        np.corrcoef(values[i][keep], values[j][keep])[0, 1]
        for i in range(5)
        for j in range(i)
        for keep in [rest if 2 in (i, j) else np.arange(24)]
    ]
    assert consistency(values) == pytest.approx(np.mean(pairs))


def test_permuted_heads_agree_by_chance_only():
    values = RNG.random(96) + 0.05 * RNG.standard_normal((48, 96))
    assert consistency(values) > 0.9
    assert abs(permuted_consistency(values, repeats=3)) < 0.02


def test_consistency_without_dispersion_is_told_apart():
    fixed = 1 + 1e-3 * RNG.standard_normal(24)
    values = fixed + 1e-5 * RNG.standard_normal((4, 24))
    assert consistency(values) > 0.9
    assert dispersion(values.mean(0)) < 2e-3


def test_noise_floor_is_the_drift_of_two_samples_of_documents():
    heads, D, signal, noise = 4000, 8, 1.0, 0.7
    z = signal * RNG.standard_normal(heads)
    first, second = (z + noise * RNG.standard_normal((D, heads)) for _ in range(2))
    r = signal**2 / (signal**2 + noise**2)
    assert consistency(first) == pytest.approx(r, abs=0.03)
    assert drift(first.mean(0), second.mean(0)) == pytest.approx(drift_noise_floor(D, r), rel=0.15)


def test_one_document_that_says_nothing_has_a_floor_of_one():
    assert drift_noise_floor(8, 0.0) == 1
    assert drift_noise_floor(8, 1.0) == pytest.approx(0)


def test_signatures_of_two_runs_side_by_side():
    z = RNG.standard_normal(24)
    a, b = (z + 0.1 * RNG.standard_normal((6, 24)) for _ in range(2))
    found = compare_signatures(a, b, LAYER)
    assert found.pearson > 0.95
    assert found.within_layer > 0.9
    assert found.noise_floor < 0.01
    other = compare_signatures(a, RNG.standard_normal((6, 24)), LAYER)
    assert abs(other.pearson) < 0.6
    assert np.isnan(compare_signatures(a.mean(0), b.mean(0), LAYER).noise_floor)


def test_models_of_different_shape_are_refused():
    with pytest.raises(ValueError, match=r"found 24, 23 and 24; compare models of the same shape"):
        compare_signatures(RNG.random(24), RNG.random(23), LAYER)


def test_token_signals_that_share_position_alone_do_not_agree():
    p = np.arange(1, 257)
    trend = 5 / p + p / 100
    x, y = (trend + 0.1 * RNG.standard_normal(256) for _ in range(2))
    assert stats.spearmanr(x[4:-16], y[4:-16]).statistic > 0.9
    assert abs(token_agreement(x, y)) < 0.2
    assert abs(swapped_token_agreement([x, x + 1], [y, y + 1])) < 0.2


def test_token_signals_that_share_tokens_agree():
    p = np.arange(1, 257)
    tokens = RNG.standard_normal((3, 256))
    x = tokens + 0.3 * RNG.standard_normal((3, 256)) + p / 50
    y = tokens + 0.3 * RNG.standard_normal((3, 256)) - p / 50
    assert all(token_agreement(a, b) > 0.8 for a, b in zip(x, y, strict=True))
    assert swapped_token_agreement(x, y) > 0.8


def test_ends_padding_and_ignored_keys_are_dropped():
    x = RNG.standard_normal(60)
    y = x.copy()
    x[:4], y[-16:] = 1e6 * RNG.standard_normal(4), 1e6 * RNG.standard_normal(16)
    assert token_agreement(x, y) == pytest.approx(1)
    padded = [np.concatenate((np.full(7, np.nan), v)) for v in (x, y)]
    assert token_agreement(*padded) == pytest.approx(1)
    kept = np.ones(60, dtype=bool)
    kept[20] = False
    y[20] = 1e9
    assert token_agreement(x, y, kept=kept) == pytest.approx(1)
    assert np.isnan(token_agreement(x[:20], y[:20]))
