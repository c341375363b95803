"""A run as arrays: every head's numbers over snapshots, and on a grid that runs share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["PI", "Against", "Array", "Trajectories", "at", "common_grid", "from_table", "union_grid"]

Array = np.ndarray
Against = Literal["step", "loss"]
PI = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Trajectories:
    """What a run's heads did, one column per head.

    Attributes:
        steps: optimizer steps of the snapshots, rising, shape ``(S,)``.
        loss: training loss at each snapshot, NaN where it was not known, shape ``(S,)``.
        layer, head: place of each head, shape ``(H,)``; heads are in order of layer, head.
        module: qualified name of each head's module, length H.
        values: metric over snapshots and heads, shape ``(S, H)`` each; NaN where it was not measured.
    """

    steps: Array
    loss: Array
    layer: Array
    head: Array
    module: tuple[str, ...]
    values: Mapping[str, Array]

    @property
    def n_heads(self) -> int:
        """Number of heads, all layers together."""
        return len(self.layer)

    def pi(self) -> Array:
        """The profiles (a, b, c, d), shape ``(S, H, 4)``."""
        return np.stack([self.values[key] for key in PI], axis=-1)

    def layers(self) -> dict[int, Array]:
        """Indices of the heads of every layer."""
        return {int(layer): np.flatnonzero(self.layer == layer) for layer in np.unique(self.layer)}

    def axis(self, against: Against) -> Array:
        """Where each snapshot lies on the shared axis, rising, shape ``(S,)``.

        Against loss it is minus the lowest loss so far, in nats: a noisy loss must not send a run back in time.
        Snapshots before the first known loss are NaN.
        """
        if against == "step":
            return self.steps.astype(float)
        lowest = np.fmin.accumulate(self.loss) if len(self.loss) else self.loss
        return -lowest


def from_table(table: pa.Table, columns: Iterable[str]) -> Trajectories:
    """Pivot a ``profile`` or ``signature`` table (rows of steps and heads) into arrays.

    Rows at a RoPE displacement other than 0 are left out; when a step and head come twice, the last row counts.

    Args:
        table: the store's table, with the schema of its kind.
        columns: numeric columns to take.
    """
    rows = table.filter(pc.equal(pc.fill_null(table["displacement"], 0), 0))
    step, layer, head = (rows[name].to_numpy() for name in ("step", "layer", "head"))
    steps, s = np.unique(step, return_inverse=True)
    places, first, h = np.unique(np.stack([layer, head], 1), axis=0, return_index=True, return_inverse=True)
    h = h.reshape(-1)  # numpy 2.0 keeps the axis
    modules = rows["module"].to_pylist()
    shape = (len(steps), len(places))
    values = {name: _pivot(rows[name], s, h, shape) for name in columns}
    loss = _pivot(rows["loss"], s, h, shape)
    known = [row[~np.isnan(row)] for row in loss]
    return Trajectories(
        steps=steps,
        loss=np.array([row[0] if len(row) else np.nan for row in known]),
        layer=places[:, 0],
        head=places[:, 1],
        module=tuple(modules[i] or "" for i in first),
        values=values,
    )


def _pivot(column: pa.ChunkedArray, s: Array, h: Array, shape: tuple[int, int]) -> Array:
    out = np.full(shape, np.nan)
    out[s, h] = column.cast(pa.float64()).to_numpy()
    return out


def at(axis: Array, values: Array, grid: Array) -> Array:
    """Values on a grid: linear between snapshots, held at both ends.

    Args:
        axis: rising positions of the snapshots (NaN: left out), shape ``(S,)``; of equal ones the first counts.
        values: what is read there, shape ``(S, ...)``.
        grid: positions wanted, shape ``(G,)``.

    Returns:
        Shape ``(G, ...)``.

    >>> at(np.array([0.0, 10.0]), np.array([[1.0], [2.0]]), np.array([5.0, 20.0])).ravel().tolist()
    [1.5, 2.0]
    """
    keep = np.flatnonzero(~np.isnan(axis))
    axis, values = axis[keep], values[keep]
    axis, first = np.unique(axis, return_index=True)
    values = values[first]
    if len(axis) == 0:
        return np.full((len(grid), *values.shape[1:]), np.nan)
    if len(axis) == 1:
        return np.repeat(values, len(grid), axis=0)
    right = np.clip(np.searchsorted(axis, grid), 1, len(axis) - 1)
    weight = np.clip((grid - axis[right - 1]) / (axis[right] - axis[right - 1]), 0, 1)
    weight = weight.reshape(-1, *[1] * (values.ndim - 1))
    low, high = values[right - 1], values[right]
    mixed = (1 - weight) * low + weight * high
    return np.where(weight == 0, low, np.where(weight == 1, high, mixed))  # a NaN neighbour must not spoil an exact hit


def common_grid(axes: Sequence[Array], points: int = 24) -> Array:
    """Positions that all runs passed: quantiles of their snapshots inside the shared range.

    Args:
        axes: every run's positions, each ``(S_r,)``.
        points: at most so many.

    Returns:
        Rising, shape ``(G,)``, with both ends of the shared range; empty when the runs have none.
    """
    known = [axis[~np.isnan(axis)] for axis in axes]
    if not known or any(len(axis) == 0 for axis in known):
        return np.empty(0)
    low, high = max(axis.min() for axis in known), min(axis.max() for axis in known)
    return _thin(np.concatenate(known), low, high, points) if low <= high else np.empty(0)


def union_grid(axes: Sequence[Array], points: int = 24) -> Array:
    """Positions that any run passed, thinned to ``points``; empty when nothing is known."""
    known = np.concatenate([axis[~np.isnan(axis)] for axis in axes]) if axes else np.empty(0)
    return _thin(known, known.min(), known.max(), points) if len(known) else np.empty(0)


def _thin(positions: Array, low: float, high: float, points: int) -> Array:
    inside = np.unique(np.concatenate([positions[(positions >= low) & (positions <= high)], [low, high]]))
    if len(inside) <= points:
        return inside
    keep = np.unique(np.linspace(0, len(inside) - 1, points).round().astype(int))
    return np.asarray(inside[keep])
