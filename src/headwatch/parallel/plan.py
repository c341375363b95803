"""Who reads which heads: decided once, the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SitePlan", "plan_site"]

Heads = tuple[int, ...]


@dataclass(frozen=True)
class SitePlan:
    """How one site is read.

    Attributes:
        heads: by rank, the heads that it computes.
        gathered: the site's weights are put together on all ranks first; else each rank reads what it holds.
    """

    heads: tuple[Heads, ...]
    gathered: bool


def plan_site(place: int, watched: Heads, held: Sequence[Heads]) -> SitePlan:
    """Plan of site number ``place``.

    Whole sites go round-robin, heads that lie apart to the first rank that holds them; where some head lies in pieces,
    the site is put together and one rank computes it.

    Args:
        place: number of the site, which decides whose turn it is.
        watched: its watched heads.
        held: by rank, the heads that can be read from its own shards.

    >>> plan_site(1, (0, 1), [(0, 1), (0, 1)]).heads  # replicated: rank 1's turn
    ((), (0, 1))
    >>> plan_site(1, (0, 1), [(0,), (1,)]).heads  # tensor parallel: each its own
    ((0,), (1,))
    >>> plan_site(1, (0, 1), [(0,), ()])
    SitePlan(heads=((), (0, 1)), gathered=True)
    """
    turn = place % len(held)
    alone = tuple(watched if rank == turn else () for rank in range(len(held)))
    if held[turn] == watched:
        return SitePlan(alone, gathered=False)
    if set().union(*held) != set(watched):
        return SitePlan(alone, gathered=True)
    first = {head: min(rank for rank, heads in enumerate(held) if head in heads) for head in watched}
    return SitePlan(tuple(tuple(h for h in watched if first[h] == rank) for rank in range(len(held))), gathered=False)
