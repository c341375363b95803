"""Watching without a Trainer: one monitor for a plain training loop, and the profile of a model as it stands."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from headwatch.heads import HeadMap, find_heads, named_parameters
from headwatch.heads.errors import advising
from headwatch.heads.notes import notes_on
from headwatch.info import new_run_id, run_info
from headwatch.measure import Measure, ProfileMeasure
from headwatch.options import FormOptions
from headwatch.price import Price
from headwatch.probe.batches import moved
from headwatch.probe.calling import ProbeFn
from headwatch.probe.documents import probe_batches, probe_forwards
from headwatch.probe.measure import SignatureMeasure
from headwatch.recorder import Moment, Recorder
from headwatch.schedule import EARLY_STEPS, Schedule
from headwatch.sinks.row import Sink
from headwatch.sinks.store import RunStore
from headwatch.tables import HeadTable
from headwatch.watcher import OnError, Watcher

__all__ = ["Monitor", "profile"]

_PROVE = (
    "give a batch, probe=batch: on a forward pass heads are found by what the model does, whatever its projections are "
    "called; where model(batch) is not how it runs, say how: probe_fn=lambda model, batch: ..."
)
_UNPROVEN = "Give a batch, probe=batch, which proves them."
_SAY_HOW = (
    "give a batch on which model(batch) runs its self-attention; or say how it runs: probe_fn=lambda model, batch: ..."
)


def profile(
    model: nn.Module | str | Path | Mapping[str, Tensor],
    *,
    probe: Any = None,
    probe_fn: ProbeFn | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    options: FormOptions | None = None,
    null: bool = False,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
) -> HeadTable:
    """The profile of every head of a model, as it stands.

    Args:
        model: any model with self-attention; or a checkpoint (a file or directory, see ``headwatch profile --help``)
            or a state dict, of which only the query and key tensors are read.
        probe: documents to prove the heads on: a batch, a list of batches or documents, a dataloader. Without, heads
            are read by rule and flagged "structural".
        probe_fn: ``probe_fn(model, batch)`` runs the forward; by default the model is called on the batch.
        include: patterns of module names or heads ("L03.*"); everything by default.
        exclude: patterns to leave out.
        options: which form; the weights alone by default.
        null: give each head's place in the null of its shape, which takes seconds to simulate the first time.
        n_heads: query heads per layer, for weights that no configuration stands beside.
        n_kv_heads: key-value heads per layer, where they are fewer.

    Returns:
        One row per head. ``to_pandas()`` and ``to_polars()`` convert; ``table`` is the pyarrow table beneath.

    Raises:
        NoAttentionError: no self-attention head was found.
    """
    if not isinstance(model, nn.Module):
        from headwatch.posthoc import Reading, profile_weights

        reading = Reading(n_heads, n_kv_heads, tuple(include), tuple(exclude), options or FormOptions(), null)
        return profile_weights(model, reading)
    head_map = _find(model, probe, probe_fn, include, exclude)
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
        probe: fixed documents: a batch, a list of batches or documents, a dataloader. They prove the heads, and the
            marginal signatures are measured on them. Without, heads are read by rule, and there are profiles alone.
        probe_fn: ``probe_fn(model, batch)`` runs the forward; by default the model is called on the batch.
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
        probe: Any = None,
        probe_fn: ProbeFn | None = None,
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
        Schedule(every_n_train_steps, early_steps)  # says what is wrong with them before anything is written
        head_map = _find(model, probe, probe_fn, include, exclude)
        self.run_id = run_id or new_run_id()
        self.path = Path(dirpath) / "headwatch" / self.run_id
        own = {"every_n_train_steps": every_n_train_steps, "early_steps": list(early_steps)}
        own |= {"include": list(include), "exclude": list(exclude), "max_overhead": max_overhead}
        settings = dict.fromkeys(("profile", *(() if probe is None else ("signature",))), own)
        info = run_info(
            self.run_id, name or self.run_id, model, head_map, settings=settings, config=config or {}, wandb=None
        )
        store = RunStore(self.path, info)
        store.supersede_after(resume_from or -1)
        self._recorder = Recorder(store, sinks, raise_errors=on_error == "raise")
        for key, text in notes_on(head_map, _UNPROVEN if probe is None else ""):
            self._recorder.notices.say(key, text)
        self._abandoned = weakref.finalize(self, self._recorder.close, "failed")  # a loop that forgot close()
        self._watchers = [
            Watcher(
                measure.kind,
                measure,
                Schedule(every_n_train_steps, early_steps),
                self._recorder,
                Price(max_overhead),
                on_error=on_error,
            )
            for measure in self._measures(model, head_map, options, probe, probe_fn)
        ]
        for watcher in self._watchers:
            watcher.resume(resume_from, [self.path])
        self._last = _moment(resume_from, None, 0)
        self._observe(self._last)

    def _measures(
        self, model: nn.Module, head_map: HeadMap, options: FormOptions | None, probe: Any, probe_fn: ProbeFn | None
    ) -> list[Measure]:
        notices = self._recorder.notices
        parameters = partial(named_parameters, model)
        measures: list[Measure] = [ProfileMeasure(head_map, parameters, options=options, notices=notices)]
        if probe is not None:
            documents = probe_batches(probe)
            measures.append(SignatureMeasure(model, head_map, documents, probe_fn=probe_fn, notices=notices))
        return measures

    def step(self, step: int, *, loss: float | Tensor | None = None, epoch: int = 0) -> None:
        """Call after every optimizer step; measures when a snapshot is due.

        Args:
            step: optimizer steps done so far, counted from 1.
            loss: training loss, read only when a snapshot is due.
            epoch: current epoch.
        """
        if step < self._last.step:
            self._recorder.notices.say(
                "step back",
                f"step({step}) was called after step({self._last.step}): expected the optimizer steps done so far, "
                "which only grow. The call is left out.",
            )
            return
        if any(watcher.due(step) for watcher in self._watchers):
            self._observe(_moment(step, loss, epoch))
        if step != self._last.step:
            self._last = _moment(step, None, epoch)

    def _observe(self, moment: Moment) -> None:
        for watcher in self._watchers:
            watcher.observe(moment)

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs: ``Monitor(model, **state)``. Call it when you save a checkpoint.

        It first waits until the snapshots taken so far are on disk: a checkpoint never runs ahead of the store.
        """
        self._recorder.flush()
        return {"run_id": self.run_id, "resume_from": self._last.step}

    def close(self, status: str = "finished") -> None:
        """Take the last snapshot and end the run."""
        self._abandoned.detach()
        if status == "finished":
            self._observe(_moment(self._last.step, None, self._last.epoch, final=True))
        self._recorder.close(status)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("finished" if kind is None else "failed")


def _find(
    model: nn.Module, probe: Any, probe_fn: ProbeFn | None, include: Sequence[str], exclude: Sequence[str]
) -> HeadMap:
    if probe is None:
        with advising(_PROVE):
            return find_heads(model, include=include, exclude=exclude)
    first = probe_batches(probe, max_batches=1)[0].batch
    device = next((p.device for p in model.parameters()), None)
    forwards = probe_forwards(model, first if device is None else moved(first, device), probe_fn=probe_fn)
    with advising(_SAY_HOW):
        return find_heads(model, probe=forwards, include=include, exclude=exclude)


def _moment(step: int, loss: float | Tensor | None, epoch: int, *, final: bool = False) -> Moment:
    number = float(loss.detach()) if isinstance(loss, Tensor) else loss
    return Moment(step, step, epoch, time.time(), number, final)
