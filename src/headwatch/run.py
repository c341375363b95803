"""The read side of the store: a run, finished or still going."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwatch import tables
from headwatch.sinks.lock import RunLock
from headwatch.sinks.parts import Part, list_parts, steps_of
from headwatch.snapshot import SCHEMA_VERSION, SUMMARY_SCHEMA, TOKENS_SCHEMA, profile_schema, signature_schema

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = ["Run", "StoreError", "find_runs", "load"]

_RETRIES = 3  # a listing may race with a compaction
_KINDS = (
    "profile",
    "signature",
    *(f"{kind}_{of}" for kind in ("profile", "signature") for of in ("summary", "tokens")),
)
_FOLDER = re.compile(r"(profile|signature)(-.+)?(_summary|_tokens)?")  # "-": a monitor with a name of its own


class StoreError(ValueError):
    """A run cannot be read; the message says why and what to do."""


def load(path: str | Path) -> Run:
    """Open a run for reading; it may still be going.

    Args:
        path: the run's directory, or a directory that holds exactly one run.

    Raises:
        StoreError: no run there, several runs, a broken ``run.json``, or a store of a later version.
    """
    directory = _resolve(Path(path))
    info = _read_info(directory)
    version = info.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise StoreError(
            f"{directory} was written by headwatch {info.get('headwatch_version', '?')} with store version {version}; "
            f"this headwatch reads versions up to {SCHEMA_VERSION}. Upgrade headwatch to read it."
        )
    return Run(directory, info)


def find_runs(root: str | Path) -> list[Path]:
    """Run directories at, or up to three levels below, ``root``; newest last."""
    root = Path(root)
    found = {p.parent for depth in ("", "*/", "*/*/", "*/*/*/") for p in root.glob(f"{depth}run.json")}
    return sorted(found, key=lambda directory: (directory / "run.json").stat().st_mtime)


def _resolve(path: Path) -> Path:
    if (path / "run.json").is_file():
        return path
    if not path.is_dir():
        raise StoreError(f"no run at {path}: expected a directory with a run.json, such as <root>/headwatch/<run id>.")
    runs = find_runs(path)
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise StoreError(f"no run at {path}: neither it nor the folders below hold a run.json.")
    names = "\n  ".join(str(run) for run in runs[-10:])
    raise StoreError(f"{len(runs)} runs below {path}; name one of them:\n  {names}")


def _read_info(directory: Path) -> dict[str, Any]:
    try:
        info = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{directory / 'run.json'} cannot be read ({error}). Restore it, or leave this run out."
        ) from error
    if not isinstance(info, dict):
        raise StoreError(f"{directory / 'run.json'} is not a JSON object. Restore it, or leave this run out.")
    return info


@dataclass(frozen=True, repr=False)
class Run:
    """A run's tables and its description. Tables are read when first asked for; :func:`load` again to see later parts.

    Attributes:
        path: the run's directory.
        info: what ``run.json`` says: model, heads, settings, config, versions, status.
    """

    path: Path
    info: dict[str, Any]

    def __repr__(self) -> str:
        status = "still going" if self.is_live else self.info.get("status", "status unknown")
        try:
            counts = ", ".join(f"{name} ({len(steps_of(self.path / name))} snapshots)" for name in self.monitors)
        except (OSError, pa.ArrowException):
            counts = "its snapshots cannot be read"
        return f"<Run {self.path}: {status}; {counts or 'no snapshot yet'}>"

    @property
    def id(self) -> str:
        """The run's id."""
        return str(self.info.get("id", self.path.name))

    @property
    def name(self) -> str:
        """What people call the run."""
        return str(self.info.get("name") or self.id)

    @property
    def is_live(self) -> bool:
        """True while a process writes to the run."""
        return RunLock(self.path).held_by_live_process()

    @property
    def complete(self) -> bool:
        """True when training ended by itself and said so."""
        return self.info.get("status") == "finished"

    @property
    def monitors(self) -> list[str]:
        """Names of the monitors that left snapshots: "profile", "signature", "profile-<name>" …"""
        folders = [d.name for d in self.path.iterdir() if d.is_dir() and list_parts(d)]
        return sorted(f for f in folders if _FOLDER.fullmatch(f) and not f.endswith(("_summary", "_tokens")))

    @cached_property
    def profile(self) -> pa.Table:
        """Every head's profile at every snapshot; rows in order of step, layer, head."""
        return self.table("profile")

    @cached_property
    def signature(self) -> pa.Table:
        """Every head's marginal signature at every snapshot."""
        return self.table("signature")

    @cached_property
    def summary(self) -> pa.Table:
        """Numbers of the whole model at every snapshot: step, key, value."""
        both = [self.table("profile_summary"), self.table("signature_summary")]
        return pa.concat_tables(both).sort_by([("step", "ascending"), ("key", "ascending")])

    @cached_property
    def tokens(self) -> pa.Table:
        """Token signals of the probe documents at every snapshot."""
        return self.table("signature_tokens")

    def table(self, folder: str) -> pa.Table:
        """All rows of one folder of the store ("profile", "signature", "profile-<name>", "signature_tokens" …).

        A kind that this run did not measure is an empty table.

        Raises:
            ValueError: no store has a folder of that name.
        """
        if not _FOLDER.fullmatch(folder):
            raise ValueError(
                f"no kind {folder!r}: this run has {', '.join(self.monitors) or 'no snapshot yet'}. Expected one of "
                f"{', '.join(_KINDS)}, or one of a monitor with a name, such as profile-<name>."
            )
        for attempt in range(_RETRIES):
            try:
                return _read_folder(self.path / folder, _schema(folder))
            except FileNotFoundError:
                if attempt == _RETRIES - 1:
                    raise
        raise StoreError(f"{self.path / folder} keeps changing while it is read; try again.")

    def steps(self, kind: str = "profile") -> list[int]:
        """Steps at which this kind was measured; none for a kind that this run did not measure."""
        return sorted(pc.unique(self.table(kind)["step"]).to_pylist())

    def to_pandas(self, kind: str = "profile") -> pandas.DataFrame:
        """One kind as a pandas data frame."""
        return tables.to_pandas(self.table(kind))

    def to_polars(self, kind: str = "profile") -> polars.DataFrame:
        """One kind as a polars data frame."""
        return tables.to_polars(self.table(kind))


