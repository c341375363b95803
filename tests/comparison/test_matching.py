"""Matching of heads: a known permutation comes back, independent runs do not match more often than stated."""

import itertools

import numpy as np
import pytest

from headwatch.comparison.assignment import assign, distances
from headwatch.comparison.exchange import Deal, p_value, smallest_p
from headwatch.comparison.features import trajectory_features
from headwatch.comparison.matching import Candidate, match_runs


def trajectories(rng, n_heads, grid=6):
    """Heads that walk from a common start to ends of their own, shape (heads, grid, 5)."""
    ends = rng.normal(size=(n_heads, 1, 5))
    return ends * np.linspace(0, 1, grid)[None, :, None] + rng.normal(0, 0.03, (n_heads, grid, 5))


def candidate(features, seed, n_layers, shape="same"):
    size = len(features) // n_layers
    return Candidate(shape, seed, {i: np.arange(i * size, (i + 1) * size) for i in range(n_layers)}, features)


def shuffled(rng, features, n_layers, noise=0.1):
    size = len(features) // n_layers
    order = np.concatenate([i * size + rng.permutation(size) for i in range(n_layers)])
    return features[order] + rng.normal(0, noise, features.shape), order


@pytest.mark.parametrize(("n_layers", "n_heads"), [(3, 8), (4, 4), (1, 12)])
def test_a_known_permutation_is_recovered(n_layers, n_heads):
    rng = np.random.default_rng(n_heads)
    ours = trajectories(rng, n_layers * n_heads)
    theirs, order = shuffled(rng, ours, n_layers)
    matching = match_runs([candidate(ours, "0", n_layers), candidate(theirs, "1", n_layers)])
    assert [m.partner for m in matching.matches] == order[[m.head for m in matching.matches]].tolist()
    assert {m.verdict for m in matching.matches} == {"match"}
    assert all(m.margin > m.cost for m in matching.matches)


def test_a_head_without_a_twin_in_a_matched_layer_is_no_match():
    rng = np.random.default_rng(5)
    ours = trajectories(rng, 12)
    theirs, _ = shuffled(rng, ours, 1, noise=0.02)
    theirs[0] = -4 * theirs[0]
    matching = match_runs([candidate(ours, "0", 1), candidate(theirs, "1", 1)])
    verdicts = {m.head: m.verdict for m in matching.matches}
    assert verdicts.pop(0) == "no match"
    assert set(verdicts.values()) == {"match"}


def test_independent_runs_match_no_more_often_than_stated():
    rng = np.random.default_rng(11)
    trials = 200
    hits = 0
    for trial in range(trials):
        runs = [candidate(trajectories(rng, 7), str(i), 1) for i in range(2)]
        hits += any(m.verdict == "match" for m in match_runs(runs, permutations=99, seed=trial).matches)
    assert hits <= 0.05 * trials + 3 * np.sqrt(0.05 * 0.95 * trials)


def test_p_values_of_independent_runs_are_uniform():
    rng = np.random.default_rng(2)
    p = []
    for _ in range(300):
        pool = trajectories(rng, 12, grid=3)
        p.append(p_value([Deal(distances(pool, pool), [6, 6])], 99, rng)[0])
    for level in (0.1, 0.25, 0.5, 0.75, 0.9):
        share = np.mean(np.array(p) <= level)
        assert abs(share - level) < 3.5 * np.sqrt(level * (1 - level) / len(p)) + 0.01


def test_p_counts_every_deal_as_brute_force_does():
    rng = np.random.default_rng(4)
    pool = trajectories(rng, 6, grid=2)
    cost = distances(pool, pool)

    def best(first, second):
        return min(
            sum(cost[i, j] for i, j in zip(first, other, strict=True)) for other in itertools.permutations(second)
        )

    splits = [(set(c), set(range(6)) - set(c)) for c in itertools.combinations(range(6), 3)]
    totals = np.array([best(sorted(first), sorted(second)) for first, second in splits])
    exact = np.mean(totals <= best([0, 1, 2], [3, 4, 5]) + 1e-9)
    p, _ = p_value([Deal(cost, [3, 3])], 4000, rng)
    assert p == pytest.approx(exact, abs=0.03)


