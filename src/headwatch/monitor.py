"""Watching without a Trainer: one monitor for a plain training loop, and the profile of a model as it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from headwatch.heads import HeadMap, find_heads, named_parameters
from headwatch.info import new_run_id, run_info
from headwatch.measure import FormOptions, ProfileMeasure
from headwatch.notices import Notices
from headwatch.price import Price
from headwatch.recorder import Moment, Recorder
from headwatch.schedule import EARLY_STEPS, Schedule
from headwatch.sinks.row import Sink
from headwatch.sinks.store import RunStore
from headwatch.tables import HeadTable
from headwatch.watcher import OnError, Watcher

__all__ = ["Monitor", "profile"]

Probe = Sequence[Callable[[], object]]


def profile(
    model: nn.Module,
    *,
    probe: Probe | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    options: FormOptions | None = None,
    null: bool = False,
) -> HeadTable:
    """The profile of every head of a model, as it stands.

    Args:
        model: any model with self-attention.
        probe: functions without arguments that each run one forward of the model; they prove the heads.
            Without, heads are read by rule and flagged "structural".
        include: patterns of module names or heads ("L03.*"); everything by default.
        exclude: patterns to leave out.
        options: which form; the weights alone by default.
        null: give each head's place in the null of its shape, which takes seconds to simulate the first time.

    Returns:
        One row per head. ``to_pandas()`` and ``to_polars()`` convert; ``table`` is the pyarrow table beneath.

    Raises:
        NoAttentionError: no self-attention head was found.
    """
    head_map = find_heads(model, probe=probe, include=include, exclude=exclude)
    measure = ProfileMeasure(head_map, lambda: named_parameters(model), options=options, null=null)
    snapshot = measure.take(0)(0)
    return HeadTable(snapshot.heads, tuple((item.module, item.reason) for item in head_map.left_out))


class Monitor:
    """Watch the heads of a model in a loop of your own.

    Args:
        model: the model that is trained.
        dirpath: root of the store; the run lies in ``<dirpath>/headwatch/<run id>``.
        every_n_train_steps: interval in optimizer steps, after the early steps.
        early_steps: extra due steps at the start.
        probe: functions that each run one forward of the model; they prove the heads.
        include: patterns of module names or heads to watch.
        exclude: patterns to leave out.
        run_id: an earlier run to go on with; a new one by default.
        resume_from: step from which that run goes on; later rows are superseded.
        name: what people call the run.
        config: your hyperparameters, for comparison of runs.
        sinks: where rows go besides the store, such as ``headwatch.sinks.wandb.WandbSink(run)``.
        options: which form.
        max_overhead: largest share of training time.
        on_error: "warn" or "raise".

    Example::

        monitor = headwatch.Monitor(model, dirpath="runs")
        for step, batch in enumerate(batches, start=1):
            train(model, batch)
            monitor.step(step)
        monitor.close()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        dirpath: str | Path = ".",
        every_n_train_steps: int = 100,
        early_steps: Sequence[int] = EARLY_STEPS,
        probe: Probe | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        run_id: str | None = None,
        resume_from: int = 0,
        name: str = "",
        config: Mapping[str, Any] | None = None,
        sinks: Sequence[Sink] = (),
        options: FormOptions | None = None,
        max_overhead: float = 0.01,
        on_error: OnError = "warn",
    ) -> None:
        schedule = Schedule(every_n_train_steps, early_steps)
        head_map = find_heads(model, probe=probe, include=include, exclude=exclude)
        self.run_id = run_id or new_run_id()
        self.path = Path(dirpath) / "headwatch" / self.run_id
        self._recorder = self._open(model, head_map, name, config or {}, sinks, resume_from, on_error)
        parameters: Callable[[], Mapping[str, Tensor]] = lambda: named_parameters(model)  # noqa: E731
        measure = ProfileMeasure(head_map, parameters, options=options, notices=self._recorder.notices)
        self._watcher = Watcher("profile", measure, schedule, self._recorder, Price(max_overhead), on_error=on_error)
        self._watcher.resume(resume_from, [self.path])
        self._last = _moment(resume_from, None, 0)
        self._watcher.observe(self._last)

    def _open(
        self,
        model: nn.Module,
        head_map: HeadMap,
        name: str,
        config: Mapping[str, Any],
        sinks: Sequence[Sink],
        resume_from: int,
        on_error: OnError,
    ) -> Recorder:
        info = run_info(self.run_id, name or self.run_id, model, head_map, settings={}, config=config, wandb=None)
        store = RunStore(self.path, info)
        store.supersede_after(resume_from or -1)
        return Recorder(store, sinks, notices=Notices(), raise_errors=on_error == "raise")

    def step(self, step: int, *, loss: float | Tensor | None = None, epoch: int = 0) -> None:
        """Call after every optimizer step; measures when a snapshot is due.

        Args:
            step: optimizer steps done so far, counted from 1.
            loss: training loss, read only when a snapshot is due.
            epoch: current epoch.
        """
        if self._watcher.due(step):
            self._watcher.observe(_moment(step, loss, epoch))
        self._last = _moment(step, None, epoch) if step != self._last.step else self._last

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs: ``Monitor(model, **state)``. Call it when you save a checkpoint.

        It first waits until the snapshots taken so far are on disk: a checkpoint never runs ahead of the store.
        """
        self._recorder.flush()
        return {"run_id": self.run_id, "resume_from": self._last.step}

    def close(self, status: str = "finished") -> None:
        """Take the last snapshot and end the run."""
        if status == "finished":
            self._watcher.observe(_moment(self._last.step, None, self._last.epoch, final=True))
        self._recorder.close(status)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("finished" if kind is None else "failed")


def _moment(step: int, loss: float | Tensor | None, epoch: int, *, final: bool = False) -> Moment:
    return Moment(step, step, epoch, time.time(), _number(loss), final)


def _number(loss: float | Tensor | None) -> float | None:
    return float(loss.detach()) if isinstance(loss, Tensor) else loss