def _schema(folder: str) -> pa.Schema:
    if folder.endswith("_summary"):
        return SUMMARY_SCHEMA
    if folder.endswith("_tokens"):
        return TOKENS_SCHEMA
    return signature_schema() if folder.startswith("signature") else profile_schema()


def _read_folder(directory: Path, schema: pa.Schema) -> pa.Table:
    parts = list_parts(directory)
    pieces = _without_compacted_copies([(part, _read_part(part, schema)) for part in parts])
    if not pieces:
        return schema.empty_table()
    order = [
        (name, "ascending")
        for name in ("step", "layer", "head", "displacement", "document", "position")
        if name in schema.names
    ]
    return pa.concat_tables(pieces).sort_by(order)


def _read_part(part: Part, schema: pa.Schema) -> pa.Table:
    try:
        table = pq.read_table(part.path)
    except pa.ArrowInvalid as error:
        raise StoreError(
            f"{part.path} is not a readable Parquet file ({error}). Delete it to read the rest."
        ) from error
    arrays = [
        table[f.name].cast(f.type) if f.name in table.column_names else pa.nulls(table.num_rows, f.type) for f in schema
    ]
    return pa.table(arrays, schema=schema)


def _without_compacted_copies(pieces: list[tuple[Part, pa.Table]]) -> list[pa.Table]:
    """A kill during compaction leaves a step in its own part and in the range: the range counts."""
    inside: set[int] = set()
    for part, table in pieces:
        if part.compacted:
            inside.update(pc.unique(table["step"]).to_pylist())
    return [table for part, table in pieces if part.compacted or part.first not in inside]
