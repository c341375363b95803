"""What the monitors of one fit share: the recorder, the head maps, the run's identity."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwatch.alerts import Alerts
from headwatch.callbacks._config import run_config
from headwatch.callbacks._resume import earlier_info, missing_history, other_documents, refuse_other_numbers
from headwatch.heads import HeadMap
from headwatch.info import new_run_id, plain, run_info
from headwatch.notices import Notices
from headwatch.parallel import ALONE, Follower, PeerError, Ranks, current_ranks
from headwatch.recorder import PATIENCE, Recorder
from headwatch.run import load
from headwatch.sinks.row import Sink
from headwatch.sinks.store import RunStore

if TYPE_CHECKING:
    from headwatch.callbacks._lightning import LightningModule, Trainer

__all__ = ["Session", "session_of"]

_SESSIONS: weakref.WeakKeyDictionary[Any, dict[Path, Session]] = weakref.WeakKeyDictionary()


def session_of(trainer: Trainer, root: Path) -> Session:
    """The session of this trainer and root directory; made for the first monitor that asks."""
    sessions = _SESSIONS.setdefault(trainer, {})
    if root not in sessions:
        ranks = current_ranks()
        sessions[root] = Session(root, ranks=ranks, notices=Notices(aloud=trainer.is_global_zero))
    return sessions[root]


@dataclass
class Session:
    """One fit.

    Attributes:
        root: directory under which ``headwatch/<run id>`` lies.
        settings: settings of every monitor, for ``run.json``.
        metrics: per-head W&B metrics of every monitor.
        alerts: kinds of alerts that some monitor asks for.
        said: alerts of a resumed run so far.
        raise_errors: some monitor has ``on_error="raise"``: what fails on the worker is raised too.
        ranks: the processes of this fit; rank 0 has the recorder, the others followers.
    """

    root: Path
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    log_heads: dict[str, bool] = field(default_factory=dict)
    alerts: set[str] = field(default_factory=set)
    said: dict[str, list[str]] = field(default_factory=dict)
    notices: Notices = field(default_factory=Notices)
    raise_errors: bool = False
    ranks: Ranks = ALONE
    run_id: str | None = None
    recorder: Recorder | None = None
    follower: Follower | None = None
    _head_maps: dict[str, HeadMap] = field(default_factory=dict)
    _open_members: set[str] = field(default_factory=set)

    def join(
        self, name: str, settings: dict[str, Any], metrics: Sequence[str], log_heads: bool, alerts: Sequence[str] = ()
    ) -> None:
        """A monitor takes part.

        Raises:
            ValueError: another monitor of the same class and name is in this trainer.
        """
        if name in self.settings:
            raise ValueError(
                f"two headwatch monitors are called {name!r}: they would write the same files and W&B keys. "
                "Give one of them name='...', which enters both."
            )
        self.settings[name] = settings
        self.metrics[name] = tuple(metrics)
        self.log_heads[name] = log_heads
        self.alerts.update(alerts)
        self._open_members.add(name)

    def head_map(self, key: str, find: Callable[[], HeadMap]) -> HeadMap:
        """The head map for these selection settings; found once for all monitors that share them.

        All ranks look, for a forward may need them all; what rank 0 found, or failed at, holds for all.
        """
        if key not in self._head_maps:
            self._head_maps[key] = self._found(find)
        return self._head_maps[key]

    def _found(self, find: Callable[[], HeadMap]) -> HeadMap:
        found, error = None, None
        try:
            found = find()
        except Exception as problem:
            error = problem
        found, said, is_value = self.ranks.share((found, str(error or ""), isinstance(error, ValueError)))
        if found is not None:
            return found
        if self.ranks.leads and error is not None:
            raise error
        raise ValueError(said) if is_value else PeerError(said)

    def open(
        self, trainer: Trainer, pl_module: LightningModule, head_map: HeadMap, stored_id: str | None
    ) -> Recorder | Follower:
        """The recorder of the run; made by the first monitor that has its heads. A follower on ranks other than 0."""
        if self.recorder is None and self.follower is None:
            self.recorder = self.ranks.lead(lambda: self._recorder(trainer, pl_module, head_map, stored_id))
            self.run_id = self.ranks.share(self.run_id)
            self.follower = None if self.ranks.leads else Follower(self.notices)
        opened = self.recorder or self.follower
        assert opened is not None
        return opened

    def _recorder(
        self, trainer: Trainer, pl_module: LightningModule, head_map: HeadMap, stored_id: str | None
    ) -> Recorder:
        wandb_run = _wandb_run(trainer)
        self.run_id = _run_id(wandb_run, stored_id)
        store = self._store(trainer, pl_module, head_map, wandb_run, stored_id)
        recorder = Recorder(
            store,
            notices=self.notices,
            raise_errors=self.raise_errors and self.ranks.size == 1,  # one rank that stops would hang the others
            alerts=Alerts(self.alerts, self.said),
            patience=PATIENCE if self.ranks.size == 1 else None,
        )
        recorder.announce(self._open_members)
        recorder.add_sinks(self._sinks(trainer, store))
        return recorder

    def _store(
        self, trainer: Trainer, pl_module: LightningModule, head_map: HeadMap, wandb_run: Any, stored_id: str | None
    ) -> RunStore:
        assert self.run_id is not None
        path = self.root / "headwatch" / self.run_id
        continues = stored_id if stored_id not in (None, self.run_id) else None
        if trainer.global_step and stored_id is not None:
            self._hold_against(stored_id, trainer.global_step)
        info = run_info(
            self.run_id,
            str(getattr(wandb_run, "name", None) or self.run_id),
            pl_module,
            head_map,
            settings=self.settings,
            config=run_config(trainer, pl_module),
            wandb=_wandb_info(wandb_run),
            resumed_at=trainer.global_step or None,
            continues=continues,
        )
        store = RunStore(path, _resumed(path, info))
        # from step 0 the run begins anew; what was there is kept, marked
        store.supersede_after(trainer.global_step or -1)
        return store

    def _hold_against(self, stored_id: str, step: int) -> None:
        """A resume: is the run here that the checkpoint belongs to, and does it hold numbers of the same meaning?"""
        earlier = earlier_info(self.root / "headwatch" / stored_id)
        if not earlier:
            self.notices.say("history", missing_history(self.root, stored_id, step))
        before = earlier.get("settings") or {}
        refuse_other_numbers(before, self.settings)
        for message in other_documents(before, self.settings):
            self.notices.say(message, message)

    def _sinks(self, trainer: Trainer, store: RunStore) -> list[Sink]:
        from headwatch.sinks.loggers import LoggerSink
        from headwatch.sinks.wandb import WandbSink, wandb_run_of

        sinks: list[Sink] = []
        metrics = {name: keys if self.log_heads[name] else () for name, keys in self.metrics.items()}
        for logger in trainer.loggers:
            if type(logger).__name__ == "DummyLogger":
                continue
            run = wandb_run_of(logger)
            if run is not None:
                # a resumed run's: the pictures' trails go on
                earlier = load(store.path).profile if store.steps("profile") else None
                sinks.append(WandbSink(run, metrics=metrics, history=earlier, say=self.notices.say))
            else:
                sinks.append(LoggerSink(logger, metrics=metrics))
        return sinks

    def baselines(self) -> list[Path]:
        """Stores with earlier snapshots of this training: the run that it continues, and its own."""
        if self.recorder is None:
            return []
        store = self.recorder.store
        continues = store.info.get("continues")
        before = [self.root / "headwatch" / continues] if continues else []
        return [*(path for path in before if (path / "run.json").is_file()), store.path]

    def leave(self, trainer: Trainer, name: str, status: str) -> None:
        """A monitor is done; with the last one the run is closed and forgotten."""
        self._open_members.discard(name)
        if self._open_members:
            return
        _SESSIONS.get(trainer, {}).pop(self.root, None)
        if self.recorder is not None:
            recorder, self.recorder = self.recorder, None
            recorder.close(status)
        if self.follower is not None:
            follower, self.follower = self.follower, None
            follower.close(status)

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root}


def _wandb_run(trainer: Trainer) -> Any:
    from headwatch.sinks.wandb import wandb_run_of

    runs = [run for logger in trainer.loggers if (run := wandb_run_of(logger)) is not None]
    return runs[0] if runs else None


def _run_id(wandb_run: Any, stored_id: str | None) -> str:
    return str(wandb_run.id) if wandb_run is not None else (stored_id or new_run_id())


def _wandb_info(run: Any) -> dict[str, Any] | None:
    if run is None:
        return None
    keys = ["entity", "project", "id", "name", "dir"]
    if not getattr(run, "offline", True):
        keys.append("url")  # asked of an offline run, W&B prints a warning
    info: dict[str, Any] = plain({key: getattr(run, key, None) for key in keys})
    return info


def _resumed(path: Path, info: dict[str, Any]) -> dict[str, Any]:
    """The new description, with what only the first one knows."""
    before = earlier_info(path)
    if not before:
        return info
    kept: dict[str, Any] = {key: before[key] for key in ("created", "null") if key in before}
    return {**info, **kept, "messages": [*before.get("messages", []), *info["messages"]]}
