"""The local store: one folder per run, one Parquet part per snapshot, written whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwatch.sinks.files import write_json, write_parquet, write_whole
from headwatch.sinks.lock import RunLock
from headwatch.sinks.parts import Part, list_parts, part_name, range_name, step_of, steps_in, steps_of
from headwatch.snapshot import Snapshot

__all__ = ["COMPACT_ABOVE", "RunStore"]

COMPACT_ABOVE = 500  # parts of one kind; below, single files do no harm
_PER_RANGE = 500


class RunStore:
    """Write side of a run directory.

    Opening it takes the directory's lock and clears what a killed run left half done.

    Args:
        path: ``<root>/headwatch/<run id>``; made if absent.
        info: what ``run.json`` says; see :meth:`update`.

    Raises:
        LockedError: another live process writes there.
        OSError: the directory cannot be written; the message names it.
    """

    def __init__(self, path: Path, info: Mapping[str, Any]) -> None:
        self.path = path
        self.info: dict[str, Any] = dict(info)
        self._scratch = path / ".tmp"
        self._lock = RunLock(path)
        self._make()
        self._tidy()

    def _make(self) -> None:
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self.update()
        except OSError as error:
            self._lock.release()
            raise OSError(
                f"headwatch cannot write its store at {self.path}: {error.strerror or error}. "
                "Give a directory that this process may write, dirpath=..., or free some space."
            ) from error

    def _tidy(self) -> None:
        for leftover in self._scratch.iterdir():
            leftover.unlink(missing_ok=True)
        for kind in self._kinds():
            self._drop_compacted_singles(self.path / kind)

    def _kinds(self) -> list[str]:
        return [d.name for d in self.path.iterdir() if d.is_dir() and list_parts(d)]

    def update(self, **changes: Any) -> None:
        """Change entries of ``run.json`` and write it."""
        self.info.update(changes)
        write_json(self.path / "run.json", self._scratch, self.info)

    def write(self, snapshot: Snapshot, name: str | None = None) -> bool:
        """Write one snapshot; a part that the step already has is replaced.

        Args:
            snapshot: what was measured.
            name: the monitor's name, "profile" or "profile-<name>"; the snapshot's kind by default.

        Returns:
            False where the store had been deleted under the live run, and was begun anew.
        """
        was_there = True
        try:
            self._write(snapshot, name or snapshot.kind)
        except FileNotFoundError:
            was_there = False
            self._lock.release()
            self._make()
            self._write(snapshot, name or snapshot.kind)
        self.heartbeat()
        return was_there

    def _write(self, snapshot: Snapshot, name: str) -> None:
        if snapshot.tokens is not None:
            self.write_table(f"{name}_tokens", snapshot.step, snapshot.tokens)
        if snapshot.summary:
            self.write_table(f"{name}_summary", snapshot.step, snapshot.summary_table())
        for ending, write in snapshot.attachments.items():
            folder, _, extension = ending.partition(".")
            target = self.path / f"{name}_{folder}" / part_name(snapshot.step, extension)
            write_whole(target, self._scratch, write)
        self.write_table(name, snapshot.step, snapshot.heads)
        if any(self.info.get(key) != value for key, value in snapshot.info.items()):
            self.update(**snapshot.info)

    def write_table(self, folder: str, step: int, table: pa.Table) -> None:
        """Write one part of a folder."""
        if not (self.path / "run.json").exists():
            raise FileNotFoundError(self.path / "run.json")
        write_parquet(self.path / folder / part_name(step), self._scratch, table)

    def heartbeat(self) -> None:
        """Keep the lock fresh for other hosts; a vanished lock is no reason to stop."""
        try:
            self._lock.heartbeat()
        except OSError:
            return

    def steps(self, kind: str) -> list[int]:
        """Steps of one kind that are on disk."""
        return steps_of(self.path / kind)

    def supersede_after(self, step: int) -> int:
        """Move everything later than ``step`` to ``superseded/``: the run goes on from an older checkpoint.

        Returns:
            Number of parts that were replaced, wholly or in part.
        """
        late = [(kind, part) for kind in self._kinds() for part in list_parts(self.path / kind) if part.last > step]
        for kind, part in late:
            self._supersede(kind, part, step)
        for path in self.path.glob("*_weights/step=*"):
            if step_of(path) > step:
                self._set_aside(path)
        return len(late)

    def _supersede(self, kind: str, part: Part, step: int) -> None:
        if part.first > step:
            self._set_aside(part.path)
            return
        target = _free_name(self.path / "superseded" / kind / part.path.name)
        table = pq.read_table(part.path)
        keep = pc.less_equal(table["step"], step)
        write_parquet(target, self._scratch, table.filter(pc.invert(keep)))
        kept = table.filter(keep)
        first, last = min(kept["step"].to_pylist()), max(kept["step"].to_pylist())
        write_parquet(part.path.with_name(range_name(first, last)), self._scratch, kept)
        part.path.unlink()

    def _set_aside(self, path: Path) -> None:
        target = _free_name(self.path / "superseded" / path.parent.name / path.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)

    def compact(self, above: int = COMPACT_ABOVE) -> None:
        """Join the parts of every kind that has more than ``above`` into few, by step range."""
        for kind in self._kinds():
            singles = [part for part in list_parts(self.path / kind) if not part.compacted]
            if len(singles) > above:
                for start in range(0, len(singles), _PER_RANGE):
                    self._join(singles[start : start + _PER_RANGE])

    def _join(self, parts: list[Part]) -> None:
        table = pa.concat_tables([pq.read_table(part.path) for part in parts], promote_options="default")
        target = parts[0].path.with_name(range_name(parts[0].first, parts[-1].last))
        write_parquet(target, self._scratch, table)
        for part in parts:  # a kill here leaves both; readers and the next open prefer the range
            part.path.unlink(missing_ok=True)

    def _drop_compacted_singles(self, directory: Path) -> None:
        parts = list_parts(directory)
        inside = {step for part in parts if part.compacted for step in steps_in(part)}
        for part in parts:
            if not part.compacted and part.first in inside:
                part.path.unlink(missing_ok=True)

    def close(self, **changes: Any) -> None:
        """Compact, write the last word into ``run.json``, give the lock back, the last even when the rest fails."""
        try:
            self._finish(changes)
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._lock.release()

    def _finish(self, changes: dict[str, Any]) -> None:
        try:
            self.compact()
        finally:
            self.update(**changes)


def _free_name(path: Path) -> Path:
    count = 0
    while path.exists():
        count += 1
        path = path.with_name(f"{path.name.split('.')[0]}.{count}{path.suffix}")
    return path
