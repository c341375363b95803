"""What a figure can be made from: a run, a table, or a grid that is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import pyarrow as pa

from headwatch.figures.grid import HeadGrid
from headwatch.metrics import REGISTRY, Kind

if TYPE_CHECKING:
    from headwatch.run import Run

__all__ = ["Source", "grid_of", "kind_of"]

Source = Union["Run", pa.Table, HeadGrid]


def grid_of(source: Source, kind: Kind) -> HeadGrid:
    """The grid of one kind.

    Raises:
        ValueError: the run or the table holds nothing of that kind.
    """
    if isinstance(source, HeadGrid):
        return source
    table = source if isinstance(source, pa.Table) else source.table(kind)
    if not table.num_rows:
        raise ValueError(f"no {kind} snapshots here to draw")
    return HeadGrid.of(table)


def kind_of(metric: str) -> Kind:
    """The kind of snapshot that holds a metric.

    Raises:
        ValueError: no such metric in the registry.
    """
    if metric not in REGISTRY:
        raise ValueError(f"metric: unknown {metric!r}; expected one of: {', '.join(REGISTRY)}")
    return REGISTRY[metric].kind
