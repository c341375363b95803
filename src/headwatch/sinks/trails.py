"""Earlier snapshots that the picture draws trails through: the first, the last, and a bounded even spread between."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

__all__ = ["Trails", "split_steps"]


class Trails:
    """Tables of earlier snapshots, oldest first; the first one stays, because it fixes the picture's ranges.

    Of the rest every k-th is kept; k doubles whenever more than ``capacity`` would stay.
    """

    def __init__(self, tables: Iterable[pa.Table] = (), capacity: int = 24) -> None:
        self._capacity = capacity
        self._kept: dict[int, pa.Table] = {}
        self._count = 0
        self._stride = 1
        for table in tables:
            self.add(table)

    def add(self, table: pa.Table) -> None:
        """Append a snapshot."""
        self._kept = {place: old for place, old in self._kept.items() if place % self._stride == 0}
        if len(self._kept) >= self._capacity:
            self._stride *= 2
            self._kept = {place: old for place, old in self._kept.items() if place % self._stride == 0}
        self._kept[self._count] = table
        self._count += 1

    @property
    def tables(self) -> tuple[pa.Table, ...]:
        """What is kept, oldest first."""
        return tuple(self._kept.values())


def split_steps(table: pa.Table, most: int = 24) -> list[pa.Table]:
    """The snapshots of a stored run, oldest first: at most ``most``, evenly spread, with the first and the last."""
    steps = table["step"].to_numpy()
    known = np.unique(steps)
    places = np.unique(np.linspace(0, len(known) - 1, min(most, len(known))).round().astype(int))
    return [table.filter(pa.array(steps == step)) for step in known[places]]
