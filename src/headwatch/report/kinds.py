"""One kind of measurement (profiles, or signatures) as a page's scripts take it: heads, steps, packed matrices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from headwatch.figures.grid import HeadGrid
from headwatch.metrics import REGISTRY, Kind, keys_of
from headwatch.page import pack

__all__ = ["OVER_TIME_BUDGET", "keys_over_time", "kind_arrays", "kind_data", "last_known", "registry_data"]

OVER_TIME_BUDGET: dict[Kind, int] = {"profile": 7_500_000, "signature": 3_500_000}
"""Characters that the packed matrices of a kind may take on a page, so that it stays below 15 MB."""

_FIRST = ("a", "b", "c", "d", "head_type", "beyond_null", "stable_rank", "theta_distance", "theta_position", "pairing",
          "participation_ratio", "drift", "parity", "rho", "norm", "trace_ratio", "path_length")  # fmt: skip


def registry_data() -> dict[str, Any]:
    """The registry as plain data: what every tooltip and explanation on a page says."""
    return {key: asdict(metric) for key, metric in REGISTRY.items()}


def kind_data(grid: HeadGrid, kind: Kind, keys: Iterable[str]) -> dict[str, Any]:
    """Steps, heads and names of one kind."""
    modules = sorted(set(grid.words("module")))
    place = {module: i for i, module in enumerate(modules)}
    return {
        "kind": kind,
        "keys": list(keys),
        "steps": grid.steps,
        "loss": grid.per_step("loss"),
        "overhead": grid.per_step("overhead"),
        "layer": grid.layer,
        "head": grid.head,
        "labels": grid.labels,
        "modules": modules,
        "module": [place[name] for name in grid.words("module")],
        "status": grid.words("status"),
        "flags": grid.words("flags"),
        "left_null_step": last_known(grid, "left_null_step") if kind == "profile" else None,
    }


def keys_over_time(grid: HeadGrid, kind: Kind) -> list[str]:
    """Columns of the grid that hold numbers, the most wanted first."""
    columns = keys_of(kind)
    extra = ("beyond_null",) if kind == "profile" else tuple(f"{key}_std" for key in columns)
    wanted = dict.fromkeys((*(key for key in _FIRST if key in (*columns, *extra)), *columns, *extra))
    return [key for key in wanted if grid.has(key)]


def kind_arrays(grid: HeadGrid, keys: Iterable[str], budget: int) -> dict[str, str]:
    """Packed matrices ``[S, H]`` by column, in order, until the budget is spent."""
    packed: dict[str, str] = {}
    spent = 0
    for key in keys:
        text = pack(grid.matrix(key))
        if spent + len(text) > budget:
            continue
        packed[key], spent = text, spent + len(text)
    return packed


def last_known(grid: HeadGrid, column: str) -> np.ndarray | None:
    """The last number that every head has in a column, shape ``[H]``; None where the column is empty."""
    if not grid.has(column):
        return None
    matrix = grid.matrix(column)
    known = np.isfinite(matrix)
    last = known.shape[0] - 1 - known[::-1].argmax(0)
    return np.where(known.any(0), matrix[last, np.arange(matrix.shape[1])], np.nan)
