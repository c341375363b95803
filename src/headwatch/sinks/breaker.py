"""A sink that may fail: said once, left off after three failures in a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headwatch.alerts import Alert
from headwatch.notices import Notices
from headwatch.sinks.row import Row, Sink

__all__ = ["Breaker"]

_OFF_AFTER = 3  # failures in a row


class Breaker:
    """A sink that may fail: said once, left off after three failures in a row."""

    def __init__(self, sink: Sink, notices: Notices, raise_errors: bool) -> None:
        self._sink = sink
        self._notices = notices
        self._raise_errors = raise_errors
        self._failures = 0

    def log(self, row: Row) -> None:
        """Hand over one row."""
        if self._failures < _OFF_AFTER:
            self._try(lambda: self._sink.log(row), f"step {row.step}")

    def flush(self) -> None:
        """On the training thread: what a sink may only do there."""
        flush = getattr(self._sink, "flush", None)
        if flush is not None and self._failures < _OFF_AFTER:
            self._try(flush, "a flush")

    def alert(self, alert: Alert) -> None:
        """Hand over an alert, if the sink takes such."""
        send = getattr(self._sink, "alert", None)
        if send is not None and self._failures < _OFF_AFTER:
            self._try(lambda: send(alert), "an alert")

    def close(self, row: Row | None) -> None:
        """The run ends."""
        if self._failures < _OFF_AFTER:
            self._try(lambda: self._sink.close(row), "its end")

    def upload(self, path: Path) -> None:
        """Hand over the closed store, if the sink takes such."""
        upload = getattr(self._sink, "upload", None)
        if upload is not None and self._failures < _OFF_AFTER:
            self._try(lambda: upload(path), "the upload of the store")

    def _try(self, call: Callable[[], object], what: str) -> None:
        try:
            call()
            self._failures = 0
        except Exception as error:
            self._failures += 1
            self._notices.say(f"sink {self._sink.name}", f"{self._sink.name} failed at {what}: {error}. {_ELSEWHERE}")
            if self._failures == _OFF_AFTER:
                self._notices.say(
                    f"sink {self._sink.name} off",
                    f"{self._sink.name} failed {_OFF_AFTER} times in a row and is off. {_ELSEWHERE}",
                )
            if self._raise_errors:
                raise


_ELSEWHERE = "Training and the local store go on; `headwatch report` reads the store."
