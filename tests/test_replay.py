"""A trajectory from checkpoints: the same store as a live run, in any order, in parallel, gone on with after a stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import headwatch
from headwatch.checkpoints import CheckpointError
from headwatch.cli import build_app
from headwatch.posthoc import Reading
from headwatch.replay import Item, items_of, replay

STEPS = (0, 10, 20, 40)
READING = Reading(n_heads=2, null=False)


@pytest.fixture
def checkpoints(tmp_path: Path) -> list[Path]:
    """Four checkpoints of one small model whose heads walk."""
    generator = torch.Generator().manual_seed(0)
    start, pace = ({f"attn.{x}_proj.weight": torch.randn(8, 16, generator=generator) for x in "qk"} for _ in range(2))
    paths = []
    for step in STEPS:
        state = {name: start[name] + step / 40 * pace[name] for name in start}
        paths.append(tmp_path / "series" / f"step={step}.safetensors")
        paths[-1].parent.mkdir(exist_ok=True)
        save_file(state, paths[-1])
    return paths


def pi(rows: list[dict[str, float]]) -> np.ndarray:
    return np.array([[row[key] for key in "abcd"] for row in rows])


def assert_is_the_trajectory(directory: Path) -> None:
    """Drift and path length as sums over the stored profiles themselves."""
    run = headwatch.load(directory)
    assert run.complete
    assert run.steps() == list(STEPS)
    for head in (0, 1):
        rows = [row for row in run.profile.to_pylist() if row["head"] == head]
        points = pi(rows)
        steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
        np.testing.assert_allclose([row["drift"] for row in rows], np.linalg.norm(points - points[0], axis=1))
        np.testing.assert_allclose([row["path_length"] for row in rows], np.concatenate([[0], np.cumsum(steps)]))
        assert rows[-1]["drift"] > 0.01


def test_a_series_becomes_a_run(checkpoints: list[Path], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    directory = replay(items_of(checkpoints), tmp_path / "run", READING, progress=lambda *at: seen.append(at))
    assert_is_the_trajectory(directory)
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    info = headwatch.load(directory).info
    assert info["checkpoints"] == {str(step): f"step={step}.safetensors" for step in STEPS}
    assert info["model"]["n_heads"] == 2


def test_a_directory_stands_for_its_checkpoints_in_order_of_step(checkpoints: list[Path]) -> None:
    assert items_of([checkpoints[0].parent]) == [Item(s, p) for s, p in zip(STEPS, checkpoints, strict=True)]
    assert items_of(checkpoints[::-1]) == items_of(checkpoints)


def test_parallel_processes_give_the_same_run(checkpoints: list[Path], tmp_path: Path) -> None:
    one = replay(items_of(checkpoints), tmp_path / "one", READING)
    two = replay(items_of(checkpoints), tmp_path / "two", READING, jobs=2)
    assert_is_the_trajectory(two)
    assert headwatch.load(one).profile.equals(headwatch.load(two).profile)


class StoppedError(RuntimeError):
    pass


def test_a_stopped_replay_goes_on(checkpoints: list[Path], tmp_path: Path) -> None:
    def stop(done: int, of: int) -> None:
        if done == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        replay(items_of(checkpoints), tmp_path / "run", READING, progress=stop)
    assert headwatch.load(tmp_path / "run").info["status"] == "failed"
    for path in checkpoints[:2]:
        path.write_bytes(path.read_bytes()[:8] + path.read_bytes()[8:])  # touched, and not measured again
    seen: list[int] = []
    replay(items_of(checkpoints), tmp_path / "run", READING, progress=lambda done, of: seen.append(done))
    assert seen == [2, 3, 4]
    assert_is_the_trajectory(tmp_path / "run")


def test_an_earlier_checkpoint_that_comes_late_becomes_the_baseline(checkpoints: list[Path], tmp_path: Path) -> None:
    replay(items_of(checkpoints[1:]), tmp_path / "run", READING)
    replay(items_of(checkpoints), tmp_path / "run", READING)
    assert_is_the_trajectory(tmp_path / "run")


def test_another_way_of_reading_does_not_mix(checkpoints: list[Path], tmp_path: Path) -> None:
    replay(items_of(checkpoints[:1]), tmp_path / "run", READING)
    with pytest.raises(CheckpointError, match="other settings"):
        replay(items_of(checkpoints), tmp_path / "run", Reading(n_heads=2, null=False, include=("L00.H00",)))


def test_another_model_in_the_series_is_refused(checkpoints: list[Path], tmp_path: Path) -> None:
    save_file({f"other.{x}_proj.weight": torch.randn(8, 16) for x in "qk"}, checkpoints[2])
    with pytest.raises(CheckpointError, match=r"step=20\.safetensors has other heads"):
        replay(items_of(checkpoints), tmp_path / "run", READING)


def test_checkpoints_without_or_with_the_same_step_are_refused(checkpoints: list[Path]) -> None:
    nameless = checkpoints[0].with_name("last.safetensors")
    nameless.write_bytes(checkpoints[0].read_bytes())
    with pytest.raises(CheckpointError, match="does not tell its step"):
        items_of([nameless])
    twin = checkpoints[1].with_name("copy-step=10.safetensors")
    twin.write_bytes(checkpoints[1].read_bytes())
    with pytest.raises(CheckpointError, match="both of step 10"):
        items_of([*checkpoints, twin])


def run_cli(*arguments: str) -> str:
    result = CliRunner().invoke(build_app(), list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands(checkpoints: list[Path], tmp_path: Path) -> None:
    """Table and store of one checkpoint, with its raw weights; then the series with its report."""
    common = ("--n-heads", "2", "--no-null", "--dir", str(tmp_path))
    text = run_cli("profile", str(checkpoints[-1]), *common, "--save-weights", "--no-report")
    assert "L00.H00" in text
    assert "L00.H01" in text
    single = tmp_path / "headwatch" / "step=40"
    assert headwatch.load(single).steps() == [40]
    assert (single / "profile_weights" / "step=000000040.safetensors").is_file()
    text = run_cli("replay", str(checkpoints[0].parent), *common)
    assert "4 checkpoints, steps 0 to 40" in text
    assert_is_the_trajectory(tmp_path / "headwatch" / "series")
    assert (tmp_path / "headwatch" / "series" / "report.html").is_file()


def test_profile_measures_anew_when_the_model_changed(checkpoints: list[Path], tmp_path: Path) -> None:
    model = tmp_path / "mine.safetensors"
    common = ("--n-heads", "2", "--no-null", "--no-report", "--dir", str(tmp_path))
    found = []
    for source in (checkpoints[0], checkpoints[-1]):
        model.write_bytes(source.read_bytes())
        run_cli("profile", str(model), *common)
        found.append(headwatch.load(tmp_path / "headwatch" / "mine").profile["b"].to_pylist())
    assert found[0] != found[1]
