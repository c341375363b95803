"""However training ends, what was measured is on disk, and the worker holds nobody up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headwatch

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    root = tmp_path_factory.mktemp("endings")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    subprocess.run(
        [sys.executable, str(HERE / "endings.py"), str(root)],
        env=environment, timeout=280, capture_output=True, check=True,
    )  # fmt: skip
    return root


def result(root, name):
    return json.loads((root / name / "result.json").read_text())


@pytest.mark.parametrize("name", ["exception", "interrupt", "terminate"])
def test_the_run_is_closed_as_failed_with_all_its_snapshots(ended, name):
    assert result(ended, name)["code"] == {"exception": 70, "interrupt": 1, "terminate": 0}[name]  # as without us
    run = headwatch.load(ended / name)
    assert run.info["status"] == "failed"
    assert not run.is_live
    steps = run.steps()
    assert steps[:4] == [0, 1, 2, 4]
    assert steps[3:] == list(range(4, steps[-1] + 1, 4))
    assert run.to_pandas().groupby("step").size().eq(12).all()
    assert not (run.path / ".tmp").exists()


def test_an_exception_reaches_the_user_unchanged(ended):
    assert "RuntimeError: boom" in (ended / "exception" / "error.txt").read_text().splitlines()[-1]


def test_a_worker_that_does_not_come_back_is_left_behind(ended):
    assert result(ended, "stuck")["code"] == 1  # as Lightning ends an interrupted training
    assert result(ended, "stuck")["seconds"] < 40
    run = headwatch.load(ended / "stuck")
    assert run.steps() == [0, 1]
    assert not run.is_live
