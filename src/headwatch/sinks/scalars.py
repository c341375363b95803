"""A row as W&B scalars: per-head keys, aggregates of the model and of each layer, and the run's own numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwatch.metrics import HEADLINE_KEYS, REGISTRY, SIGNATURE_KEYS, keys_of
from headwatch.sinks.row import Row
from headwatch.sinks.tracked import MAX_KEYS, Metrics, choose, kind_of, metrics_by_monitor, prefix_of
from headwatch.snapshot import Snapshot, column, head_names

__all__ = ["BROKEN_FLAGS", "RANK_ONE_BELOW", "SUMMARY_PARTS", "X_KEY", "at_rest", "notes", "scalars"]

X_KEY = "trainer/global_step"
SUMMARY_PARTS: tuple[str, ...] = ("consistency", "consistency_within", "dispersion", "drift", "noise_floor")
BROKEN_FLAGS: tuple[str, ...] = ("zero_form", "nan", "inf", "failed", "not_captured")
RANK_ONE_BELOW = 2.0

_EXTREMES = {"stable_rank": ("min", np.min), "row_entropy": ("min", np.min), "max_logit": ("max", np.max)}


def scalars(
    row: Row,
    *,
    metrics: Metrics = HEADLINE_KEYS,
    max_keys: int = MAX_KEYS,
    tracked: Collection[str] | None = None,
    log_heads: bool = True,
) -> dict[str, float]:
    """Every scalar of one row by its W&B key; what is undefined (null, NaN, infinite) is left out.

    Keys: ``heads/<column>/L03.H07`` for heads × metrics up to ``max_keys``, else for a fixed spread of heads;
    ``headsum/<column>/median``, ``/p10``, ``/p90`` over the heads of the model; ``headsum/<column>/L03``, the layer's
    median; ``headsum/<signature>/consistency`` and its companions; shares of heads (``headsum/beyond_null/share``,
    ``headsum/broken/share``, ``headsum/rank_one/share``); ``headwatch/...``; and ``trainer/global_step``, the x-axis.
    A named monitor puts its name in: ``heads-<name>/...``. Rows of a rotary displacement stay out.

    Args:
        row: what was measured at one step.
        metrics: per-head metrics: one sequence for all monitors, or a sequence by monitor.
        max_keys: most per-head keys of a row.
        tracked: names of the heads that get keys of their own, instead of the choice made here.
        log_heads: False leaves the per-head keys out.
    """
    by_monitor = metrics_by_monitor(metrics, [*row.snapshots])
    values: dict[str, float] = {}
    for monitor, snapshot in row.snapshots.items():
        table = at_rest(snapshot.heads)
        chosen = tuple(by_monitor.get(monitor, ()))
        values |= _aggregates(monitor, table, chosen)
        values |= _summary(monitor, snapshot)
        if log_heads:
            names = head_names(table)
            kept = choose(monitor, names, by_monitor, max_keys).heads if tracked is None else tracked
            values |= _heads(monitor, table, names, chosen, frozenset(kept))
    values |= _run_numbers(row)
    return {key: value for key, value in values.items() if math.isfinite(value)}


def notes(row: Row, *, metrics: Metrics = HEADLINE_KEYS, max_keys: int = MAX_KEYS) -> list[str]:
    """What a user must hear once about this row's keys: which monitors log a part of their heads only."""
    by_monitor = metrics_by_monitor(metrics, [*row.snapshots])
    choices = [choose(m, head_names(at_rest(s.heads)), by_monitor, max_keys) for m, s in row.snapshots.items()]
    return [choice.note for choice in choices if choice.note]


def at_rest(table: pa.Table) -> pa.Table:
    """Rows of displacement 0: the weights alone."""
    moved = pc.fill_null(pc.not_equal(table["displacement"], 0), False)
    return table.filter(pc.invert(moved))


