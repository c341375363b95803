"""Many checkpoints of one model, one trajectory: profiles of each, in parallel, in a store like that of a live run."""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from headwatch.checkpoints import CheckpointError, is_checkpoint, open_checkpoint
from headwatch.info import run_info
from headwatch.null import null_for
from headwatch.posthoc import PostHoc, Reading, measure_checkpoint, open_model
from headwatch.run import Run, load
from headwatch.sinks.parts import part_name
from headwatch.sinks.store import RunStore
from headwatch.snapshot import Snapshot
from headwatch.trajectory import Trajectory, row_keys

__all__ = ["Item", "items_of", "replay"]

Progress = Callable[[int, int], None]  # done, of how many


@dataclass(frozen=True)
class Item:
    """One checkpoint and its place on the run's axis of steps."""

    step: int
    path: Path


def items_of(paths: Sequence[Path]) -> list[Item]:
    """The checkpoints in order of step; a directory that is none itself stands for those that it holds.

    Raises:
        CheckpointError: one has no step, or two have the same.
    """
    found = [checkpoint for path in paths for checkpoint in _expanded(path)]
    items = sorted((Item(_step(path), path) for path in found), key=lambda item: item.step)
    for first, second in itertools.pairwise(items):
        if first.step == second.step:
            raise CheckpointError(f"{first.path} and {second.path} are both of step {first.step}; leave one out.")
    return items


def _expanded(path: Path) -> list[Path]:
    if not path.is_dir() or is_checkpoint(path):
        return [path]
    inside = [child for child in sorted(path.iterdir()) if is_checkpoint(child)]
    if not inside:
        raise CheckpointError(f"{path} is no checkpoint and holds none.")
    return inside


def _step(path: Path) -> int:
    step = open_checkpoint(path).step
    if step is None:
        raise CheckpointError(
            f"{path} does not tell its step, neither inside nor by name. Name it like step=1000.ckpt, checkpoint-1000."
        )
    return step


def replay(
    items: Sequence[Item],
    directory: Path,
    reading: Reading,
    *,
    name: str = "",
    jobs: int = 1,
    again: bool = False,
    progress: Progress = lambda done, of: None,
) -> Path:
    """Measure every checkpoint that the store does not have yet, then drift from the first.

    Args:
        items: the checkpoints; all of one model.
        directory: the run's directory; an earlier, interrupted replay there is gone on with.
        reading: how to read them.
        name: what people call the run.
        jobs: processes.
        again: measure steps that the store has once more.
        progress: called after every checkpoint.

    Returns:
        ``directory``.

    Raises:
        CheckpointError: a checkpoint cannot be read, or its heads are not those of the first.
    """
    first = open_model(items[0].path, reading)
    if not again:
        _refuse_mixture(directory, _settings(reading))
    store = RunStore(directory, _info(first, items, directory, reading, name or directory.name))
    try:
        _measure_missing(items, store, reading, jobs, progress, first, again)
        _retrace(store, load(directory))
    except BaseException:
        store.close(status="failed")
        raise
    store.close(status="finished")
    return directory


def _settings(reading: Reading) -> dict[str, Any]:
    selected = {"include": list(reading.include), "exclude": list(reading.exclude)}
    form = {"biases": reading.options.biases, "form": reading.options.flags()}
    return {"profile": {"source": "checkpoints", "null": reading.null, **form, **selected}}


def _refuse_mixture(directory: Path, settings: dict[str, Any]) -> None:
    """A store holds one way of reading."""
    file = directory / "run.json"
    if file.is_file() and json.loads(file.read_text(encoding="utf-8")).get("settings") != settings:
        raise CheckpointError(f"{directory} was measured with other settings; choose another --name or delete it.")


def _info(first: PostHoc, items: Sequence[Item], directory: Path, reading: Reading, name: str) -> dict[str, Any]:
    """``run.json``, with the checkpoints that the numbers come from."""
    known = first.checkpoint.config
    config = {key: value for key, value in known.items() if isinstance(value, (int, float, str))}
    info = run_info(directory.name, name, first.model, first.head_map, settings=_settings(reading), config=config)
    architecture = known.get("architectures") or ["checkpoint"]
    info["model"]["class"] = str(architecture[0])
    info["checkpoints"] = {str(item.step): item.path.name for item in items}
    return info


def _shape(opened: PostHoc) -> list[tuple[str, int, int, int]]:
    return [(site.module, site.n_heads, site.d_model, site.d_head) for site in opened.head_map.sites]


def _measure_missing(
    items: Sequence[Item],
    store: RunStore,
    reading: Reading,
    jobs: int,
    progress: Progress,
    first: PostHoc,
    again: bool,
) -> None:
    known = set() if again else set(store.steps("profile"))
    missing = [item for item in items if item.step not in known]
    done = len(items) - len(missing)
    progress(done, len(items))
    if reading.null and missing:
        _simulate_nulls(first, reading)
    for snapshot in _snapshots(missing, store.path, reading, jobs, _shape(first)):
        store.write(snapshot)
        done += 1
        progress(done, len(items))


def _simulate_nulls(first: PostHoc, reading: Reading) -> None:
    """Once here, then from the cache in every process."""
    for d_model, d_head in {(site.d_model + reading.options.biases, site.d_head) for site in first.head_map.sites}:
        null_for(d_model, d_head)


def _snapshots(
    items: Sequence[Item], directory: Path, reading: Reading, jobs: int, shape: object
) -> Iterator[Snapshot]:
    calls = [(item, _with_file(reading, directory, item.step), shape) for item in items]
    if jobs == 1 or len(items) < 2:
        yield from (_one(*call) for call in calls)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(_one, *call) for call in calls]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _with_file(reading: Reading, directory: Path, step: int) -> Reading:
    if not reading.save_weights:
        return reading
    return replace(reading, weights_file=directory / "profile_weights" / part_name(step, "safetensors"))


def _one(item: Item, reading: Reading, shape: object) -> Snapshot:
    """One checkpoint; runs in a process of its own."""
    opened = open_model(item.path, reading)
    if _shape(opened) != shape:
        raise CheckpointError(f"{item.path} has other heads than the first checkpoint; replay one model at a time.")
    return measure_checkpoint(opened, item.step, reading)


def _retrace(store: RunStore, run: Run) -> None:
    """Drift, path length and the step out of the null, in order of step, whatever order the parts came in."""
    table = run.profile
    by_step = {step: table.filter(pc.equal(table["step"], step)) for step in run.steps("profile")}
    first = next(iter(by_step.values()))
    trajectory = Trajectory(row_keys(first))
    for step, rows in by_step.items():
        profile = np.stack([rows[key].to_numpy() for key in "abcd"], axis=1)
        beyond = rows["beyond_null"].fill_null(False).to_numpy()
        columns = trajectory.update(step, profile, beyond)
        store.write(Snapshot("profile", step, rows).with_heads(**columns))
