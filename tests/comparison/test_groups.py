"""Group tests and corrections against values worked out by hand."""

import itertools

import numpy as np
import pytest

from headwatch.comparison.config import config_of, differences, group_labels, groups_but_for_seeds, seed_of
from headwatch.comparison.groups import group_test, labellings
from headwatch.comparison.testing import benjamini_hochberg

P = np.array([0.01, 0.02, 0.03, 0.04, 0.05])


def test_benjamini_hochberg_by_hand():
    assert benjamini_hochberg(P) == pytest.approx([0.05] * 5)
    assert benjamini_hochberg(np.array([0.5, 0.001, 0.04])) == pytest.approx([0.5, 0.003, 0.06])


def test_no_test_is_not_counted():
    adjusted = benjamini_hochberg(np.array([0.02, np.nan, 0.9]))
    assert adjusted[0] == pytest.approx(0.04)
    assert np.isnan(adjusted[1])


def test_three_against_three_is_counted_exactly():
    values = np.array([[1.0], [2.0], [3.0], [11.0], [12.0], [13.0]])
    test = group_test(values, list("aaabbb"))
    assert test.exact
    assert test.n_labellings == 20
    assert test.p[0] == pytest.approx(2 / 20)
    assert test.smallest_p == pytest.approx(2 / 20)
    assert test.means[:, 0].tolist() == [2.0, 12.0]


def test_exact_p_equals_brute_force_over_group_members():
    rng = np.random.default_rng(0)
    values = rng.normal(size=7)
    test = group_test(values[:, None], list("aaabbbb"))
    gaps = [
        abs(values[list(c)].mean() - np.delete(values, list(c)).mean()) for c in itertools.combinations(range(7), 3)
    ]
    assert test.p[0] == pytest.approx(np.mean(np.array(gaps) >= gaps[0] - 1e-12))
    assert test.smallest_p == pytest.approx(1 / 35)


def test_p_is_uniform_when_groups_do_not_differ():
    rng = np.random.default_rng(1)
    p = group_test(rng.normal(size=(8, 4000)), list("aaaabbbb")).p
    for level in (0.1, 0.3, 0.5, 0.8):
        assert np.mean(p <= level) == pytest.approx(level, abs=0.04)


def test_many_runs_are_sampled_and_never_reach_zero():
    values = np.concatenate([np.zeros(15), np.ones(15)])[:, None]
    test = group_test(values, ["a"] * 15 + ["b"] * 15, permutations=199)
    assert not test.exact
    assert test.p[0] == pytest.approx(1 / 200)
    assert test.smallest_p == pytest.approx(1 / 200)


def test_a_run_without_the_number_is_left_out_of_that_test():
    values = np.array([[1.0, 1.0], [2.0, np.nan], [11.0, 11.0], [12.0, 12.0]])
    test = group_test(values, list("aabb"))
    assert test.p[0] == pytest.approx(2 / 6)
    assert test.p[1] == pytest.approx(1 / 3)
    assert test.means[0, 1] == 1.0


def test_one_run_per_group_or_one_group_has_no_test():
    assert group_test(np.array([[1.0], [2.0]]), list("ab")).p.tolist() == [1.0]
    assert np.isnan(group_test(np.array([[1.0], [2.0]]), list("aa")).p).all()


def test_labellings_are_distinct_and_complete():
    seen = list(labellings([0, 0, 1, 2]))
    assert len(seen) == len(set(seen)) == 12


CONFIGS = [{"optimizer.lr": "0.1", "seed": "0", "data.lr": "1"}, {"optimizer.lr": "0.2", "seed": "1"}]


def test_differences_hold_only_what_differs():
    table = differences([{"a": "1", "b": "2"}, {"a": "1", "b": "3"}, {"a": "1"}], ["x", "y", "z"])
    assert table.to_pylist() == [{"key": "b", "x": "2", "y": "3", "z": None}]


def test_config_holds_the_models_shape():
    info = {"model": {"n_layers": 4}, "config": {"optimizer": {"lr": 1e-3}}}
    assert config_of(info) == {"model.n_layers": "4", "optimizer.lr": "0.001"}


def test_groups_by_whole_key_or_by_its_only_ending():
    assert group_labels(CONFIGS, "optimizer.lr") == ["0.1", "0.2"]
    assert group_labels(CONFIGS, "seed") == ["0", "1"]
    with pytest.raises(ValueError, match=r"'lr' could be any of data\.lr, optimizer\.lr"):
        group_labels(CONFIGS, "lr")
    with pytest.raises(ValueError, match=r"no run has the key 'depth'.*optimizer\.lr"):
        group_labels(CONFIGS, "depth")
    assert group_labels(CONFIGS, "data.lr") == ["1", "(not set)"]
    twice = [{"hparams.lr": "1", "optimizer.lr": "1"}, {"hparams.lr": "2", "optimizer.lr": "2"}]
    assert group_labels(twice, "lr") == ["1", "2"]
    assert groups_but_for_seeds(twice) == ["hparams.lr=1", "hparams.lr=2"]


def test_runs_of_one_configuration_are_one_group_whatever_their_seeds():
    assert groups_but_for_seeds([{"seed": "1", "lr": "1"}, {"seed": "2", "lr": "1"}]) == ["all runs"] * 2


def test_seed_is_found_at_any_depth():
    assert seed_of({"data.seed": "4", "lr": "1"}) == "4"
    assert seed_of({"speed": "4", "seed": "null"}) is None
