"""One recorder per run: takes what the monitors measured, computes on the worker, hands rows to store and sinks."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from headwatch.alerts import Alerts
from headwatch.measure import Finish
from headwatch.notices import Notices
from headwatch.sinks.breaker import Breaker
from headwatch.sinks.row import Row, Sink
from headwatch.sinks.store import RunStore
from headwatch.snapshot import Snapshot
from headwatch.worker import CLOSE_WITHIN, Worker

__all__ = ["PATIENCE", "Moment", "Recorder"]

_FLUSH_WITHIN = 60.0
PATIENCE = 300.0  # seconds that training waits for a worker that is behind, once


@dataclass(frozen=True)
class Moment:
    """Where training stands when a snapshot is taken.

    Attributes:
        step: optimizer steps done (``trainer.global_step``).
        x: x-axis value of Lightning's own charts, ``trainer/global_step``.
        epoch: current epoch.
        time: seconds since the Unix epoch.
        loss: training loss of the batch, if there is one.
        final: training ends here.
        flags: what a reader of this snapshot must know, for every head.
    """

    step: int
    x: int
    epoch: int
    time: float
    loss: float | None = None
    final: bool = False
    flags: tuple[str, ...] = ()


class Member(Protocol):
    """A monitor of the run, as the recorder sees it."""

    name: str

    @property
    def overhead(self) -> float:
        """Share of training time that this monitor blocked so far."""

    def expects(self, moment: Moment) -> bool:
        """True when a snapshot of this moment is still to come from this monitor."""

    def failed(self, error: Exception, moment: Moment) -> None:
        """The worker could not finish a snapshot of this monitor."""


@dataclass
class _Pending:
    moment: Moment
    awaited: set[str]
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    seconds: float = 0.0
    overhead: float = 0.0


class Recorder:
    """Merges the monitors of a run into one store and one row per step.

    Args:
        store: the local store, written first.
        sinks: where rows go besides; one that fails three times in a row is left off.
        notices: where failures are said.
        raise_errors: raise a failure at the next call instead of saying it, for tests.
        background: False computes on the calling thread.
        alerts: what is worth a message, checked on every row; nothing by default.
        patience: seconds that a full queue may hold training up; then snapshots are left out until the worker is back.
            None waits for ever, for ranks whose workers count on each other.
    """

    def __init__(
        self,
        store: RunStore,
        sinks: Sequence[Sink] = (),
        *,
        notices: Notices | None = None,
        raise_errors: bool = False,
        background: bool = True,
        alerts: Alerts | None = None,
        patience: float | None = PATIENCE,
    ) -> None:
        self.store = store
        self.notices = notices or Notices()
        self.members: list[Member] = []
        self.alerts = alerts or Alerts(())
        self._announced: set[str] = set()
        self._sinks = [Breaker(sink, self.notices, raise_errors) for sink in sinks]
        self._raise_errors = raise_errors
        self._error: Exception | None = None
        self._pending: dict[int, _Pending] = {}
        self._last: Row | None = None
        self._worker = Worker(idle=store.heartbeat) if background else None
        self._patience = patience
        self._stuck = False  # the worker has used up our patience and is not back
        self._held: list[Callable[[], None]] = []  # until the other monitors have measured this moment
        self._closed = False

    def attach(self, member: Member) -> None:
        """A monitor joins the run."""
        self.members.append(member)
        self._announced.discard(member.name)

    def announce(self, names: Iterable[str]) -> None:
        """Monitors that will join: the first row waits for them too."""
        self._announced.update(names)

    def add_sinks(self, sinks: Sequence[Sink]) -> None:
        """More places for rows to go to; before training starts."""
        self._sinks += [Breaker(sink, self.notices, self._raise_errors) for sink in sinks]

    def submit(self, member: Member, moment: Moment, finish: Finish, *, seconds: float) -> None:
        """Hand over a snapshot that was taken; blocks while the worker is behind.

        The worker gets it when every monitor has measured this moment: it would slow down those that still measure.
        """
        to_come = {m.name for m in self.members if m is not member and m.expects(moment)}
        awaited = to_come | self._announced
        overhead = sum(m.overhead for m in self.members)  # one number for the run, whichever monitor measures
        for sink in self._sinks:
            sink.flush()
        self._held.append(lambda: self._finish(member, moment, finish, awaited, seconds, overhead))
        if not to_come or moment.final:
            self._release(self._patience)
        self._raise_if_asked()

    def miss(self, member: Member, moment: Moment) -> None:
        """A snapshot that others may wait for will not come."""
        self._held.append(lambda: self._arrive(member.name, moment, set(), None))
        self._release(self._patience)
        self._raise_if_asked()

    def _release(self, patience: float | None) -> None:
        held, self._held = self._held, []
        for job in held:
            self._do(job, patience)

    def _do(self, job: Callable[[], None], patience: float | None) -> None:
        if self._worker is None:
            self._guarded(job)
            return
        self._stuck = not self._worker.submit(lambda: self._guarded(job), 0.0 if self._stuck else patience)
        if self._stuck:
            self._say_stuck()

    def _say_stuck(self) -> None:
        self.notices.say(
            "stuck",
            f"the worker has not come back for {self._patience:.0f} s, perhaps because the disk of {self.store.path} "
            "does not answer. Training goes on; snapshots are left out until it is back.",
        )

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:  # nothing that goes wrong here may reach training
            self._error = self._error or error
            self.notices.say(
                f"recorder {type(error).__name__}", f"a snapshot was lost: {type(error).__name__}: {error}"
            )

    def _raise_if_asked(self) -> None:
        if self._raise_errors and self._error is not None:
            error, self._error = self._error, None
            raise error

    def _finish(
        self, member: Member, moment: Moment, finish: Finish, awaited: set[str], seconds: float, overhead: float
    ) -> None:
        try:
            snapshot = finish(moment.step)
        except Exception as error:  # the monitor says it in its own words
            self._error = self._error or error
            member.failed(error, moment)
            self._arrive(member.name, moment, awaited, None)
            return
        context = {"epoch": moment.epoch, "loss": moment.loss, "time": moment.time}
        snapshot = snapshot.with_columns(**context, seconds=seconds, overhead=overhead).with_flags(moment.flags)
        self._store(snapshot, member.name)
        self._arrive(member.name, moment, awaited, snapshot, seconds, overhead)

    def _store(self, snapshot: Snapshot, name: str) -> None:
        try:
            was_there = self.store.write(snapshot, name)
        except Exception as error:
            self._error = self._error or error
            self.notices.say(
                "store",
                f"the store at {self.store.path} could not be written at step {snapshot.step}: {_sentence(error)} "
                "Training and the other sinks go on; every later snapshot is tried again. Free some space, or check "
                "the directory.",
            )
            return
        if not was_there:
            self.notices.say(
                f"store anew {snapshot.step}",
                f"the store at {self.store.path} had vanished by step {snapshot.step} and was begun anew: it holds the "
                "snapshots from there on. Move or delete a run when its training has ended.",
            )

    def _arrive(
        self,
        name: str,
        moment: Moment,
        awaited: set[str],
        snapshot: Snapshot | None,
        seconds: float = 0.0,
        overhead: float = 0.0,
    ) -> None:
        for earlier in [step for step in self._pending if step < moment.step]:
            self._emit(self._pending.pop(earlier))
        entry = self._pending.setdefault(moment.step, _Pending(moment, set(awaited)))
        entry.awaited.discard(name)
        entry.seconds += seconds
        entry.overhead = max(entry.overhead, overhead)
        if snapshot is not None:
            entry.snapshots[name] = snapshot
        if not entry.awaited:
            self._emit(self._pending.pop(moment.step))

    def _emit(self, entry: _Pending) -> None:
        if not entry.snapshots:
            return
        moment = entry.moment
        run = {
            "headwatch/seconds": entry.seconds,
            "headwatch/overhead": entry.overhead,
            "headwatch/global_step": float(moment.step),
        }
        row = Row(moment.step, moment.x, moment.epoch, dict(entry.snapshots), run, moment.final)
        self._last = row
        for sink in self._sinks:
            sink.log(row)
        self._alarm(row)

    def _alarm(self, row: Row) -> None:
        for snapshot in row.snapshots.values():
            for alert in self.alerts.check(snapshot):
                self.notices.say(f"alert {alert.title}", alert.text)
                for sink in self._sinks:
                    sink.alert(alert)

    def flush(self, timeout: float = _FLUSH_WITHIN) -> None:
        """Wait until everything that was handed over is on disk: a checkpoint must not run ahead of the store."""
        if self._worker is None or self._closed:
            return
        done = threading.Event()
        deadline = time.monotonic() + timeout
        self._release(timeout)
        queued = self._worker.submit(done.set, 0.0 if self._stuck else timeout)
        self._stuck = self._stuck and not queued  # room in the queue: the worker is back
        if not queued or not done.wait(_until(deadline)):
            self.notices.say("flush", f"the store was more than {timeout:.0f} s behind a checkpoint that was saved.")

    def close(self, status: str, timeout: float | None = None) -> None:
        """End the run: finish what is queued, close the sinks, write the last word into the store.

        Args:
            status: "finished" or "failed".
            timeout: seconds to wait for the worker; by default 120 after training, 20 where it broke off.
        """
        if self._closed:
            return
        self._closed = True
        timeout = CLOSE_WITHIN.get(status, CLOSE_WITHIN["finished"]) if timeout is None else timeout
        if not self._ended(status, timeout):
            self.notices.say(
                "close", f"the worker did not end within {timeout:.0f} s; the last snapshots may be missing."
            )
        if status == "finished":  # what broke training off must not be hidden
            self._raise_if_asked()

    def _ended(self, status: str, timeout: float) -> bool:
        end = partial(self._guarded, partial(self._end, status))
        if self._worker is None:
            self._release(None)
            end()
            return True
        deadline = time.monotonic() + timeout
        self._release(timeout)
        return self._worker.submit(end, _until(deadline)) and self._worker.close(_until(deadline))

    def _end(self, status: str) -> None:
        for step in sorted(self._pending):
            self._emit(self._pending.pop(step))
        for sink in self._sinks:
            sink.close(self._last)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self._close_store(status=status, finished=now)
        for sink in self._sinks:
            sink.upload(self.store.path)

    def _close_store(self, **last_words: str) -> None:
        try:
            self.store.close(**last_words, messages=list(self.notices.messages))
        except Exception as error:
            self._error = self._error or error
            self.notices.say(
                "store end",
                f"the end of the run could not be written into the store at {self.store.path}: {_sentence(error)} What "
                "was stored before is whole, but run.json does not say how the run ended.",
            )


def _until(deadline: float) -> float:
    """Seconds that are left, on the monotonic clock."""
    return max(0.0, deadline - time.monotonic())


def _sentence(error: Exception) -> str:
    return f"{str(error).rstrip('.')}."
