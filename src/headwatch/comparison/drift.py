"""What each head did over a run, in one row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headwatch.comparison.trajectories import PI, Array, Trajectories

__all__ = ["COLUMNS", "drift_table", "first_step_below", "parity_changes", "path_length"]

COLUMNS = (
    *PI,
    "norm",
    "pairing",
    "theta_distance",
    "theta_position",
    "stable_rank",
    "parity",
    "beyond_null",
    "left_null_step",
)
"""Columns of a profile table that the statistics are made from."""

_ENDS = (*PI, "theta_distance", "theta_position", "stable_rank", "pairing")


def drift_table(run: Trajectories, *, below: float = 2.0) -> pa.Table:
    """Drift statistics, one row per head (**ours**).

    Args:
        run: trajectories with the :data:`COLUMNS` of this module.
        below: stable rank under which a head counts as led by one direction.

    Returns:
        ``layer``, ``head``, ``module``; ``<metric>_start`` and ``<metric>_end`` at the head's first and last snapshot
        with a profile; ``first_step``, ``last_step``; ``drift`` (Euclidean distance of π in R⁴ between them);
        ``path_length`` (sum of its steps); ``left_null_step`` (first step beyond what chance gives, null if never);
        ``low_rank_step`` (first step with stable rank < ``below``, null if never); ``parity_start``, ``parity_end``,
        ``parity_changes``. A head without any profile has nulls.
    """
    pi = run.pi()
    known = ~np.isnan(pi).any(-1)
    first, last = known.argmax(0), len(run.steps) - 1 - known[::-1].argmax(0)
    empty = ~known.any(0)
    columns: dict[str, pa.Array] = {
        "layer": pa.array(run.layer, pa.int32()),
        "head": pa.array(run.head, pa.int32()),
        "module": pa.array(run.module, pa.string()),
        "first_step": _integers(np.where(empty, np.nan, run.steps[first])),
        "last_step": _integers(np.where(empty, np.nan, run.steps[last])),
    }
    pick = np.arange(run.n_heads)
    for key in _ENDS:
        columns[f"{key}_start"] = _floats(run.values[key][first, pick])
        columns[f"{key}_end"] = _floats(run.values[key][last, pick])
    columns["drift"] = _floats(np.linalg.norm(pi[last, pick] - pi[first, pick], axis=-1))
    columns["path_length"] = _floats(np.where(empty, np.nan, path_length(pi)))
    columns["left_null_step"] = _integers(_left_null(run))
    columns["low_rank_step"] = _integers(first_step_below(run.steps, run.values["stable_rank"], below))
    parity = run.values["parity"]
    columns["parity_start"] = _integers(parity[first, pick], pa.int32())
    columns["parity_end"] = _integers(parity[last, pick], pa.int32())
    columns["parity_changes"] = _integers(np.where(empty, np.nan, parity_changes(parity)), pa.int32())
    return pa.table(columns)


def path_length(pi: Array) -> Array:
    """Length of each head's way through the simplex, snapshot to snapshot; missing snapshots are stepped over.

    Args:
        pi: profiles, shape ``(S, H, 4)``.

    Returns:
        Shape ``(H,)``.
    """
    known = ~np.isnan(pi).any(-1)
    if known.all():
        return np.asarray(np.linalg.norm(np.diff(pi, axis=0), axis=-1).sum(0))
    ways = (way[seen] for way, seen in zip(pi.swapaxes(0, 1), known.T, strict=True))
    return np.array([np.linalg.norm(np.diff(way, axis=0), axis=-1).sum() for way in ways])


def first_step_below(steps: Array, values: Array, bound: float) -> Array:
    """First step at which a value lies under a bound, NaN if never.

    >>> first_step_below(np.array([0, 5, 9]), np.array([[3.0, 3.0], [1.9, 3.0], [2.5, 2.0]]), 2.0).tolist()
    [5.0, nan]
    """
    under = values < bound
    return np.where(under.any(0), steps[under.argmax(0)].astype(float), np.nan)


def parity_changes(parity: Array) -> Array:
    """How often each head changed sides; the dead zone (0) and gaps (NaN) between two equal signs do not count.

    >>> parity_changes(np.array([[0.0, 1.0], [1.0, 0.0], [-1.0, 1.0]])).tolist()
    [1, 0]
    """
    signed = (way[~np.isnan(way) & (way != 0)] for way in parity.T)
    return np.array([int((np.diff(way) != 0).sum()) for way in signed], dtype=int)


def _left_null(run: Trajectories) -> Array:
    """The monitor's own word where it gave one, else the first snapshot beyond the null."""
    said = run.values["left_null_step"]
    seen = first_step_below(run.steps, -run.values["beyond_null"], -0.5)
    with np.errstate(all="ignore"):
        earliest = np.fmin.reduce(said, axis=0)
    return np.where(np.isnan(earliest), seen, earliest)


def _floats(values: Array) -> pa.Array:
    return pa.array(values, mask=np.isnan(values), type=pa.float64())


def _integers(values: Array, type_: pa.DataType | None = None) -> pa.Array:
    return pa.array(values, mask=np.isnan(values), type=pa.float64()).cast(type_ or pa.int64())
