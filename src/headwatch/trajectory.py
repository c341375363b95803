"""What a head's profile has done since its first snapshot: drift, path length, and when it left the null."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["Trajectory", "row_keys"]

RowKey = tuple[int, int, int]  # layer, head, displacement


def row_keys(table: pa.Table) -> list[RowKey]:
    """Identity of every row of a heads table."""
    return list(zip(*(table[name].to_pylist() for name in ("layer", "head", "displacement")), strict=True))


class Trajectory:
    """Running state of a fixed list of heads, updated once per snapshot.

    ``drift`` is the Euclidean distance of π to the head's own first snapshot, ``path_length`` the sum of its steps.
    ``left_null_step`` is the first of two snapshots running beyond the null; a head that is beyond it in the first
    snapshot of the run (a fine-tune) never gets one: there is no leaving what it never was in.
    """

    def __init__(self, keys: list[RowKey]) -> None:
        self._place = {key: i for i, key in enumerate(keys)}
        rows = len(keys)
        self._first = np.full((rows, 4), np.nan)
        self._last = np.full((rows, 4), np.nan)
        self._path = np.zeros(rows)
        self._beyond_since = np.full(rows, -1, dtype=np.int64)
        self._left = np.full(rows, -1, dtype=np.int64)
        self._began_outside = np.zeros(rows, dtype=bool)
        self._empty = True

    def update(self, step: int, profile: np.ndarray, beyond: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Take the next snapshot.

        Args:
            step: optimizer steps done.
            profile: π of every head, shape (rows, 4); NaN rows have no profile.
            beyond: which heads lie beyond the null, shape (rows,); None when there is no null.

        Returns:
            Columns ``drift``, ``path_length`` and ``left_null_step`` (NaN where not yet).
        """
        known = np.isfinite(profile).all(axis=1)
        fresh = known & np.isnan(self._first[:, 0])
        self._first[fresh] = profile[fresh]
        moved = known & np.isfinite(self._last[:, 0])
        self._path[moved] += np.linalg.norm(profile[moved] - self._last[moved], axis=1)
        self._last[known] = profile[known]
        if beyond is not None:
            self._follow(step, beyond)
        self._empty = False
        return {
            "drift": np.linalg.norm(profile - self._first, axis=1),
            "path_length": np.where(known, self._path, np.nan),
            "left_null_step": np.where(self._left >= 0, self._left.astype(float), np.nan),
        }

    def _follow(self, step: int, beyond: np.ndarray) -> None:
        if self._empty:
            self._began_outside = beyond.copy()
        second = beyond & (self._beyond_since >= 0) & (self._left < 0) & ~self._began_outside
        self._left[second] = self._beyond_since[second]
        self._beyond_since = np.where(beyond, np.where(self._beyond_since >= 0, self._beyond_since, step), -1)

    @property
    def began_outside(self) -> int:
        """Number of heads that lay beyond the null in the first snapshot."""
        return int(self._began_outside.sum())

    def restore(self, table: pa.Table) -> None:
        """Take up where a stored run left off.

        Args:
            table: the run's ``profile`` rows up to the step that training goes on from, in order of step.
        """
        for step, rows in _by_step(table):
            keys = [self._place.get(key, -1) for key in row_keys(rows)]
            places = np.array([p for p in keys if p >= 0], dtype=np.int64)
            keep = [i for i, p in enumerate(keys) if p >= 0]
            profile = np.full_like(self._first, np.nan)
            profile[places] = np.stack([rows[name].to_numpy(zero_copy_only=False) for name in "abcd"], axis=1)[keep]
            beyond = np.zeros(len(self._place), dtype=bool)
            beyond[places] = np.array([bool(x) for x in rows["beyond_null"].to_pylist()])[keep]
            self.update(step, profile, beyond)


def _by_step(table: pa.Table) -> list[tuple[int, pa.Table]]:
    steps = table["step"].to_numpy()
    return [(int(step), table.filter(pa.array(steps == step))) for step in np.unique(steps)]
