"""Trainings that end in bad ways, each in a process of its own: ``python endings.py <directory>``."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import scenarios
import torch

import headwatch.recorder
import headwatch.worker
from headwatch.callbacks import QKProfileMonitor

ENDLESS = 100_000
LIMIT = 60.0  # seconds for one ending


class Slow(scenarios.Net):
    """Says when it is under way, then trains on until something ends it."""

    def __init__(self, root: Path, boom: bool = False) -> None:
        super().__init__()
        self.root, self.boom = root, boom

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if self.global_step == 6:
            (self.root / "ready").touch()
            if self.boom:
                raise RuntimeError("boom")
        time.sleep(0.01)
        return super().training_step(batch, batch_idx)


def train(root: Path, boom: bool = False) -> None:
    trainer = pl.Trainer(
        max_steps=ENDLESS,
        accelerator="cpu",
        default_root_dir=root,
        callbacks=[QKProfileMonitor(every_n_train_steps=4, early_steps=(1, 2))],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Slow(root, boom), scenarios.data())


def exception(root: Path) -> None:
    train(root, boom=True)


def interrupt(root: Path) -> None:
    train(root)


def terminate(root: Path) -> None:
    train(root)


def stuck(root: Path) -> None:
    """The worker never comes back from its third snapshot."""
    headwatch.worker.CLOSE_WITHIN["failed"] = 2.0
    seen: list[int] = []
    write = headwatch.recorder.RunStore.write

    def hang(store: Any, snapshot: Any, name: str) -> None:
        seen.append(snapshot.step)
        time.sleep(1000.0 if len(seen) > 2 else 0.0)
        write(store, snapshot, name)

    headwatch.recorder.RunStore.write = hang
    train(root)


ENDINGS: dict[Callable[[Path], None], int | None] = {
    exception: None,
    interrupt: signal.SIGINT,
    terminate: signal.SIGTERM,
    stuck: signal.SIGINT,
}


def end(ending: Callable[[Path], None], root: Path) -> int:
    """Train until the end; exit status 70 for an exception that nobody caught. SIGUSR1 shows where it hangs."""
    faulthandler.register(signal.SIGUSR1, file=(root / "hung.txt").open("w"), all_threads=True)
    try:
        ending(root)
    except SystemExit as stop:
        return int(stop.code or 0)
    except BaseException:
        (root / "error.txt").write_text(traceback.format_exc())
        return 70
    return 0


def run(ending: Callable[[Path], None], number: int | None, root: Path) -> dict[str, Any]:
    """One ending in a process of its own: a fork of one that has threads may hang by itself."""
    child = subprocess.Popen([sys.executable, __file__, str(root), ending.__name__])
    deadline = time.monotonic() + LIMIT
    while not (root / "ready").exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    if number is not None:
        child.send_signal(number)
    sent = time.monotonic()
    try:
        return {"code": child.wait(max(1.0, deadline - sent)), "seconds": time.monotonic() - sent}
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGUSR1)
        time.sleep(1.0)
        child.kill()
        child.wait()
        return {"code": f"hung: {(root / 'hung.txt').read_text()}", "seconds": LIMIT}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if len(sys.argv) > 2:
        chosen = next(ending for ending in ENDINGS if ending.__name__ == sys.argv[2])
        os._exit(end(chosen, Path(sys.argv[1])))
    for ending, number in ENDINGS.items():
        place = Path(sys.argv[1]) / ending.__name__
        place.mkdir()
        (place / "result.json").write_text(json.dumps(run(ending, number, place)))
