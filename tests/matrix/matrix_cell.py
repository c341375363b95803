"""One cell of the matrix, and how it is trained."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytorch_lightning as pl
from matrix_fit import EVERY, both, twice
from tiny import Tiny, batches, trainer

__all__ = ["Cell", "with_validation"]


def _fit(trainer, model):
    trainer.fit(model, batches())


def with_validation(trainer, model):
    """Train with validation batches."""
    trainer.fit(model, batches(), batches(n=8))


@dataclass(frozen=True)
class Cell:
    """One thing that a Trainer can be asked to do.

    Attributes:
        option: what is asked, as the table says it.
        last: optimizer steps that it makes.
        options: arguments of the Trainer.
        model: makes the module.
        callbacks: makes further callbacks.
        fit: trains.
        prepare: what is done to the module first.
        note: what a reader should know, from the Trainer after the fit.
        trainer: makes the Trainer.
        monitors: makes the monitors.
        every: interval of each monitor, by name.
        run: shows the cell; by default without and with the monitors.
        runs: runs that it leaves in the store; 0 where nothing is trained.
        status: how ``run.json`` says that it ended.
        heads: how the heads are found.
    """

    option: str
    last: int
    options: dict[str, Any] = field(default_factory=dict)
    model: Callable[[], Any] = Tiny
    callbacks: Callable[[], list[pl.Callback]] = list
    fit: Callable[[Any, Any], object] = _fit
    prepare: Callable[[Any], Any] = lambda model: model
    note: Callable[[Any], str] = lambda trainer: ""
    trainer: Callable[..., Any] = trainer
    monitors: Callable[[], list[pl.Callback]] = both
    every: dict[str, int] = field(default_factory=lambda: dict(EVERY))
    run: Callable[..., Any] = twice
    runs: int = 1
    status: str = "finished"
    heads: str = "proven"
