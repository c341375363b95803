"""Watch a Hugging Face ``Trainer``: the plain-loop monitor behind the Trainer's own events."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from headwatch.monitor import Monitor
from headwatch.run import find_runs
from headwatch.sinks.row import Sink

__all__ = ["HuggingFaceMonitor"]


class HuggingFaceMonitor:
    """A callback for ``transformers.Trainer``: ``Trainer(..., callbacks=[HuggingFaceMonitor()])``.

    It takes the arguments of :class:`headwatch.Monitor`, except ``model``, which the Trainer gives; ``dirpath`` is the
    Trainer's ``output_dir`` by default, and ``probe=batch`` proves the heads here too. A W&B run that is active when
    training starts gets the numbers that people watch.

    The Trainer calls its callbacks by event name, so no import of transformers is needed to be one.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._monitor: Monitor | None = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Events that say nothing to a monitor."""
        if not name.startswith("on_"):
            raise AttributeError(f"HuggingFaceMonitor has no attribute {name!r}")
        return _nothing

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Find the heads and take the first snapshot; a resumed Trainer goes on with its newest run."""
        settings = {"dirpath": args.output_dir, "config": _config(args), **self._settings}
        settings.setdefault("sinks", _wandb_sinks())
        if state.global_step and "run_id" not in settings:
            runs = find_runs(settings["dirpath"])
            if runs:
                settings |= {"run_id": runs[-1].name, "resume_from": state.global_step}
        self._monitor = Monitor(model, **settings)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure when a snapshot is due."""
        if self._monitor is not None:
            self._monitor.step(state.global_step, loss=_loss(state), epoch=int(state.epoch or 0))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """What a resume from this checkpoint relies on is on disk first."""
        if self._monitor is not None:
            self._monitor.state_dict()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The last snapshot; the run is closed."""
        if self._monitor is not None:
            monitor, self._monitor = self._monitor, None
            monitor.close()


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _loss(state: Any) -> float | None:
    logged = [entry["loss"] for entry in state.log_history[-3:] if "loss" in entry]
    return logged[-1] if logged else None


def _config(args: Any) -> dict[str, Any]:
    optimizer = {"lr": args.learning_rate, "weight_decay": args.weight_decay, "name": str(args.optim)}
    return {"optimizer": optimizer, "seed": args.seed, "batch_size": args.per_device_train_batch_size}


def _wandb_sinks() -> list[Sink]:
    """The active W&B run, if the Trainer started one; wandb is not imported for it."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None:
        return []
    from headwatch.sinks.wandb import WandbSink

    return [WandbSink(run)]
