"""The final values that people sort runs by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headwatch.sinks.row import Row
from headwatch.sinks.scalars import RANK_ONE_BELOW, at_rest
from headwatch.snapshot import Snapshot, column

__all__ = ["run_table"]


def run_table(latest: Mapping[str, Snapshot], row: Row | None) -> dict[str, float]:
    """Columns of W&B's run table, under ``headwatch/``; what is undefined is left out.

    ``heads`` watched, ``median_drift``, ``share_beyond_null`` (share of the heads beyond chance), ``heads_rank_one``
    (heads of stable rank below 2), ``overhead`` (share of training time that headwatch blocked).

    Args:
        latest: the last snapshot of every monitor.
        row: the run's last row.
    """
    values = _of_profile(at_rest(latest["profile"].heads)) if "profile" in latest else {}
    overhead = row.run_scalars.get("headwatch/overhead") if row is not None else None
    if overhead is not None:
        values["overhead"] = float(overhead)
    return {f"headwatch/{name}": value for name, value in values.items()}


def _of_profile(table: pa.Table) -> dict[str, float]:
    drift, beyond, rank = (_known(column(table, key)) for key in ("drift", "beyond_null", "stable_rank"))
    values: dict[str, float] = {"heads": table.num_rows}
    if drift.size:
        values["median_drift"] = float(np.median(drift))
    if beyond.size:
        values["share_beyond_null"] = float(beyond.mean())
    if rank.size:
        values["heads_rank_one"] = int((rank < RANK_ONE_BELOW).sum())
    return values


def _known(numbers: np.ndarray) -> np.ndarray:
    known: np.ndarray = numbers[np.isfinite(numbers)]
    return known
