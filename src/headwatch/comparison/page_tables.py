"""The small tables of the page, as JSON."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

from headwatch.comparison.comparison import Comparison
from headwatch.comparison.matching import HeadMatch

__all__ = ["group_table", "match_tests", "run_summaries", "signature_rows"]


def run_summaries(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per run: its facts, and its heads' drift in five numbers."""
    return [
        run | _drift_summary(r.drift) for run, r in zip(comparison.runs.to_pylist(), comparison.records, strict=True)
    ]


def _drift_summary(drift: pa.Table) -> dict[str, float | None]:
    numbers = {name: drift[name].to_numpy().astype(float) for name in _SUMMED}
    return {
        "median_drift": _median(numbers["drift"]),
        "median_path": _median(numbers["path_length"]),
        "left_null": float(np.mean(~np.isnan(numbers["left_null_step"]))),
        "median_left_step": _median(numbers["left_null_step"]),
        "low_rank": float(np.mean(~np.isnan(numbers["low_rank_step"]))),
        "parity_changes": float(np.nansum(numbers["parity_changes"])),
    }


_SUMMED = ("drift", "path_length", "left_null_step", "low_rank_step", "parity_changes")


def _median(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def match_tests(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per run and layer: its test, and how many heads match."""
    layers: dict[tuple[int, int], list[HeadMatch]] = defaultdict(list)
    for match in comparison.matching.matches:
        layers[match.run, match.layer].append(match)
    return [_test_row(rows) for rows in layers.values()]


def _test_row(rows: list[HeadMatch]) -> dict[str, Any]:
    first = rows[0]
    matched = [m for m in rows if m.verdict in ("match", "same seed")]
    return {
        "run": first.run,
        "reference": first.reference,
        "layer": first.layer,
        "by": first.by,
        "scope": first.scope or "none",
        "heads": len(rows),
        "matched": len(matched),
        "cost": _median(np.array([m.cost for m in rows])),
        "margin": _median(np.array([m.margin for m in rows])),
        "chance": first.chance,
        "p": first.p,
        "p_adjusted": first.p_adjusted,
        "verdict": first.verdict if not matched else matched[0].verdict,
    }


def group_table(comparison: Comparison) -> dict[str, Any] | None:
    """Names of the groups and one row per statistic, smallest p first."""
    if comparison.groups is None or comparison.test is None:
        return None
    names = [f"mean[{name}]" for name in comparison.test.groups]
    rows = comparison.groups.sort_by([("p", "ascending"), ("layer", "ascending")]).to_pylist()
    kept = ("metric", "layer", "p", "p_adjusted")
    return {
        "groups": list(comparison.test.groups),
        "rows": [{key: row[key] for key in kept} | {"means": [row[name] for name in names]} for row in rows],
    }


def signature_rows(comparison: Comparison) -> list[list[Any]]:
    """Pairs of runs by number, with their similarity; rounded to three digits."""
    place = {record.label: i for i, record in enumerate(comparison.records)}
    return [
        [place[row["run_a"]], place[row["run_b"]], row["signature"], row["aligned"], row["n_heads"], *_rounded(row)]
        for row in comparison.signatures.to_pylist()
    ]


def _rounded(row: dict[str, Any]) -> list[float | None]:
    keys = ("pearson", "pearson_within_layer", "dispersion_a", "dispersion_b")
    return [None if row[key] is None else round(row[key], 3) for key in keys]
