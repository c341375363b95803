"""Names of the parts of a store, and which steps they hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["Part", "list_parts", "part_name", "range_name", "step_of", "steps_in", "steps_of"]

_PART = re.compile(r"step=(\d{9,})\.parquet")
_RANGE = re.compile(r"steps=(\d{9,})-(\d{9,})\.parquet")


@dataclass(frozen=True)
class Part:
    """One Parquet file of a kind: a single step, or a range of steps that were compacted."""

    path: Path
    first: int
    last: int

    @property
    def compacted(self) -> bool:
        """True for a part that holds a range of steps."""
        return self.path.name.startswith("steps=")


def part_name(step: int, extension: str = "parquet") -> str:
    """File name of a snapshot.

    >>> part_name(120)
    'step=000000120.parquet'
    """
    return f"step={step:09d}.{extension}"


def step_of(path: Path) -> int:
    """Step in the name of a snapshot's file.

    >>> step_of(Path("step=000000120.safetensors"))
    120
    """
    return int(path.name.partition("=")[2].partition(".")[0])


def range_name(first: int, last: int) -> str:
    """File name of a compacted range of steps."""
    return f"steps={first:09d}-{last:09d}.parquet"


def list_parts(directory: Path) -> list[Part]:
    """All parts of one kind, in order of their first step; an absent folder has none."""
    try:
        names = [entry.name for entry in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    parts = [part for name in names if (part := _parse(directory, name))]
    return sorted(parts, key=lambda part: (part.first, part.last))


def steps_in(part: Part) -> set[int]:
    """Steps that a part holds; only what was compacted must be opened."""
    if not part.compacted:
        return {part.first}
    return set(pc.unique(pq.read_table(part.path, columns=["step"])["step"]).to_pylist())


def steps_of(directory: Path) -> list[int]:
    """Steps of one kind, in order."""
    return sorted({step for part in list_parts(directory) for step in steps_in(part)})


def _parse(directory: Path, name: str) -> Part | None:
    if single := _PART.fullmatch(name):
        return Part(directory / name, int(single[1]), int(single[1]))
    if span := _RANGE.fullmatch(name):
        return Part(directory / name, int(span[1]), int(span[2]))
    return None
