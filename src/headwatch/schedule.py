"""When a snapshot is due: early steps densely, then every n optimizer steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["EARLY_STEPS", "Schedule"]

EARLY_STEPS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)  # heads move most in the first steps


@dataclass
class Schedule:
    """Due steps: 0, the early steps, and the multiples of ``every_n_train_steps``.

    Optimizer steps may jump (several optimizers, resume), so a step is due when a boundary was crossed.

    Args:
        every_n_train_steps: interval after the early steps, in optimizer steps.
        early_steps: extra due steps at the start; empty for none.

    Attributes:
        stretch: the interval in force is ``stretch`` times ``every_n_train_steps``; raised to keep the overhead low.

    >>> [step for step in range(1, 301) if Schedule(100).due(step - 1, step)]
    [1, 2, 4, 8, 16, 32, 64, 100, 200, 300]
    """

    every_n_train_steps: int = 100
    early_steps: Iterable[int] = EARLY_STEPS
    stretch: int = 1

    def __post_init__(self) -> None:
        n = self.every_n_train_steps
        if isinstance(n, bool) or not isinstance(n, int) or n <= 0:
            raise ValueError(
                f"every_n_train_steps: expected a whole number of optimizer steps above 0, found {n!r}. "
                "To switch headwatch off, leave the callback out of the Trainer."
            )
        if isinstance(self.early_steps, (int, float)):
            raise ValueError(f"early_steps: expected a list of steps, found {self.early_steps!r}; write [1, 2, 4].")
        self.early_steps = tuple(sorted(set(self.early_steps)))
        if any(isinstance(s, bool) or not isinstance(s, int) or s < 0 for s in self.early_steps):
            raise ValueError(f"early_steps: expected whole numbers ≥ 0, found {self.early_steps!r}.")

    @property
    def interval(self) -> int:
        """Steps between snapshots after the early ones."""
        return self.every_n_train_steps * self.stretch

    def due(self, before: int, now: int) -> bool:
        """True when a due step lies in (before, now]."""
        return now >= self.next_due(before)

    def next_due(self, after: int) -> int:
        """The first due step after a step."""
        regular = (after // self.interval + 1) * self.interval
        return min([regular, *(s for s in self.early_steps if s > after)])
