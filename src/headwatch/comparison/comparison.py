"""What a comparison found, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headwatch import tables
from headwatch.comparison.groups import GroupTest
from headwatch.comparison.matching import Matching
from headwatch.comparison.record import RunRecord
from headwatch.comparison.trajectories import PI, Against

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = ["Comparison"]

_TABLES = ("runs", "config", "drift", "matches", "layers", "groups", "signatures", "trajectories")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs compared; every attribute that is a table is a ``pyarrow.Table``.

    Figures of it: ``headwatch.comparison.figures`` (plotly) and ``headwatch.comparison.paper`` (PNG, SVG, PDF).

    Attributes:
        runs: one row per run: ``run`` (its label), ``id``, ``path``, ``group``, ``seed``, ``n_layers``, ``n_heads``,
            ``n_snapshots``, ``last_step``, ``last_loss``, ``note``.
        left_out: what could not be compared, with the reason.
        config: ``key`` and one column per run, for keys on which runs differ.
        drift: one row per run and head; columns of ``headwatch.comparison.drift.drift_table``.
        matches: one row per head of every run that was matched to another: ``run``, ``layer``, ``head``, ``reference``,
            ``reference_head``, ``by``, ``cost``, ``margin``, ``chance``, ``p``, ``p_adjusted``, ``scope``, ``verdict``.
        layers: quantiles over heads, one row per run, snapshot, layer (−1: all) and metric.
        groups: one row per statistic: ``metric``, ``layer`` (−1: all), mean per group, ``p``, ``p_adjusted``; None
            without ``group_by``.
        signatures: similarity of the last signatures of every two runs of one shape.
        notes: what a reader must know: what was compared how, and what was not.
        against: shared axis, "step" or "loss".
        output: the page, None when none was written.
        records, matching, test: what the tables were made from.
    """

    runs: pa.Table
    left_out: tuple[tuple[str, str], ...]
    config: pa.Table
    drift: pa.Table
    matches: pa.Table
    layers: pa.Table
    groups: pa.Table | None
    signatures: pa.Table
    notes: tuple[str, ...]
    against: Against
    records: Sequence[RunRecord]
    group_names: Sequence[str]
    matching: Matching
    test: GroupTest | None = None
    output: Path | None = None

    def __repr__(self) -> str:
        heads = sum(record.trajectories.n_heads for record in self.records)
        page = f"; page: {self.output}" if self.output else ""
        return f"<Comparison of {len(self.records)} runs, {heads} heads; tables: {', '.join(_TABLES)}{page}>"

    @property
    def trajectories(self) -> pa.Table:
        """Every head's way, snapshots thinned to 48 per run: run, step, loss, layer, head, a, b, c, d, stable rank …"""
        return pa.concat_tables([_ways(record) for record in self.records])

    def table(self, name: str = "drift") -> pa.Table:
        """One of the tables by name.

        Raises:
            ValueError: there is no such table.
        """
        found = getattr(self, name, None) if name in _TABLES else None
        if not isinstance(found, pa.Table):
            raise ValueError(f"no table {name!r} here; expected one of {', '.join(_TABLES)} (groups needs group_by=).")
        return found

    def to_pandas(self, table: str = "drift") -> pandas.DataFrame:
        """One of the tables as a pandas data frame."""
        return tables.to_pandas(self.table(table))

    def to_polars(self, table: str = "drift") -> polars.DataFrame:
        """One of the tables as a polars data frame."""
        return tables.to_polars(self.table(table))


def _ways(record: RunRecord) -> pa.Table:
    run = record.trajectories
    S, H = len(run.steps), run.n_heads
    columns = {
        "run": pa.array([record.label] * (S * H), pa.string()),
        "step": run.steps.repeat(H),
        "loss": pa.array(run.loss.repeat(H), from_pandas=True),
        "layer": pa.array(run.layer.tolist() * S, pa.int32()),
        "head": pa.array(run.head.tolist() * S, pa.int32()),
    }
    names = (*PI, *(key for key in run.values if key not in PI))
    return pa.table(columns | {key: pa.array(run.values[key].ravel(), from_pandas=True) for key in names})
