"""Earlier snapshots that the picture draws trails through: the first, and a bounded spread of the rest."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

__all__ = ["Trails"]


class Trails:
    """Tables of earlier snapshots, oldest first; the first one stays, because it fixes the picture's ranges.

    Past ``capacity`` every second of the others is dropped, so that the trail keeps spanning the whole run.
    """

    def __init__(self, tables: Iterable[pa.Table] = (), capacity: int = 24) -> None:
        self._capacity = capacity
        self._tables: list[pa.Table] = []
        for table in tables:
            self.add(table)

    def add(self, table: pa.Table) -> None:
        """Append a snapshot."""
        self._tables.append(table)
        if len(self._tables) > self._capacity:
            self._tables = [self._tables[0], *self._tables[2::2]]

    @property
    def tables(self) -> tuple[pa.Table, ...]:
        """What is kept, oldest first."""
        return tuple(self._tables)
