"""Cap the BLAS threads around a solve without touching the training thread.

Beside busy data loaders a solve on many threads waits for cores that are taken: measured 7–21 times slower than on
one. torch's thread count is a setting of each thread *and* the default of threads started later, so setting it on a
worker would give a new loader or server thread another count, and with it other bits. Here the default is put back
from a third, short-lived thread; the training thread's own count is never written. ``threadpoolctl`` is no way: it
writes settings of the whole process. NumPy's BLAS has only such settings, so no worker solves with NumPy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

__all__ = ["solver_threads"]

_T = TypeVar("_T")


@contextmanager
def solver_threads(count: int = 1) -> Iterator[None]:
    """Run the body on ``count`` threads, then give the calling thread its own count back.

    Other threads, and those started later, keep theirs.

    Raises:
        ValueError: ``count`` is not a positive number.
    """
    if count < 1:
        raise ValueError(f"solver_threads: expected a count ≥ 1, found {count}")
    before = torch.get_num_threads()
    _set_own(count)
    try:
        yield
    finally:
        _set_own(before)


def _set_own(count: int) -> None:
    """Set the calling thread's count and no other: torch keeps no such call, so the default is written back."""
    if torch.get_num_threads() == count:
        return
    default = _elsewhere(torch.get_num_threads)
    torch.set_num_threads(count)
    _elsewhere(lambda: torch.set_num_threads(default))


def _elsewhere(call: Callable[[], _T]) -> _T:
    """The result of a call on a fresh thread."""
    results: list[_T] = []
    thread = threading.Thread(target=lambda: results.append(call()), name="headwatch-threads")
    thread.start()
    thread.join()
    return results[0]
