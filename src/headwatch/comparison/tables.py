"""Results as Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headwatch.comparison.groups import GroupTest
from headwatch.comparison.matching import HeadMatch, Matching
from headwatch.comparison.record import RunRecord
from headwatch.comparison.testing import benjamini_hochberg

__all__ = ["drift_rows", "group_rows", "match_rows", "run_rows"]

_RUNS = pa.schema(
    [
        ("run", pa.string()),
        ("id", pa.string()),
        ("path", pa.string()),
        ("group", pa.string()),
        ("seed", pa.string()),
        ("n_layers", pa.int32()),
        ("n_heads", pa.int32()),
        ("n_snapshots", pa.int32()),
        ("last_step", pa.int64()),
        ("last_loss", pa.float64()),
        ("note", pa.string()),
    ]
)

_MATCHES = pa.schema(
    [
        ("run", pa.string()),
        ("layer", pa.int32()),
        ("head", pa.int32()),
        ("reference", pa.string()),
        ("reference_head", pa.int32()),
        ("by", pa.string()),
        ("cost", pa.float64()),
        ("margin", pa.float64()),
        ("chance", pa.float64()),
        ("p", pa.float64()),
        ("p_adjusted", pa.float64()),
        ("scope", pa.string()),
        ("verdict", pa.string()),
    ]
)


def run_rows(records: Sequence[RunRecord], groups: Sequence[str]) -> pa.Table:
    """One row per run."""
    rows = [_run_row(record, group) for record, group in zip(records, groups, strict=True)]
    return pa.Table.from_pylist(rows, schema=_RUNS)


def _run_row(record: RunRecord, group: str) -> dict[str, object]:
    run = record.trajectories
    return {
        "run": record.label,
        "id": record.run.id,
        "path": str(record.run.path),
        "group": group,
        "seed": record.seed,
        "n_layers": len(run.layers()),
        "n_heads": run.n_heads,
        "n_snapshots": record.n_snapshots,
        "last_step": int(run.steps[-1]),
        "last_loss": _or_none(float(run.loss[-1])),
        "note": record.note,
    }


def drift_rows(records: Sequence[RunRecord]) -> pa.Table:
    """Drift statistics of all runs, with the run in the first column."""
    named = [r.drift.add_column(0, "run", pa.array([r.label] * r.drift.num_rows, pa.string())) for r in records]
    return pa.concat_tables(named)


def match_rows(records: Sequence[RunRecord], matching: Matching) -> pa.Table:
    """One row per matched head, heads by their number in the layer."""
    return pa.Table.from_pylist([_match_row(records, match) for match in matching.matches], schema=_MATCHES)


def _match_row(records: Sequence[RunRecord], match: HeadMatch) -> dict[str, object]:
    own, other = records[match.run], records[match.reference]
    return {
        "run": own.label,
        "layer": match.layer,
        "head": int(own.trajectories.head[match.head]),
        "reference": other.label,
        "reference_head": int(other.trajectories.head[match.partner]) if match.partner >= 0 else None,
        "by": match.by,
        **{key: _or_none(getattr(match, key)) for key in ("cost", "margin", "chance", "p", "p_adjusted")},
        "scope": match.scope,
        "verdict": match.verdict,
    }


def group_rows(statistics: Sequence[str], test: GroupTest) -> pa.Table:
    """One row per statistic, p-values adjusted by Benjamini–Hochberg over all of them."""
    metric, layer = zip(*(name.split("@") for name in statistics), strict=True)
    means = {f"mean[{name}]": _floats(row) for name, row in zip(test.groups, test.means, strict=True)}
    return pa.table(
        {
            "metric": pa.array(metric, pa.string()),
            "layer": pa.array([int(i) for i in layer], pa.int32()),
            **means,
            "p": _floats(test.p),
            "p_adjusted": _floats(benjamini_hochberg(test.p)),
        }
    )


def _floats(values: np.ndarray) -> pa.Array:
    return pa.array(values, pa.float64(), from_pandas=True)


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value
