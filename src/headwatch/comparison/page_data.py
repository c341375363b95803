"""What the page's scripts read: names and small tables as JSON, trajectories and heads as packed arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwatch.comparison.comparison import Comparison
from headwatch.comparison.distributions import layers_of, quantiles
from headwatch.comparison.record import CURVES, RunRecord, thin
from headwatch.comparison.trajectories import Against, Array, Trajectories, union_grid
from headwatch.metrics import REGISTRY
from headwatch.page import pack

__all__ = ["DRIFT_NUMBERS", "DRIFT_STEPS", "page_arrays", "page_data", "snapshots_for", "thinned"]

_NUMBERS = 2_600_000  # profile coordinates on the page: about 5 MB
_BITS = 9  # three digits
_POSITIONS = 60

DRIFT_NUMBERS = (
    *(
        f"{key}_{end}"
        for key in ("theta_position", "theta_distance", "stable_rank", "pairing")
        for end in ("start", "end")
    ),
    "drift",
    "path_length",
    "parity_start",
    "parity_end",
    "parity_changes",
)
DRIFT_STEPS = ("left_null_step", "low_rank_step")


def snapshots_for(records: Sequence[RunRecord]) -> int:
    """Snapshots per run that the page can hold: 48, fewer for very many heads, never under 8."""
    heads = sum(record.trajectories.n_heads for record in records)
    return int(np.clip(_NUMBERS // (3 * heads), 8, 48))


def page_data(comparison: Comparison, runs: Sequence[Trajectories]) -> dict[str, Any]:
    """JSON for the scripts.

    Args:
        comparison: what was found.
        runs: its runs' trajectories, thinned for the page.
    """
    groups = list(dict.fromkeys(comparison.group_names))
    return {
        "against": comparison.against,
        "axes": {axis: _positions(runs, axis) for axis in ("step", "loss")},
        "groups": groups,
        "metrics": [{"key": key, "title": REGISTRY[key].title, "tip": REGISTRY[key].meaning} for key in CURVES],
        "runs": [
            _run(record, run, groups.index(group))
            for record, run, group in zip(comparison.records, runs, comparison.group_names, strict=True)
        ],
        "drift": {"numbers": DRIFT_NUMBERS, "steps": DRIFT_STEPS},
    }


def _positions(runs: Sequence[Trajectories], axis: Against) -> list[float]:
    return [float(x) for x in union_grid([run.axis(axis) for run in runs], _POSITIONS)]


def _run(record: RunRecord, run: Trajectories, group: int) -> dict[str, Any]:
    return {
        "name": record.label,
        "group": group,
        "seed": record.seed,
        "note": record.note,
        "step": run.axis("step"),
        "loss": run.axis("loss"),
        "layer": run.layer,
        "head": run.head,
        "modules": {int(layer): run.module[heads[0]] for layer, heads in run.layers().items()},
    }


def page_arrays(comparison: Comparison, runs: Sequence[Trajectories]) -> dict[str, str]:
    """Packed arrays, a few per run, so that the browser unpacks only what is looked at."""
    arrays: dict[str, str] = {}
    for place, (record, run) in enumerate(zip(comparison.records, runs, strict=True)):
        pi = run.pi()
        arrays[f"pi-{place}"] = pack(_coordinates(pi), _BITS)
        arrays[f"means-{place}"] = pack(_coordinates(_layer_means(pi, run.layers())), _BITS)
        arrays[f"curves-{place}"] = pack(_curves(record, run), _BITS)
        numbers = [record.drift[name].to_numpy().astype(float) for name in DRIFT_NUMBERS]
        arrays[f"drift-{place}"] = pack(np.stack(numbers), _BITS + 2)
        steps = [record.drift[name].to_numpy().astype(float) for name in DRIFT_STEPS]
        arrays[f"drift-steps-{place}"] = pack(np.stack(steps), 23)
    return arrays | _match_arrays(comparison)


def _coordinates(pi: Array) -> Array:
    """a − ½, c and d: near chance what is left is small, and rounding keeps three digits of it."""
    return np.stack([pi[..., 0] - 0.5, pi[..., 2], pi[..., 3]], axis=-1)


def _layer_means(pi: Array, layers: Mapping[int, Array]) -> Array:
    known = ~np.isnan(pi).any(-1, keepdims=True)
    filled = np.where(known, pi, 0)
    sums = [filled[:, heads].sum(1) for heads in layers.values()]
    counts = [known[:, heads].sum(1) for heads in layers.values()]
    return np.stack(
        [np.where(n > 0, total / np.maximum(n, 1), np.nan) for total, n in zip(sums, counts, strict=True)], 1
    )


def _curves(record: RunRecord, run: Trajectories) -> Array:
    """10 %, 50 %, 90 % over heads, shape ``(S, layers + 1, metrics, 3)``; all layers together come first."""
    values = np.stack([run.values[key] for key in CURVES], axis=1)
    layers = [quantiles(values[:, :, heads]) for heads in layers_of(record).values()]
    return np.moveaxis(np.array(layers), (0, 1, 2, 3), (1, 3, 0, 2))


def _match_arrays(comparison: Comparison) -> dict[str, str]:
    """Per matched run: head, partner, distance, margin and verdict of every head, shape ``(5, heads)``."""
    verdicts = ("same seed", "match", "no match", "too few heads to tell")
    arrays = {}
    for run, rows in comparison.matching.by_run.items():
        columns = [(m.head, m.partner, m.cost, m.margin, verdicts.index(m.verdict)) for m in rows]
        arrays[f"match-{run}"] = pack(np.array(columns, dtype=float).T, 11)
    return arrays


def thinned(comparison: Comparison) -> list[Trajectories]:
    """The runs' trajectories with as many snapshots as the page can hold."""
    snapshots = snapshots_for(comparison.records)
    return [thin(record.trajectories, snapshots) for record in comparison.records]
