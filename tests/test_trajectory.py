"""Drift, path length and the step at which a head left the null."""

import numpy as np
import pyarrow as pa

from headwatch.snapshot import heads_table
from headwatch.trajectory import Trajectory, row_keys

KEYS = [(0, 0, 0), (0, 1, 0)]
M = [0.5, 0.5, 0.0, 0.0]


def walk(trajectory, profiles, beyond=None, steps=None):
    out = []
    for i, pi in enumerate(profiles):
        verdict = None if beyond is None else np.array(beyond[i])
        out.append(trajectory.update(i if steps is None else steps[i], np.array(pi), verdict))
    return out


def test_drift_is_distance_to_the_first_and_path_the_sum_of_steps():
    there, back = [0.2, 0.2, 0.6, 0.0], M
    out = walk(Trajectory(KEYS), [[M, M], [there, M], [back, M]])
    leg = np.sqrt(0.3**2 + 0.3**2 + 0.6**2)
    np.testing.assert_allclose([o["drift"][0] for o in out], [0, leg, 0], atol=1e-15)
    np.testing.assert_allclose([o["path_length"][0] for o in out], [0, leg, 2 * leg])
    np.testing.assert_allclose(out[-1]["path_length"][1], 0)


def test_a_hole_neither_moves_nor_resets_a_head():
    there, hole = [0.2, 0.2, 0.6, 0.0], [np.nan] * 4
    out = walk(Trajectory(KEYS), [[M, M], [hole, M], [there, M]])
    assert np.isnan(out[1]["drift"][0])
    np.testing.assert_allclose(out[2]["drift"][0], np.sqrt(0.54))
    np.testing.assert_allclose(out[2]["path_length"][0], np.sqrt(0.54))


def test_left_means_two_snapshots_running():
    beyond = [[False, False], [True, True], [False, True], [True, True], [True, True]]
    out = walk(Trajectory(KEYS), [[M, M]] * 5, beyond, steps=[0, 10, 20, 30, 40])
    assert np.isnan(out[3]["left_null_step"][0])
    assert out[4]["left_null_step"].tolist() == [30, 10]


def test_a_head_that_begins_outside_never_leaves():
    out = walk(Trajectory(KEYS), [[M, M]] * 3, [[True, False], [True, True], [True, True]])
    assert np.isnan(out[2]["left_null_step"][0])
    assert out[2]["left_null_step"][1] == 1


def test_restore_goes_on_where_the_store_ends():
    rng = np.random.default_rng(0)
    profiles = rng.dirichlet(np.ones(4), size=(5, 2))
    beyond = rng.random((5, 2)) > 0.4
    whole = walk(Trajectory(KEYS), profiles, beyond)
    stored = pa.concat_tables(
        heads_table(
            "profile",
            {"step": [s, s], "layer": [0, 0], "head": [0, 1], "displacement": [0, 0], "beyond_null": beyond[s]}
            | {name: profiles[s][:, i] for i, name in enumerate("abcd")},
        )
        for s in range(3)
    )
    assert row_keys(stored)[:2] == KEYS
    resumed = Trajectory(KEYS)
    resumed.restore(stored)
    for step in (3, 4):
        again = resumed.update(step, profiles[step], beyond[step])
        for name, value in again.items():
            np.testing.assert_allclose(value, whole[step][name], err_msg=name)
