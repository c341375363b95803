"""A table of heads seen as a grid: steps × heads, one matrix per column."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headwatch.metrics import HEAD_TYPES, REGISTRY
from headwatch.snapshot import head_label

__all__ = ["HeadGrid"]


@dataclass(frozen=True)
class HeadGrid:
    """S snapshots of H heads. A head that a snapshot does not hold is missing (NaN) there.

    Attributes:
        table: rows of one kind at one displacement.
        steps: sorted steps, shape ``[S]``.
        layer, head: of every column, sorted by both, shape ``[H]``.
    """

    table: pa.Table
    steps: np.ndarray
    layer: np.ndarray
    head: np.ndarray
    _row: np.ndarray
    _column: np.ndarray

    @classmethod
    def of(cls, table: pa.Table, displacement: int | None = None) -> HeadGrid:
        """The grid of a profile or signature table at one RoPE displacement: 0, or the least one that there is.

        Raises:
            ValueError: the table is empty, or holds no row at the displacement that was asked for.
        """
        table = _at_displacement(table, displacement)
        step, layer, head = (table[name].to_numpy() for name in ("step", "layer", "head"))
        steps, row = np.unique(step, return_inverse=True)
        pairs, column = np.unique(np.stack([layer, head]), axis=1, return_inverse=True)
        return cls(table, steps, pairs[0], pairs[1], row.reshape(-1), column.reshape(-1))

    @property
    def shape(self) -> tuple[int, int]:
        """(S, H)."""
        return len(self.steps), len(self.layer)

    @cached_property
    def labels(self) -> list[str]:
        """Printed names of the heads."""
        return [head_label(int(layer), int(head)) for layer, head in zip(self.layer, self.head, strict=True)]

    def matrix(self, column: str) -> np.ndarray:
        """A column as float64, shape ``[S, H]``; missing is NaN. Head types come as codes of ``HEAD_TYPES``."""
        out = np.full(self.shape, np.nan)
        out[self._row, self._column] = self._numbers(column)
        return out

    def words(self, column: str) -> list[str]:
        """The last known text of a column for every head, length H."""
        out = [""] * self.shape[1]
        for place, text in zip(self._column, self.table[column].to_pylist(), strict=True):
            out[place] = text or ""
        return out

    def words_at(self, column: str, row: int = -1) -> list[str]:
        """The text of a column for every head in one snapshot, by default the last, length H."""
        out = [""] * self.shape[1]
        here = np.flatnonzero(self._row == row % len(self.steps))
        for place, text in zip(self._column[here], self.table[column].take(here).to_pylist(), strict=True):
            out[place] = text or ""
        return out

    def per_step(self, column: str) -> np.ndarray:
        """A column that is one number per snapshot (``loss`` …), shape ``[S]``."""
        out = np.full(len(self.steps), np.nan)
        out[self._row] = self._numbers(column)
        return out

    def profiles(self) -> np.ndarray:
        """The profiles (a, b, c, d), shape ``[S, H, 4]``."""
        return np.stack([self.matrix(key) for key in "abcd"], axis=-1)

    @property
    def displacement(self) -> int:
        """The RoPE displacement that is shown; 0 for the weights alone."""
        return int(self.table["displacement"][0].as_py())

    def at(self, step: int | None = None) -> int:
        """Row of the last snapshot at or before a step; of the last one where no step is given.

        Raises:
            ValueError: the first snapshot came later.
        """
        if step is None:
            return len(self.steps) - 1
        before = np.flatnonzero(self.steps <= step)
        if not before.size:
            raise ValueError(f"step: no snapshot at or before {step}; the first is {int(self.steps[0])}")
        return int(before[-1])

    def has(self, column: str) -> bool:
        """Whether the column exists and holds a number."""
        return column in self.table.column_names and self.table[column].null_count < self.table.num_rows

    def layers_by_heads(self, values: np.ndarray) -> np.ndarray:
        """Values of the heads, shape ``[H]``, laid out as layer × head; places without a head are NaN."""
        layers, place = np.unique(self.layer, return_inverse=True)
        out = np.full((len(layers), int(self.head.max()) + 1), np.nan)
        out[place.reshape(-1), self.head] = values
        return out

    def _numbers(self, column: str) -> np.ndarray:
        values = self.table[column]
        if column in REGISTRY and REGISTRY[column].dtype == "str":
            codes = {name: float(code) for code, name in enumerate(HEAD_TYPES)}
            return np.array([codes.get(text, np.nan) for text in values.to_pylist()])
        return np.asarray(values.cast(pa.float64()).to_numpy())


def _at_displacement(table: pa.Table, displacement: int | None) -> pa.Table:
    values = table["displacement"].to_numpy()
    if displacement is None:
        displacement = 0 if not values.size or np.any(values == 0) else int(values.min())
    kept = table.filter(pa.array(values == displacement)) if np.any(values != displacement) else table
    if not kept.num_rows:
        raise ValueError(f"no rows at displacement {displacement}; the table holds {sorted(set(values.tolist()))}")
    return kept
