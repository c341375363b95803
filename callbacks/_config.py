"""What a Trainer and its module say of the run: configuration, W&B run, loss, x-axis."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch

from headwatch.info import plain

if TYPE_CHECKING:
    from headwatch.callbacks._lightning import LightningModule, Trainer

__all__ = ["batch_loss", "run_config", "weight_averaging", "x_of"]

_AVERAGING = ("WeightAveraging", "EMAWeightAveraging", "StochasticWeightAveraging", "EMA")


def run_config(trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
    """The user's hyperparameters and what decides the course of training, as plain JSON."""
    hparams: dict[str, Any] = dict(getattr(pl_module, "hparams", {}) or {})
    config: dict[str, Any] = {
        "hparams": hparams,
        "seed": _seed(hparams),
        "trainer": {
            "max_steps": trainer.max_steps,
            "max_epochs": trainer.max_epochs,
            "precision": str(trainer.precision),
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "gradient_clip_val": trainer.gradient_clip_val,
            "world_size": trainer.world_size,
            "strategy": type(trainer.strategy).__name__,
        },
    }
    optimizers = [_optimizer(optimizer) for optimizer in trainer.optimizers]
    if optimizers:
        config["optimizer"] = optimizers[0] if len(optimizers) == 1 else optimizers
    result: dict[str, Any] = plain(config)
    return result


def _optimizer(optimizer: Any) -> dict[str, Any]:
    group = optimizer.param_groups[0]
    numbers = {key: value for key, value in group.items() if key != "params" and isinstance(value, (int, float, tuple))}
    # a scheduler's warm-up may hold the rate near zero at step 0: the user's number is initial_lr
    return {"name": type(optimizer).__name__, **numbers, "lr": group.get("initial_lr", group["lr"])}


def _seed(hparams: Mapping[str, Any]) -> int | None:
    seed = os.environ.get("PL_GLOBAL_SEED") or hparams.get("seed")
    return int(seed) if isinstance(seed, (int, str)) and str(seed).isdigit() else None


def x_of(trainer: Trainer) -> int:
    """Lightning's own x-axis value, ``trainer/global_step``: batches that stepped, as its monitors log it."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def batch_loss(trainer: Trainer, outputs: Any) -> float | None:
    """Loss of the training batch, not divided by ``accumulate_grad_batches``; None when the step returned none.

    Reading it waits for the device, so only when a snapshot is due.
    """
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return float(loss.detach()) * (trainer.accumulate_grad_batches if isinstance(outputs, Mapping) else 1)
    for name in ("train_loss_step", "train_loss", "train/loss_step", "train/loss", "loss"):
        if name in trainer.callback_metrics:
            return float(trainer.callback_metrics[name])
    return None


def weight_averaging(trainer: Trainer, monitor: object) -> str | None:
    """Name of a callback that has swapped averaged weights in when training ends: one that comes before ``monitor``."""
    callbacks: list[object] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    for callback in takewhile(lambda callback: callback is not monitor, callbacks):
        for cls in type(callback).__mro__:
            if cls.__name__ in _AVERAGING:
                return type(callback).__name__
    return None
