"""What a sink receives: everything that was measured at one step, by all monitors of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headwatch.snapshot import Snapshot

__all__ = ["Row", "Sink"]


@dataclass(frozen=True)
class Row:
    """One step of the run.

    Attributes:
        step: optimizer steps done (``trainer.global_step``).
        x: Lightning's own x-axis value, ``trainer/global_step`` (batches that stepped, 0-based).
        epoch: epoch of the step.
        snapshots: what was measured, by monitor: "profile", "signature", or "profile-<name>" for a named monitor.
        run_scalars: ``headwatch/seconds``, ``headwatch/overhead`` and other numbers of the run itself.
        final: taken at the end of training.
    """

    step: int
    x: int
    epoch: int
    snapshots: Mapping[str, Snapshot]
    run_scalars: Mapping[str, float] = field(default_factory=dict)
    final: bool = False


class Sink(Protocol):
    """A place that rows go to. A sink may raise; the recorder counts failures and goes on without it."""

    name: str

    def log(self, row: Row) -> None:
        """Take one row."""

    def close(self, row: Row | None) -> None:
        """The run ends; ``row`` is its last one."""
