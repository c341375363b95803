"""Plotly figures: every drawn number is the table's, and the slider holds every snapshot."""

import numpy as np
import pytest

from synthetic import make_profile_table, make_run, make_signature_table

pytest.importorskip("plotly")

from headwatch.figures import drift_against_loss, heat_map, profile_against_signature, simplex_3d, trajectories
from headwatch.figures.grid import HeadGrid
from headwatch.figures.simplex import SOLID
from headwatch.run import load

STEPS = (0, 5, 10, 20)


@pytest.fixture(scope="module")
def table():
    return make_profile_table(2, 3, steps=STEPS)


def heads(traces) -> np.ndarray:
    return np.concatenate([np.stack([t.x, t.y, t.z], -1) for t in traces if t.mode == "markers"])


@pytest.mark.parametrize("colour_by", ["type", "layer"])
def test_simplex_has_a_frame_per_snapshot_with_heads_in_place(table, colour_by):
    figure = simplex_3d(table, colour_by=colour_by)
    assert [frame.name for frame in figure.frames] == [str(step) for step in STEPS]
    assert [step.label for step in figure.layout.sliders[0].steps] == [str(step) for step in STEPS]
    for s, frame in enumerate(figure.frames):
        profiles = np.stack([table[key].to_numpy() for key in "abcd"], -1).reshape(4, 6, 4)[s]
        expected = profiles @ SOLID
        np.testing.assert_allclose(np.sort(heads(frame.data), axis=0), np.sort(expected, axis=0))
    red = next(t for t in figure.data if t.name and t.name.startswith("Θ"))
    np.testing.assert_allclose(np.stack([red.x, red.y, red.z], -1), [[-1, 1, -1], [1, 0, 0], [-1, -1, 1]])


def test_frames_have_as_many_traces_at_every_step(table):
    figure = simplex_3d(table)
    assert {len(frame.data) for frame in figure.frames} == {len(figure.frames[0].traces)}


def test_trajectories_are_the_columns_of_the_heads(table):
    figure = trajectories(table, "pairing", layers=[1])
    assert len(figure.data) == 3
    expected = table["pairing"].to_numpy().reshape(4, 6)[:, 4]
    np.testing.assert_array_equal(figure.data[1].y, expected)
    assert [line.showlegend for line in figure.data] == [True, False, False]


def test_heat_map_is_layer_by_head_at_the_snapshot_before(table):
    figure = heat_map(table, "theta_position", step=19)
    np.testing.assert_array_equal(figure.data[0].z, table["theta_position"].to_numpy().reshape(4, 2, 3)[2])
    assert "step 10" in figure.layout.title.text
    assert figure.data[0].zmin == -figure.data[0].zmax


def test_drift_against_loss_leaves_out_snapshots_without_loss(table):
    figure = drift_against_loss(table)
    drift = table["drift"].to_numpy().reshape(4, 6)
    np.testing.assert_allclose(figure.data[0].y, np.median(drift, axis=1)[1:])
    np.testing.assert_array_equal(figure.data[0].customdata, STEPS[1:])


def test_profile_against_signature_joins_by_head(table):
    signature = make_signature_table(2, 2, steps=STEPS)  # the third head of each layer has none
    figure = profile_against_signature(table, signature)
    drawn = {name: (x, y) for t in figure.data for name, x, y in zip(t.text, t.x, t.y, strict=True)}
    assert sorted(drawn) == ["L00.H00", "L00.H01", "L01.H00", "L01.H01"]
    expected = HeadGrid.of(signature).matrix("n_eff")[-1, 2], HeadGrid.of(table).matrix("stable_rank")[-1, 3]
    assert drawn["L01.H00"] == pytest.approx(expected)


def test_a_run_will_do_as_a_source(tmp_path):
    run = load(make_run(tmp_path / "r", 2, 2))
    assert len(trajectories(run, "n_eff").data) == 4
    assert sum(len(t.x) for t in profile_against_signature(run).data) == 4


def test_what_cannot_be_drawn_is_said(table, tmp_path):
    with pytest.raises(ValueError, match="colour_by: expected 'type' or 'layer'"):
        simplex_3d(table, colour_by="rainbow")
    with pytest.raises(ValueError, match="metric: unknown 'rank'"):
        trajectories(table, "rank")
    with pytest.raises(ValueError, match="no snapshot at or before -1; the first is 0"):
        heat_map(table, step=-1)
    with pytest.raises(ValueError, match="no signature snapshots"):
        trajectories(load(make_run(tmp_path / "r", 1, 1, signatures=False)), "n_eff")
