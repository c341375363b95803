"""The processes of one training, as headwatch uses them: small numbers and small results, on the CPU."""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

__all__ = ["ALONE", "PeerError", "Ranks", "current_ranks"]

_T = TypeVar("_T")
_RESULTS_WITHIN = datetime.timedelta(minutes=10)  # a worker that waits longer for its peers gives the snapshot up


class PeerError(RuntimeError):
    """Another rank failed at something that all ranks take part in."""


class Ranks:
    """One process among ``size``; every method is called by all ranks in the same order.

    Two groups of torch.distributed over gloo carry it, so that nothing enters the queues of the training's own group:
    ``numbers`` for the training thread, ``results`` for the worker.

    Args:
        rank: number of this process.
        size: number of processes; 1 makes every method return at once.
        numbers: group for the training thread.
        results: group for the worker.
    """

    def __init__(self, rank: int = 0, size: int = 1, numbers: Any = None, results: Any = None) -> None:
        self.rank = rank
        self.size = size
        self._numbers = numbers
        self._results = results

    @property
    def leads(self) -> bool:
        """True for rank 0, which has the store and the sinks."""
        return self.rank == 0

    def agree(self, number: int) -> int:
        """Rank 0's number, on the training thread."""
        if self.size == 1:
            return number
        tensor = torch.tensor([number], dtype=torch.int64)
        dist.broadcast(tensor, src=0, group=self._numbers)
        return int(tensor)

    def share(self, item: _T) -> _T:
        """Rank 0's object, on the training thread."""
        if self.size == 1:
            return item
        items = [item]
        dist.broadcast_object_list(items, src=0, group=self._numbers)
        return items[0]

    def everyone(self, item: _T) -> list[_T]:
        """The objects of all ranks, on the training thread."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item, group=self._numbers)
        return items

    def lead(self, action: Callable[[], _T]) -> _T | None:
        """Rank 0 alone acts; what it raises ends all ranks, so that none waits for it.

        Raises:
            PeerError: on the other ranks, with rank 0's words.
        """
        result, error = _tried(action) if self.leads else (None, None)
        said = self.share(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        if said is not None:
            raise PeerError(f"rank 0 failed: {said}")
        return result

    def collect(self, part: _T) -> list[_T] | None:
        """The objects of all ranks on rank 0, None elsewhere; on the worker thread.

        Raises:
            RuntimeError: a rank did not come within ten minutes, or is gone.
        """
        if self.size == 1:
            return [part]
        parts: list[Any] | None = [None] * self.size if self.leads else None
        dist.gather_object(part, parts, dst=0, group=self._results)
        return parts


ALONE = Ranks()
_KNOWN: weakref.WeakKeyDictionary[Any, Ranks] = weakref.WeakKeyDictionary()


def current_ranks() -> Ranks:
    """The processes that torch.distributed joins now. The first call makes groups: all ranks must come."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return ALONE
    world = dist.group.WORLD
    known = _KNOWN.get(world)
    if known is None:
        numbers = dist.new_group(backend="gloo")
        results = dist.new_group(backend="gloo", timeout=_RESULTS_WITHIN)
        known = _KNOWN[world] = Ranks(dist.get_rank(), dist.get_world_size(), numbers, results)
    return known


def _tried(action: Callable[[], _T]) -> tuple[_T | None, Exception | None]:
    try:
        return action(), None
    except Exception as error:  # raised again by the caller, once the others know
        return None, error
