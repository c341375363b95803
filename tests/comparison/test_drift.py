"""Drift statistics against values worked out by hand."""

import numpy as np
import pytest

from headwatch.comparison.drift import COLUMNS, drift_table, parity_changes, path_length
from headwatch.comparison.trajectories import at, common_grid, from_table, union_grid
from headwatch.snapshot import heads_table

STEPS = [0, 10, 20, 30]


def one_head(**columns):
    """A profile table of one head over four snapshots, and another head at its side that never moves."""
    base = {
        key: [0.5, 0.5, 0.5, 0.5] if key in "ab" else [0.0] * 4
        for key in COLUMNS
        if key not in ("beyond_null", "left_null_step")
    }
    base |= {"stable_rank": [9.0] * 4, "beyond_null": [False] * 4, "left_null_step": [None] * 4}
    moving = base | columns
    rows = {key: [v for pair in zip(moving[key], base[key], strict=True) for v in pair] for key in base}
    size = {
        "step": np.repeat(STEPS, 2),
        "layer": [0] * 8,
        "head": [0, 1] * 4,
        "module": ["m"] * 8,
        "displacement": [0] * 8,
    }
    return from_table(heads_table("profile", size | rows), COLUMNS)


def test_distance_and_path_of_a_head_that_walks_out_and_back():
    run = one_head(a=[0.5, 0.2, 0.5, 0.2], c=[0.0, 0.3, 0.0, 0.3])
    rows = drift_table(run).to_pylist()
    side = np.sqrt(0.3**2 + 0.3**2)
    assert rows[0]["drift"] == pytest.approx(side)
    assert rows[0]["path_length"] == pytest.approx(3 * side)
    assert rows[1]["drift"] == rows[1]["path_length"] == 0
    assert (rows[0]["a_start"], rows[0]["a_end"]) == (0.5, 0.2)


def test_stable_rank_falls_below_two_at_the_first_such_snapshot():
    run = one_head(stable_rank=[9.0, 2.0, 1.99, 2.5])
    assert drift_table(run)["low_rank_step"].to_pylist() == [20, None]


def test_parity_flips_count_through_the_dead_zone():
    run = one_head(parity=[1, 0, -1, 1])
    assert drift_table(run)["parity_changes"].to_pylist() == [2, 0]
    assert parity_changes(np.array([[np.nan], [1.0], [np.nan], [-1.0]])).tolist() == [1]


def test_step_out_of_the_null_is_the_monitors_own_else_the_first_beyond():
    said = one_head(beyond_null=[False, True, True, True], left_null_step=[None, None, 20, 20])
    assert drift_table(said)["left_null_step"].to_pylist() == [20, None]
    unsaid = one_head(beyond_null=[False, True, False, True])
    assert drift_table(unsaid)["left_null_step"].to_pylist() == [10, None]


def test_a_head_without_a_profile_has_nulls_and_spoils_no_other():
    gap = [np.nan] * 4
    rows = drift_table(one_head(a=gap, b=gap, c=gap, d=gap)).to_pylist()
    assert rows[0]["drift"] is None
    assert rows[0]["path_length"] is None
    assert rows[0]["first_step"] is None
    assert rows[1]["drift"] == 0


def test_missing_snapshots_are_stepped_over():
    pi = np.full((3, 1, 4), 0.25)
    pi[1] = np.nan
    pi[2, 0, 0] = 0.35
    assert path_length(pi) == pytest.approx([0.1])


def test_displaced_rows_are_left_out():
    table = heads_table(
        "profile",
        {
            "step": [0, 0],
            "layer": [0, 0],
            "head": [0, 0],
            "module": ["m", "m"],
            "displacement": [0, 5],
            "a": [0.5, 0.9],
        },
    )
    assert from_table(table, ["a"]).values["a"].tolist() == [[0.5]]


def test_reading_between_snapshots_is_linear_and_held_at_the_ends():
    axis, values = np.array([0.0, 10.0, 30.0]), np.array([0.0, 1.0, 3.0])
    assert at(axis, values, np.array([-5.0, 5.0, 20.0, 99.0])).tolist() == [0.0, 0.5, 2.0, 3.0]


def test_a_gap_next_to_a_snapshot_does_not_spoil_it():
    assert at(np.array([0.0, 10.0]), np.array([1.0, np.nan]), np.array([0.0])).tolist() == [1.0]


def test_loss_axis_never_turns_back():
    table = heads_table(
        "profile",
        {"step": [0, 1, 2, 3], "layer": [0] * 4, "head": [0] * 4, "module": ["m"] * 4, "displacement": [0] * 4,
         "loss": [np.nan, 3.0, 3.5, 2.0], "a": [0.5, 0.4, 0.3, 0.2]},
    )  # fmt: skip
    run = from_table(table, ["a"])
    np.testing.assert_array_equal(run.axis("loss"), [np.nan, -3.0, -3.0, -2.0])
    assert at(run.axis("loss"), run.values["a"], np.array([-3.0, -2.5]))[:, 0] == pytest.approx([0.4, 0.3])


def test_grids_cover_what_all_runs_passed_or_what_any_did():
    axes = [np.array([0.0, 5.0, 10.0]), np.array([2.0, 8.0, 20.0])]
    assert common_grid(axes).tolist() == [2.0, 5.0, 8.0, 10.0]
    assert union_grid(axes).tolist() == [0.0, 2.0, 5.0, 8.0, 10.0, 20.0]
    assert common_grid([np.array([0.0, 1.0]), np.array([5.0, 6.0])]).tolist() == []
    thinned = common_grid([np.arange(1000.0)] * 2, points=10)
    assert len(thinned) == 10
    assert (thinned[0], thinned[-1]) == (0.0, 999.0)
