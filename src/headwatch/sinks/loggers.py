"""Any Lightning logger other than W&B's: the scalars, through ``log_metrics``."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from headwatch.metrics import HEADLINE_KEYS
from headwatch.sinks.row import Row
from headwatch.sinks.scalars import X_KEY, scalars
from headwatch.sinks.tracked import MAX_KEYS, Metrics

__all__ = ["LoggerSink"]


class LoggerSink:
    """Sends the scalars of rows to a logger, at Lightning's own x-axis value.

    Loggers are not made for two threads (``CSVLogger`` loses rows), so a row that arrives on another thread than the
    one that made the sink waits for :meth:`flush`, which belongs on that thread.

    Args:
        logger: a Lightning logger.
        metrics: per-head metrics, see ``scalars``.
        log_heads: False sends aggregates only.
        max_keys: most per-head keys in a row.
    """

    def __init__(
        self,
        logger: Any,
        *,
        metrics: Metrics = HEADLINE_KEYS,
        log_heads: bool = True,
        max_keys: int = MAX_KEYS,
    ) -> None:
        self.name = type(logger).__name__
        self._logger = logger
        self._metrics = metrics
        self._log_heads = log_heads
        self._max_keys = max_keys
        self._thread = threading.get_ident()
        self._waiting: deque[tuple[dict[str, float], int]] = deque()

    def log(self, row: Row) -> None:
        """Take one row; it is logged at once on the sink's own thread, else by the next ``flush``."""
        values = scalars(row, metrics=self._metrics, max_keys=self._max_keys, log_heads=self._log_heads)
        values.pop(X_KEY)
        self._waiting.append((values, row.x))
        if threading.get_ident() == self._thread:
            self.flush()

    def flush(self) -> None:
        """Log what waits."""
        while self._waiting:
            values, x = self._waiting.popleft()
            self._logger.log_metrics(values, step=x)

    def close(self, row: Row | None) -> None:
        """Log what waits; the training thread is waiting for this, so no other row comes in between."""
        self.flush()
