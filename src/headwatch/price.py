"""What watching costs: seconds that block training, and the interval that keeps them within a budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["Price"]


class Price:
    """Counts the seconds that block the training thread.

    Args:
        max_overhead: largest share of training time, for example 0.01.
        allowance: seconds at the start that are not counted: finding heads, the dense early steps.
        clock: seconds, never going backwards.
    """

    def __init__(
        self, max_overhead: float, allowance: float = 60.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.max_overhead = max_overhead
        self._allowance = allowance
        self._clock = clock
        self._start = clock()
        self._blocked = 0.0
        self._counted = 0.0  # blocked seconds after the allowance
        self._snapshots = 0  # snapshots after the allowance
        self._first_step: int | None = None  # step at which the allowance ended

    def add(self, seconds: float, step: int) -> None:
        """A snapshot at ``step`` blocked training for ``seconds``."""
        self._blocked += seconds
        if self._clock() - self._start < self._allowance:
            return
        if self._first_step is None:
            self._first_step = step
            self._allowed_from = self._clock()
            return  # its cost fell before the count began
        self._counted += seconds
        self._snapshots += 1

    @property
    def overhead(self) -> float:
        """Share of training time that was blocked so far, the allowance included."""
        elapsed = self._clock() - self._start
        return self._blocked / elapsed if elapsed > 0 else 0.0

    def stretch(self, every_n: int, step: int) -> int:
        """The multiple of ``every_n`` steps that keeps to the budget, from what was measured after the allowance.

        share = (seconds of a snapshot) / (stretch · every_n · seconds of a step) ≤ max_overhead
        """
        if self._first_step is None or not self._snapshots or step <= self._first_step:
            return 1
        per_step = (self._clock() - self._allowed_from - self._counted) / (step - self._first_step)
        per_snapshot = self._counted / self._snapshots
        if per_step <= 0:
            return 1
        return max(1, math.ceil(per_snapshot / (self.max_overhead * every_n * per_step) - 1e-6))
