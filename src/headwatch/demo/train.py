"""One training as a user would write it: a Trainer, a W&B logger, and two lines for headwatch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger, WandbLogger

from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor
from headwatch.demo.model import TextDecoder
from headwatch.demo.text import Corpus, Windows, loaders
from headwatch.run import find_runs

__all__ = ["Trained", "train"]

CONTEXT = 128
BATCH_SIZE = 16


@dataclass(frozen=True)
class Trained:
    """Where a training left its things.

    Attributes:
        store: the run's directory in headwatch's store.
        wandb: directory of the offline W&B run; None without W&B.
    """

    store: Path
    wandb: Path | None


def train(corpus: Corpus, directory: Path, *, steps: int, seed: int, wandb: bool) -> Trained:
    """Train the demo's decoder for a number of steps, watched."""
    pl.seed_everything(seed, verbose=False)
    directory.mkdir(parents=True, exist_ok=True)
    tokens = corpus.tokens()
    train_batches, val_batches = loaders(tokens, context=CONTEXT, batch_size=BATCH_SIZE, steps=steps, seed=seed)
    probe = Windows(tokens, CONTEXT, count=8, seed=1).batch()  # the same eight passages at every snapshot
    logger = _wandb_logger(directory, f"demo, seed {seed}") if wandb else False
    trainer = pl.Trainer(
        max_steps=steps,
        max_epochs=1,
        logger=logger,
        callbacks=[QKProfileMonitor(every_n_train_steps=50), MarginalAttentionMonitor(probe, every_n_train_steps=50)],
        default_root_dir=directory,
        enable_checkpointing=False,
        enable_model_summary=False,
        log_every_n_steps=10,
        val_check_interval=min(100, steps),
    )
    with _quiet():
        trainer.fit(TextDecoder(context=CONTEXT), train_batches, val_batches)
    return Trained(find_runs(directory)[-1], _wandb_directory(logger))


def _wandb_logger(directory: Path, name: str) -> Logger:
    """As a user would make it, but quiet: the command itself says where the run lies."""
    from wandb import Settings

    settings = Settings(silent=True)
    return WandbLogger(project="headwatch-demo", name=name, save_dir=directory, offline=True, settings=settings)


def _wandb_directory(logger: Logger | bool) -> Path | None:
    if not isinstance(logger, WandbLogger):
        return None
    directory = Path(logger.experiment.dir).parent
    logger.experiment.finish()  # the demo's own run: written out before its path is printed
    return directory


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Lightning's advice on data loader workers is right for real jobs and only noise here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # between Lightning and PyTorch
        yield
