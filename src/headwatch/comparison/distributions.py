"""Distributions over the heads of a layer, along each run, and bands of them over runs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwatch.comparison.record import CURVES, RunRecord
from headwatch.comparison.trajectories import Against, Array, at, common_grid, union_grid

__all__ = ["WHOLE", "Band", "bands", "ends", "layer_table", "layers_of", "quantiles"]

WHOLE = -1
"""The layer number that stands for all layers together."""

_QUANTILES = (0.1, 0.5, 0.9)


def layer_table(records: Sequence[RunRecord]) -> pa.Table:
    """Quantiles over heads: one row per run, snapshot, layer (−1: all layers) and metric.

    Columns ``run``, ``step``, ``loss`` (lowest so far), ``layer``, ``metric``, ``p10``, ``median``, ``p90``.
    """
    return pa.concat_tables([_one_run(record) for record in records])


def _one_run(record: RunRecord) -> pa.Table:
    run = record.trajectories
    layers = layers_of(record)
    pieces = [(layer, key, quantiles(run.values[key][:, heads])) for layer, heads in layers.items() for key in CURVES]
    n, S = len(pieces), len(run.steps)
    low, middle, high = np.concatenate([q for _, _, q in pieces], axis=1)
    return pa.table(
        {
            "run": pa.array([record.label] * (n * S), pa.string()),
            "step": np.tile(run.steps, n),
            "loss": pa.array(np.tile(run.loss, n), from_pandas=True),
            "layer": np.repeat([layer for layer, _, _ in pieces], S),
            "metric": pa.array(np.repeat([key for _, key, _ in pieces], S), pa.string()),
            "p10": pa.array(low, from_pandas=True),
            "median": pa.array(middle, from_pandas=True),
            "p90": pa.array(high, from_pandas=True),
        }
    )


def layers_of(record: RunRecord) -> dict[int, Array]:
    """Indices of the heads of all layers together, then of each."""
    run = record.trajectories
    return {WHOLE: np.arange(run.n_heads)} | run.layers()


def quantiles(values: Array) -> Array:
    """10 %, 50 % and 90 % over the last axis, linear between order statistics, gaps left out.

    Args:
        values: shape ``(..., H)``.

    Returns:
        Shape ``(3, ...)``; NaN where no head has a value.

    >>> quantiles(np.array([[0.0, 10.0, np.nan], [np.nan, np.nan, np.nan]])).tolist()
    [[1.0, nan], [5.0, nan], [9.0, nan]]
    """
    rising = np.sort(values, axis=-1)  # NaN last
    last = np.maximum((~np.isnan(rising)).sum(-1) - 1, 0)
    return np.stack([_between(rising, last * q) for q in _QUANTILES])


def _between(rising: Array, at_: Array) -> Array:
    low = np.floor(at_).astype(int)
    high = np.ceil(at_).astype(int)
    below, above = (np.take_along_axis(rising, i[..., None], -1)[..., 0] for i in (low, high))
    return np.asarray(below + (at_ - low) * (above - below))


@dataclass(frozen=True)
class Band:
    """Runs of one group, at one layer and metric.

    Attributes:
        group: name of the group.
        x: shared positions (steps, or minus the loss), shape ``(G,)``.
        low, middle, high: lowest, mean and highest of the runs' medians, NaN beyond the runs' ends, each ``(G,)``.
        n: runs in the group.
    """

    group: str
    x: Array
    low: Array
    middle: Array
    high: Array
    n: int


def bands(
    records: Sequence[RunRecord], groups: Sequence[str], metric: str, layer: int = WHOLE, against: Against = "step"
) -> list[Band]:
    """For each group the median over heads: mean over its runs, and the range from run to run.

    Args:
        records: runs.
        groups: group of every run.
        metric: one of ``CURVES``.
        layer: a layer, or −1 for all together; runs without the layer are left out.
        against: the shared axis.
    """
    out = []
    for group in dict.fromkeys(groups):
        members = [r for r, g in zip(records, groups, strict=True) if g == group and layer in layers_of(r)]
        axes = [r.trajectories.axis(against) for r in members]
        x = union_grid(axes, points=48)
        if len(x):
            curves = np.stack([_curve(r, axis, x, metric, layer) for r, axis in zip(members, axes, strict=True)])
            out.append(_band(group, x, curves))
    return out


def _curve(record: RunRecord, axis: Array, x: Array, metric: str, layer: int) -> Array:
    """Median over heads on the grid; NaN outside the run: a run that stopped says nothing of later steps."""
    if np.isnan(axis).all():
        return np.full(len(x), np.nan)
    values = quantiles(record.trajectories.values[metric][:, layers_of(record)[layer]])[1]
    inside = (x >= np.nanmin(axis)) & (x <= np.nanmax(axis))
    return np.where(inside, at(axis, values, x), np.nan)


def _band(group: str, x: Array, curves: Array) -> Band:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return Band(group, x, np.nanmin(curves, 0), np.nanmean(curves, 0), np.nanmax(curves, 0), len(curves))


def ends(records: Sequence[RunRecord], against: Against = "step") -> tuple[float, list[str], Array]:
    """Every run at the last place that all of them reached.

    Returns:
        That place (a step, or a loss; NaN when the runs share none and each run's own end is taken), the names of the
        statistics, ``"<metric>@<layer>"``, and the medians over heads, shape ``(runs, statistics)``.
    """
    axes = [r.trajectories.axis(against) for r in records]
    grid = common_grid(axes)
    shared = [set(layers_of(r)) for r in records]
    layers = sorted(set.intersection(*shared)) if len({frozenset(s) for s in shared}) == 1 else [WHOLE]
    places = [grid[-1:] if len(grid) else axis[~np.isnan(axis)][-1:] for axis in axes]
    values = [_at_end(r, axis, place, layers) for r, axis, place in zip(records, axes, places, strict=True)]
    names = [f"{metric}@{layer}" for layer in layers for metric in CURVES]
    where = float(grid[-1]) if len(grid) else float("nan")
    return (where if against == "step" else -where), names, np.array(values)


def _at_end(record: RunRecord, axis: Array, place: Array, layers: Sequence[int]) -> list[float]:
    run, heads = record.trajectories, layers_of(record)
    if not len(place):
        return [float("nan")] * (len(layers) * len(CURVES))
    now = {metric: at(axis, run.values[metric], place) for metric in CURVES}
    return [float(quantiles(now[metric][:, heads[layer]])[1][0]) for layer in layers for metric in CURVES]