def test_perfect_twins_reach_the_smallest_p_and_no_less():
    rng = np.random.default_rng(0)
    ours = trajectories(rng, 4)
    pool = np.concatenate([ours, ours])
    p, _ = p_value([Deal(distances(pool, pool), [4, 4])], 4000, rng)
    assert smallest_p([4]) == pytest.approx(16 / 70)
    assert p == pytest.approx(16 / 70, abs=0.03)
    assert smallest_p([2], runs=3) == pytest.approx(6**2 * 2**3 / 720)


def test_few_heads_are_tested_with_other_layers_or_said_to_be_too_few():
    rng = np.random.default_rng(1)
    ours = trajectories(rng, 16)
    theirs, _ = shuffled(rng, ours, 4)
    matches = match_runs([candidate(ours, "0", 4), candidate(theirs, "1", 4)]).matches
    assert {m.scope for m in matches} == {"all 4 layers together"}
    two = match_runs([candidate(ours[:2], "0", 1), candidate(theirs[:2], "1", 1)]).matches
    assert {m.verdict for m in two} == {"too few heads to tell"}
    many = [candidate(shuffled(rng, ours[:4], 1)[0], str(i), 1) for i in range(5)]
    assert {m.scope for m in match_runs(many).matches} == {"this layer, 5 runs together"}


def test_same_seed_goes_by_index_and_other_shapes_stay_alone():
    rng = np.random.default_rng(3)
    ours = trajectories(rng, 8)
    runs = [
        candidate(ours, "7", 1),
        candidate(ours[::-1], "7", 1),
        candidate(trajectories(rng, 4), "7", 1, shape="other"),
    ]
    matching = match_runs(runs)
    assert matching.alone == [2]
    assert [(m.head, m.partner, m.by, m.verdict) for m in matching.matches] == [
        (i, i, "index", "same seed") for i in range(8)
    ]
    assert matching.partners(1, 8).tolist() == list(range(8))


def test_unknown_seeds_are_taken_to_differ():
    rng = np.random.default_rng(3)
    runs = [candidate(trajectories(rng, 8), None, 1) for _ in range(2)]
    assert {m.by for m in match_runs(runs).matches} == {"assignment"}


def test_margin_is_the_price_of_doing_without_the_pair():
    rng = np.random.default_rng(9)
    cost = rng.uniform(size=(4, 4))
    orders = list(itertools.permutations(range(4)))
    totals = np.array([sum(cost[i, order[i]] for i in range(4)) for order in orders])
    best = orders[totals.argmin()]
    found = assign(cost)
    assert tuple(found.partner) == best
    for i in range(4):
        without = min(total for order, total in zip(orders, totals, strict=True) if order[i] != best[i])
        assert found.margin[i] == pytest.approx(without - totals.min())


def test_a_head_with_a_gap_is_left_unmatched():
    rng = np.random.default_rng(6)
    ours, theirs = trajectories(rng, 8), trajectories(rng, 8)
    theirs[2, 1] = np.nan
    matches = match_runs([candidate(ours, "0", 1), candidate(theirs, "1", 1)]).matches
    assert [m.head for m in matches if m.partner < 0] == [2]
    assert sum(m.partner >= 0 for m in matches) == 7


def test_both_parts_of_a_trajectory_weigh_the_same():
    rng = np.random.default_rng(8)
    pi, rank = (
        [rng.dirichlet([9, 9, 1, 1], (5, 6)) for _ in range(2)],
        [np.exp(rng.normal(2, 1, (5, 6))) for _ in range(2)],
    )
    pooled = np.concatenate(trajectory_features(pi, rank)).swapaxes(0, 1)
    spread = ((pooled - pooled.mean(1, keepdims=True)) ** 2).mean((0, 1))
    assert spread[:4].sum() == pytest.approx(1)
    assert spread[4] == pytest.approx(1)
