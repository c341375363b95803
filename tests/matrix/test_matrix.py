"""Everything that a Trainer does, with both monitors: it ends, nothing in it changes, each due step is stored once."""

import pytest
import torch
from cells import CELLS
from matrix_fit import expected_steps


@pytest.fixture(autouse=True)
def _one_test_at_a_time():
    yield
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.option)
def test_training(cell, tmp_path):
    seen = cell.run(tmp_path, cell)
    assert seen.global_steps[-1] == cell.last
    assert seen.identical
    assert seen.runs == 1
    assert seen.steps == {name: expected_steps(seen.global_steps, every) for name, every in cell.every.items()}
    assert seen.once
    assert (seen.status, seen.heads) == (cell.status, cell.heads)
