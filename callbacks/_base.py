"""The thin class under every headwatch callback: validate and store, then begin work when training does."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from headwatch.alerts import Alerts
from headwatch.callbacks._config import batch_loss, weight_averaging, x_of
from headwatch.callbacks._lightning import LightningCallback, LightningModule, Trainer
from headwatch.callbacks._session import Session, session_of
from headwatch.heads import HeadMap, find_heads
from headwatch.heads.notes import notes_on
from headwatch.measure import Measure
from headwatch.metrics import Kind, check_metrics
from headwatch.parallel.discovery import Forwards, discover
from headwatch.price import Price
from headwatch.probe.calling import ProbeFn
from headwatch.probe.documents import probe_forwards
from headwatch.recorder import Moment
from headwatch.schedule import Schedule
from headwatch.watcher import OnError, Watcher

__all__ = ["HeadMonitor"]


class HeadMonitor(LightningCallback):
    """Base of the monitors: finds the heads, proves them on the first batch, watches at due steps."""

    kind: ClassVar[Kind]

    def __init__(
        self,
        *,
        every_n_train_steps: int,
        early_steps: Sequence[int],
        dirpath: str | None,
        name: str | None,
        include: Sequence[str],
        exclude: Sequence[str],
        heads: Sequence[Mapping[str, Any]] | None,
        prove: bool,
        probe_fn: ProbeFn | None,
        metrics: Sequence[str],
        log_heads: bool,
        alerts: Sequence[str],
        max_overhead: float,
        on_error: OnError,
    ) -> None:
        super().__init__()
        Schedule(every_n_train_steps, early_steps)  # says what is wrong with them
        if on_error not in ("warn", "raise"):
            raise ValueError(f"on_error: expected 'warn' or 'raise', found {on_error!r}.")
        if not 0 < max_overhead <= 1:
            raise ValueError(f"max_overhead: expected a share of training time in (0, 1], found {max_overhead!r}.")
        if name is not None and (not name or not name.replace("-", "").replace("_", "").isalnum()):
            raise ValueError(
                f"name: expected letters, digits, '-' and '_', found {name!r}; it enters paths and W&B keys."
            )
        if isinstance(include, str) or isinstance(exclude, str):
            raise ValueError("include and exclude: expected lists of patterns, found one string; write ['L03.*'].")
        if heads is not None and (include or exclude):
            raise ValueError(
                "heads= hands the heads over one by one; include= and exclude= select among found ones. Use one."
            )
        self.every_n_train_steps = every_n_train_steps
        self.early_steps = tuple(early_steps)
        self.dirpath = dirpath
        self.name = name
        self.include = tuple(include)
        self.exclude = tuple(exclude)
        self.heads = heads
        self.prove = prove
        self.probe_fn = probe_fn
        self.metrics = check_metrics(metrics, self.kind)
        self.log_heads = log_heads
        Alerts(alerts)  # says which kind is unknown
        self.alerts = tuple(alerts)
        self.max_overhead = max_overhead
        self.on_error: Literal["warn", "raise"] = on_error
        self._run_id: str | None = None
        self._stretch = 1
        self._said: dict[str, list[str]] = {}  # alerts of the run so far
        self._trainer: Any = None  # a weak reference
        self._forget()

    @property
    def monitor(self) -> str:
        """Name of this monitor: folder of the store and part of the W&B keys."""
        return self.kind if self.name is None else f"{self.kind}-{self.name}"

    @property
    def state_key(self) -> str:
        """Two monitors of one class keep two states."""
        return f"{type(self).__qualname__}{'' if self.name is None else '-' + self.name}"

    def _forget(self) -> None:
        self._session: Session | None = None
        self._watcher: Watcher | None = None
        self._head_map: HeadMap | None = None
        self._awaits_batch = False

    def __getstate__(self) -> dict[str, Any]:
        """Picklable for spawned processes: what one fit made stays behind."""
        fresh = {"_session": None, "_watcher": None, "_head_map": None, "_awaits_batch": False, "_trainer": None}
        return {**self.__dict__, **fresh}

    def measure(self, trainer: Trainer, pl_module: LightningModule, head_map: HeadMap, session: Session) -> Measure:
        """What this monitor measures on these heads."""
        raise TypeError(f"{type(self).__name__} must say what it measures: override measure().")

    def settings(self) -> dict[str, Any]:
        """Settings that ``run.json`` records."""
        return {
            "every_n_train_steps": self.every_n_train_steps,
            "early_steps": list(self.early_steps),
            "include": list(self.include),
            "exclude": list(self.exclude),
            "handed_over": self.heads is not None,
            "prove": self.prove,
            "metrics": list(self.metrics),
            "alerts": list(self.alerts),
            "max_overhead": self.max_overhead,
        }

    # -- hooks, in the order in which Lightning calls them ------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Join the session of this fit; two monitors of one name are refused here."""
        if stage != "fit":
            return
        if self._trainer is None or self._trainer() is not trainer:
            # another training: a checkpoint may still bring its own id
            self._run_id, self._stretch, self._said = None, 1, {}
        self._trainer = weakref.ref(trainer)
        self._forget()
        root = Path(self.dirpath or trainer.default_root_dir).absolute()
        self._session = session_of(trainer, root)
        self._session.join(self.monitor, self.settings(), self.metrics, self.log_heads, self.alerts)
        self._session.raise_errors |= self.on_error == "raise"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the heads by the rules that families share; the first batch proves them."""
        self._awaits_batch = self.prove
        try:
            self._head_map = self._find(pl_module, None)
        except ValueError:  # the first batch may show heads that the rules do not know
            if not self.prove:
                raise

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Snapshot of step 0, unless the first batch has to prove the heads first."""
        if not self._awaits_batch:
            self._begin(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Prove the heads on the first batch, before it is trained on; the weights are still those of step 0."""
        if not self._awaits_batch:
            return
        self._awaits_batch = False
        context = trainer.precision_plugin.forward_context
        try:
            forwards = probe_forwards(pl_module, batch, self._head_map, context=context, probe_fn=self.probe_fn)
            self._head_map = self._find(pl_module, forwards)
        except ValueError:
            raise  # no heads, or a pattern that matches none: said before any step is made
        except Exception as error:
            self._go_on_unproven(error)
        self._begin(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure when a due step was crossed."""
        watcher = self._watcher
        if watcher is not None and watcher.due(trainer.global_step):
            watcher.observe(_moment(trainer, batch_loss(trainer, outputs)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last snapshot; then the run is closed."""
        if self._watcher is not None:
            averaged = weight_averaging(trainer, self)
            self._watcher.observe(_moment(trainer, batch_loss(trainer, None), final=True, averaged=averaged))
        self._leave(trainer, "finished")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Training broke off: what was taken is still written."""
        self._leave(trainer, "failed")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep nothing of the model."""
        if stage == "fit":
            self._leave(trainer, "failed")

    def state_dict(self) -> dict[str, Any]:
        """The run's id and the interval in force, for a resume."""
        if self._session is not None and self._session.recorder is not None:
            self._session.recorder.flush()  # what a resume from this checkpoint relies on is on disk
        stretch = self._watcher.schedule.stretch if self._watcher is not None else self._stretch
        return {"run_id": self._run_id, "stretch": stretch, "alerts": self._alerts_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the run that the checkpoint belongs to."""
        self._run_id = state_dict.get("run_id")
        self._stretch = int(state_dict.get("stretch", 1))
        self._said = state_dict.get("alerts") or {}

    def _alerts_state(self) -> dict[str, list[str]]:
        recorder = self._session.recorder if self._session is not None else None
        return recorder.alerts.state() if recorder is not None else self._said

    def _go_on_unproven(self, error: Exception) -> None:
        if self._head_map is None or self.on_error == "raise":
            raise error
        assert self._session is not None
        self._session.notices.say(
            "proof",
            f"the heads could not be proven on the first batch and are read by rule: {type(error).__name__}: {error}.",
        )

    # -- steps ------------------------------------------------------------------------------------------------

    def _find(self, pl_module: LightningModule, forwards: Any) -> HeadMap:
        assert self._session is not None
        key = repr((self.include, self.exclude, self.heads, forwards is not None))
        root = pl_module.trainer.strategy.model

        def find(probe: Forwards | None) -> HeadMap:
            return find_heads(pl_module, probe=probe, include=self.include, exclude=self.exclude, heads=self.heads)

        return self._session.head_map(key, lambda: discover(pl_module, root, find, forwards))

    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the run and take the first snapshot."""
        session, head_map = self._session, self._head_map
        assert session is not None
        assert head_map is not None
        ranks = session.ranks
        if ranks.size == 1 and not trainer.is_global_zero:
            return  # processes that torch.distributed does not join: weights are replicated, one measures
        session.said = session.said or self._said
        measure = self.measure(trainer, pl_module, head_map, session)  # its errors come before a run opens
        recorder = session.open(trainer, pl_module, head_map, self._run_id)
        for key, text in notes_on(head_map):
            session.notices.say(key, text)
        self._run_id = session.run_id
        schedule = Schedule(self.every_n_train_steps, self.early_steps, self._stretch)
        price = Price(self.max_overhead)
        agree = ranks.agree if ranks.size > 1 else None
        self._watcher = Watcher(self.monitor, measure, schedule, recorder, price, on_error=self.on_error, agree=agree)
        self._watcher.resume(trainer.global_step, session.baselines())
        self._watcher.observe(_moment(trainer, None))

    def _leave(self, trainer: Trainer, status: str) -> None:
        session = self._session
        if self._watcher is not None:
            self._stretch = self._watcher.schedule.stretch
        self._forget()
        for name in ("log", "log_dict"):  # methods of the module, which Lightning puts on every callback
            vars(self).pop(name, None)
        if session is not None:
            session.leave(trainer, self.monitor, status)


def _moment(trainer: Trainer, loss: float | None, *, final: bool = False, averaged: str | None = None) -> Moment:
    flags = (f"averaged_weights:{averaged}",) if averaged else ()
    return Moment(trainer.global_step, x_of(trainer), trainer.current_epoch, time.time(), loss, final, flags)