def _heads(
    monitor: str, table: pa.Table, names: Sequence[str], metrics: Sequence[str], kept: Collection[str]
) -> dict[str, float]:
    stem = prefix_of(monitor, "heads")
    return {
        f"{stem}/{key}/{name}": value
        for key in metrics
        if REGISTRY[key].dtype != "str"
        for name, value in zip(names, column(table, key).tolist(), strict=True)
        if name in kept
    }


def _aggregates(monitor: str, table: pa.Table, metrics: Sequence[str]) -> dict[str, float]:
    stem = prefix_of(monitor, "headsum")
    values: dict[str, float] = {}
    for key in aggregated(monitor, metrics):
        numbers = column(table, key)
        values |= {f"{stem}/{key}/{name}": value for name, value in _quantiles(key, numbers).items()}
        values |= {f"{stem}/{key}/L{layer:02}": value for layer, value in _by_layer(table, numbers).items()}
        if key == "theta_position":
            values |= {f"{stem}/abs_theta_position/{name}": v for name, v in _quantiles("", np.abs(numbers)).items()}
    return values | {f"{stem}/{name}/share": share for name, share in _shares(monitor, table).items()}


def aggregated(monitor: str, metrics: Sequence[str]) -> tuple[str, ...]:
    """Columns of which W&B gets quantiles and layers: the headline, what the user chose, and every signature."""
    kind = kind_of(monitor)
    base = HEADLINE_KEYS if kind == "profile" else SIGNATURE_KEYS
    extra = [key for key in metrics if key in keys_of(kind) and REGISTRY[key].dtype != "str"]
    return tuple(dict.fromkeys([*base, *extra]))


def _quantiles(key: str, numbers: np.ndarray) -> dict[str, float]:
    known = numbers[np.isfinite(numbers)]
    if not known.size:
        return {}
    p10, median, p90 = np.quantile(known, (0.1, 0.5, 0.9)).tolist()
    values = {"median": median, "p10": p10, "p90": p90}
    if key in _EXTREMES:
        name, reduce = _EXTREMES[key]
        values[name] = float(reduce(known))
    return values


def _by_layer(table: pa.Table, numbers: np.ndarray) -> dict[int, float]:
    layers = table["layer"].to_numpy()
    known = np.isfinite(numbers)
    return {int(i): float(np.median(numbers[known & (layers == i)])) for i in np.unique(layers[known])}


def _shares(monitor: str, table: pa.Table) -> dict[str, float]:
    if not table.num_rows:
        return {}
    shares = {"broken": float(np.mean([_is_broken(flags) for flags in table["flags"].to_pylist()]))}
    if kind_of(monitor) == "profile":
        shares["beyond_null"] = _share(column(table, "beyond_null"))
        ranks = column(table, "stable_rank")
        shares["rank_one"] = _share(np.where(np.isnan(ranks), np.nan, ranks < RANK_ONE_BELOW))
    return shares


def _share(numbers: np.ndarray) -> float:
    known = numbers[np.isfinite(numbers)]
    return float(np.mean(known)) if known.size else math.nan


def _is_broken(flags: str | None) -> bool:
    return any(flag.strip().split(":", 1)[0] in BROKEN_FLAGS for flag in (flags or "").split(","))


def _summary(monitor: str, snapshot: Snapshot) -> dict[str, float]:
    stem = prefix_of(monitor, "headsum")
    return {
        f"{stem}/{key}/{part}": float(snapshot.summary[f"{key}_{part}"])
        for key in SIGNATURE_KEYS
        for part in SUMMARY_PARTS
        if snapshot.summary.get(f"{key}_{part}") is not None
    }


def _run_numbers(row: Row) -> dict[str, float]:
    values = {key: float(value) for key, value in row.run_scalars.items() if value is not None}
    return {**_loss(row.snapshots), **values, "headwatch/global_step": row.step, X_KEY: row.x}


def _loss(snapshots: Mapping[str, Snapshot]) -> dict[str, float]:
    for snapshot in snapshots.values():
        loss = snapshot.heads["loss"][0].as_py() if snapshot.heads.num_rows else None
        if loss is not None:
            return {"headwatch/loss": float(loss)}
    return {}
