"""The grid puts every number of a table in its place."""

import numpy as np
import pyarrow as pa
import pytest

from headwatch.figures.grid import HeadGrid
from headwatch.metrics import HEAD_TYPES
from synthetic import make_profile_table


@pytest.fixture
def table() -> pa.Table:
    return make_profile_table(2, 3, steps=(0, 5, 10))


def test_a_cell_is_the_row_of_its_step_and_head(table):
    shuffled = table.take(np.random.default_rng(0).permutation(table.num_rows))
    grid = HeadGrid.of(shuffled)
    assert grid.shape == (3, 6)
    for row in table.to_pylist():
        at = grid.steps.tolist().index(row["step"]), grid.labels.index(f"L{row['layer']:02d}.H{row['head']:02d}")
        assert grid.matrix("stable_rank")[at] == row["stable_rank"]
        assert HEAD_TYPES[int(grid.matrix("head_type")[at])] == row["head_type"]


def test_a_head_that_a_snapshot_does_not_hold_is_missing(table):
    keep = ~((table["step"].to_numpy() == 5) & (table["head"].to_numpy() == 1))
    grid = HeadGrid.of(table.filter(pa.array(keep)))
    assert np.isnan(grid.matrix("a")).nonzero()[0].tolist() == [1, 1]
    assert np.isfinite(grid.per_step("time")).all()


def test_texts_of_one_snapshot(table):
    flags = [
        f"{step}/{layer}/{head}"
        for step, layer, head in zip(*(table[k].to_pylist() for k in ("step", "layer", "head")), strict=True)
    ]
    grid = HeadGrid.of(table.set_column(table.schema.get_field_index("flags"), "flags", pa.array(flags)))
    last = int(grid.steps[-1])
    assert grid.words_at("flags") == [
        f"{last}/{layer}/{head}" for layer, head in zip(grid.layer, grid.head, strict=True)
    ]
    assert grid.words_at("flags", 0)[0] == f"{int(grid.steps[0])}/0/0"


def test_other_displacements_stay_out_and_absent_ones_are_named(table):
    moved = table.set_column(6, "displacement", pa.array([4] * table.num_rows, pa.int32()))
    both = HeadGrid.of(pa.concat_tables([table, moved]))
    assert both.table.num_rows == table.num_rows
    assert HeadGrid.of(moved).displacement == 4
    with pytest.raises(ValueError, match=r"displacement 7; the table holds \[4\]"):
        HeadGrid.of(moved, 7)


def test_layers_with_fewer_heads_leave_holes(table):
    keep = ~((table["layer"].to_numpy() == 1) & (table["head"].to_numpy() == 2))
    grid = HeadGrid.of(table.filter(pa.array(keep)))
    cells = grid.layers_by_heads(grid.matrix("a")[0])
    assert cells.shape == (2, 3)
    assert np.isnan(cells).nonzero() == ([1], [2])
