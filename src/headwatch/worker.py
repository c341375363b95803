"""A background thread with a bounded queue: eigenvalues, files and pictures off the training thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

__all__ = ["CLOSE_WITHIN", "Worker"]

CLOSE_WITHIN = {"finished": 120.0, "failed": 20.0}  # seconds; who pre-empts a training kills it after some 30

Job = Callable[[], None]


class Worker:
    """Runs jobs in order on one thread.

    Args:
        capacity: jobs that may wait; :meth:`submit` blocks while the queue is full, so nothing is dropped and memory
            stays bounded.
        idle: called about every ``idle_seconds`` while nothing is to do.

    A job must not raise: whoever submits it catches what can go wrong and says so.
    """

    def __init__(self, capacity: int = 2, idle: Job | None = None, idle_seconds: float = 30.0) -> None:
        self._queue: queue.Queue[Job | None] = queue.Queue(maxsize=capacity)
        self._idle = idle
        self._idle_seconds = idle_seconds
        self._thread = threading.Thread(target=self._run, name="headwatch", daemon=True)
        self._thread.start()

    def submit(self, job: Job, timeout: float | None = None) -> bool:
        """Queue a job; blocks while the queue is full.

        Returns:
            False when the queue was still full after ``timeout`` seconds.
        """
        try:
            self._queue.put(job, timeout=timeout)
        except queue.Full:
            return False
        return True

    def close(self, timeout: float) -> bool:
        """Finish what is queued and end the thread.

        Returns:
            False when it did not end within ``timeout`` seconds; what is left then ends with the process.
        """
        deadline = time.monotonic() + timeout
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return False
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            try:
                job = self._queue.get(timeout=self._idle_seconds)
            except queue.Empty:
                if self._idle is not None:
                    self._idle()
                continue
            if job is None:
                return
            job()
            del job  # it holds copies of weights
