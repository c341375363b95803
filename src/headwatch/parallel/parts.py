"""Results of the ranks, put together on rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headwatch.heads.headmap import Site

__all__ = ["Columns", "Part", "Result", "merged"]

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Result:
    """Statistics of some heads of one site, as they travel.

    Attributes:
        place: number of the site in the head map.
        heads: the heads.
        columns: one set of columns per displacement, or none where measuring failed.
        failure: why there are none.
    """

    place: int
    heads: tuple[int, ...]
    columns: tuple[Columns, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class Part:
    """What one rank sends of one snapshot: results, or why there are none at all."""

    step: int
    results: tuple[Result, ...]
    failure: str = ""


def merged(
    sites: Sequence[Site], results: Sequence[Result], displacements: int, hole: Callable[[int], Columns]
) -> list[Columns]:
    """Columns of every site and displacement in the order of the head map; heads without a result are holes.

    Args:
        sites: the watched sites.
        results: of all ranks, in any order.
        displacements: number of displacements.
        hole: columns of so many heads that could not be measured.
    """
    by_place: dict[int, list[Result]] = {}
    for result in results:
        if result.columns:
            by_place.setdefault(result.place, []).append(result)
    return [
        _joined(site, by_place.get(place, []), d, hole)
        for place, site in enumerate(sites)
        for d in range(displacements)
    ]


def _joined(site: Site, results: Sequence[Result], displacement: int, hole: Callable[[int], Columns]) -> Columns:
    if len(results) == 1 and results[0].heads == site.heads:
        return results[0].columns[displacement]
    columns = hole(len(site.heads))
    for result in results:
        rows = [site.heads.index(head) for head in result.heads]
        for key, values in result.columns[displacement].items():
            columns[key][rows] = values
    return columns
