"""The recorder of the ranks that lead nothing: it computes their share on a worker and keeps no store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headwatch.notices import Notices
from headwatch.worker import CLOSE_WITHIN, Worker

__all__ = ["Follower"]


class _Member(Protocol):
    name: str

    def failed(self, error: Exception, moment: Any) -> None: ...


class Follower:
    """Runs what rank 0's recorder runs, in the same order, and drops the result: rank 0 has collected it.

    Args:
        notices: keeps what would be said; rank 0 speaks.
    """

    def __init__(self, notices: Notices) -> None:
        self.notices = notices
        self._worker = Worker()
        self._closed = False

    def attach(self, member: object) -> None:
        """A monitor joins the run; there is nothing to merge here."""

    def submit(self, member: _Member, moment: Any, finish: Callable[[int], object], *, seconds: float) -> None:
        """Compute this rank's share of a snapshot; blocks while the worker is behind."""
        self._worker.submit(lambda: self._finish(member, moment, finish))

    @staticmethod
    def _finish(member: _Member, moment: Any, finish: Callable[[int], object]) -> None:
        try:
            finish(moment.step)
        except Exception as error:  # rank 0 says what is missing
            member.failed(error, moment)

    def miss(self, member: object, moment: object) -> None:
        """Nothing waits for this rank's snapshot."""

    def close(self, status: str) -> None:
        """Finish what is queued, within two minutes after training and 20 seconds where it broke off."""
        if not self._closed:
            self._closed = True
            self._worker.close(CLOSE_WITHIN[status])
