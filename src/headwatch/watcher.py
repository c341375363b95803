"""One monitor of a run: when (schedule), what (measure), at which price, to the recorder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import pyarrow.compute as pc

from headwatch.measure import Finish, Measure
from headwatch.parallel.follower import Follower
from headwatch.price import Price
from headwatch.recorder import Moment, Recorder
from headwatch.run import load
from headwatch.schedule import Schedule
from headwatch.snapshot import Snapshot

__all__ = ["OnError", "Watcher"]

OnError = Literal["warn", "raise"]
_OFF_AFTER = 3  # failures in a row
_OFF = -1  # what ranks agree on instead of a stretch


class Watcher:
    """Measures at due steps and never lets a failure reach training.

    Args:
        name: "profile", "signature", or with the user's name behind a dash; folder of the store and part of the keys.
        measure: what is measured.
        schedule: when.
        recorder: where it goes; on ranks other than 0 a follower, which keeps nothing.
        price: budget of blocked seconds.
        on_error: "warn" says a failure once and goes on, "raise" raises it, for tests.
        agree: makes all ranks use rank 0's number; the identity for one process.
    """

    def __init__(
        self,
        name: str,
        measure: Measure,
        schedule: Schedule,
        recorder: Recorder | Follower,
        price: Price,
        *,
        on_error: OnError = "warn",
        agree: Callable[[int], int] | None = None,
    ) -> None:
        self.name = name
        self.measure = measure
        self.schedule = schedule
        self.recorder = recorder
        self.price = price
        self.last_step = -1  # last step that was looked at
        self.last_taken = -1  # last step of which the store has, or will have, a snapshot
        self.off = False
        self._next_due = schedule.next_due(self.last_step)
        self._on_error = on_error
        self._agree = agree or (lambda value: value)
        self._alone = agree is None
        self._failures = 0
        recorder.attach(self)

    def due(self, step: int) -> bool:
        """True when a snapshot is due at ``step``; one comparison of integers."""
        return step >= self._next_due

    @property
    def overhead(self) -> float:
        """Share of training time that this monitor blocked so far."""
        return self.price.overhead

    def expects(self, moment: Moment) -> bool:
        """True when a snapshot of this moment is still to come."""
        if self.off or self.last_taken == moment.step:
            return False
        return moment.final or self.due(moment.step)

    def observe(self, moment: Moment) -> None:
        """Take the snapshot of this moment if one is due."""
        expected = self.expects(moment)
        self._looked_at(moment.step)
        if expected:
            self._take(moment)

    def _looked_at(self, step: int) -> None:
        self.last_step = step
        self._next_due = self.schedule.next_due(step)

    def resume(self, step: int, stores: Sequence[Path]) -> None:
        """Training goes on from ``step``: read the baselines back, and know what the store has.

        Args:
            step: optimizer steps done.
            stores: run directories with earlier snapshots of this training, oldest first; the last is the run's own.
        """
        for path in stores if step else ():  # at step 0 every run is a new one
            table = load(path).table(self.name)
            earlier = table.filter(pc.less_equal(table["step"], step))
            if earlier.num_rows:
                self.measure.restore(earlier)
                # a step that fell due after the last stored one is taken at once
                self.last_taken = pc.max(earlier["step"]).as_py()
        self.last_taken = self._agree(self.last_taken)  # rank 0 alone has stores to read
        self._looked_at(self.last_taken)

    def _take(self, moment: Moment) -> None:
        start = time.perf_counter()
        self.last_taken = moment.step
        broken: Exception | None = None
        try:
            finish = self.measure.take(moment.step)
        except Exception as error:
            broken = error
            self.failed(error, moment)
            self.recorder.miss(self, moment)
        else:
            self._hand_over(moment, finish, start)
        self._settle(moment.step)
        if broken is not None and self._on_error == "raise":
            raise broken

    def _hand_over(self, moment: Moment, finish: Finish, start: float) -> None:
        taken = time.perf_counter() - start
        self.recorder.submit(self, moment, self._watched(finish), seconds=taken)
        self.price.add(time.perf_counter() - start, moment.step)

    def _watched(self, finish: Finish) -> Finish:
        def finished(step: int) -> Snapshot:
            snapshot = finish(step)
            self._failures = 0
            return snapshot

        return finished

    def failed(self, error: Exception, moment: Moment) -> None:
        """Say a failure once; after three in a row this monitor is off."""
        self._failures += 1
        said = f"{type(error).__name__}: {error}"
        notices = self.recorder.notices
        notices.say(
            f"{self.name} {type(error).__name__}",
            f"the {self.name} monitor failed at step {moment.step}: {said}. Training goes on without this snapshot; "
            "on_error='raise' shows where it came from.",
        )
        if self._failures >= _OFF_AFTER:
            self.off = self.off or self._alone  # with more ranks, once they have agreed on it
            notices.say(
                f"{self.name} off",
                f"the {self.name} monitor failed {_OFF_AFTER} times in a row, last at step {moment.step} ({said}), "
                "and is off for the rest of this run.",
            )

    def _settle(self, step: int) -> None:
        """How it goes on: off, or at which interval. All ranks do as rank 0."""
        schedule = self.schedule
        off = self.off or self._failures >= _OFF_AFTER
        wanted = self._agree(_OFF if off else self.price.stretch(schedule.every_n_train_steps, step))
        self.off = wanted == _OFF
        if wanted > schedule.stretch:
            self._stretch(wanted, step)

    def _stretch(self, wanted: int, step: int) -> None:
        schedule = self.schedule
        schedule.stretch = wanted
        self._looked_at(step)
        self.recorder.notices.say(
            f"{self.name} stretch",
            f"the {self.name} monitor would cost more than max_overhead={self.price.max_overhead:g} of training "
            f"time, so from step {step} it measures every {schedule.interval} steps instead of "
            f"{schedule.every_n_train_steps}, and less often still if need be.",
        )
