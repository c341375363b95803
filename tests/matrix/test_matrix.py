"""Everything that a Trainer does, with both monitors: it ends, nothing in it changes, each due step is stored once."""

import pytest
import torch
from cells import CELLS
from matrix_fit import expected_steps
from matrix_page import PAGE, row, rows

WRITTEN = rows(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _global_settings_put_back():
    yield
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()


@pytest.mark.timeout(400)  # processes are spawned in one of them
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.option)
def test_training(cell, tmp_path):
    seen = cell.run(tmp_path, cell)
    assert (seen.global_steps[-1] if seen.global_steps else 0) == cell.last
    assert seen.identical
    assert seen.runs == cell.runs
    if cell.runs:
        assert seen.steps == {name: expected_steps(seen.global_steps, every) for name, every in cell.every.items()}
        assert seen.once
        assert seen.norms_agree
        assert (seen.status, seen.heads) == (cell.status, cell.heads)
    assert row(cell, seen) in WRITTEN, "docs/matrix.md says something else: python tests/matrix/matrix_page.py"


def test_the_page_has_every_cell_and_no_other():
    assert [line.split(" | ")[0] for line in WRITTEN] == [f"| {cell.option}" for cell in CELLS]
