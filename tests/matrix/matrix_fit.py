"""Train the same thing without and with both monitors, and say what was seen."""

import hashlib
import random
import threading
from dataclasses import dataclass, field

import numpy as np
import pytorch_lightning as pl
import torch
from tiny import CONTEXT, VOCABULARY

import headwatch
from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor
from headwatch.callbacks._lightning import LightningCallback

EARLY = (1, 2)
EVERY = {"profile": 5, "signature": 4}  # steps between snapshots of each monitor
DOCUMENTS = torch.randint(0, VOCABULARY, (4, CONTEXT), generator=torch.Generator().manual_seed(1))


@dataclass
class Seen:
    """What two trainings showed.

    Attributes:
        global_steps: ``trainer.global_step`` at the start and after every batch.
        identical: losses, weights, optimizer state and random states of both are bit for bit the same.
        runs: runs in the store.
        steps: steps that the store has, by monitor.
        once: every stored step has each head exactly once, and nothing half written is left.
        status: what ``run.json`` says of the end.
        heads: how the heads were found.
        messages: warnings kept in ``run.json``.
        note: what else a reader should know.
    """

    global_steps: list[int] = field(default_factory=list)
    identical: bool = False
    runs: int = 0
    steps: dict[str, list[int]] = field(default_factory=dict)
    once: bool = True
    status: str = ""
    heads: str = ""
    messages: list[str] = field(default_factory=list)
    note: str = ""


class Steps(LightningCallback):
    """Writes down the optimizer steps done, apart from headwatch."""

    def __init__(self):
        self.seen = []

    def on_train_start(self, trainer, pl_module):
        self.seen.append(trainer.global_step)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(trainer.global_step)


def both(**settings):
    """Both monitors; a failure of theirs fails the test."""
    settings = {"early_steps": EARLY, "on_error": "raise", "max_overhead": 1.0, **settings}
    return [
        QKProfileMonitor(every_n_train_steps=EVERY["profile"], **settings),
        MarginalAttentionMonitor(DOCUMENTS, every_n_train_steps=EVERY["signature"], **settings),
    ]


def expected_steps(global_steps, every):
    """Due steps by the rule in words: the start, whatever crosses a boundary, the end."""
    crossed = {
        now
        for before, now in zip(global_steps, global_steps[1:], strict=False)
        if any(before < due <= now and (due in EARLY or due % every == 0) for due in range(now + 1))
    }
    return sorted({global_steps[0], *crossed, global_steps[-1]})


def fingerprint(model, fit):
    """Everything that training leaves behind: losses, weights, optimizer states, random states, compiled graphs."""
    digest = hashlib.sha256()
    tensors = list(model.state_dict().values())
    for optimizer in fit.optimizers:
        tensors += _tensors(optimizer.state_dict()["state"])
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    digest.update(repr((random.getstate(), np.random.get_state(legacy=True)[1].tolist())).encode())
    return digest.hexdigest(), repr(model.losses), getattr(model, "graphs", 0)


def _tensors(state):
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, list | tuple):
        return [tensor for value in state for tensor in _tensors(value)]
    return [torch.as_tensor(state)] if isinstance(state, torch.Tensor | int | float) else []


def trained(root, cell, callbacks):
    """One training of a cell: its fingerprint, the steps that it made, the Trainer."""
    torch._dynamo.reset()
    pl.seed_everything(3)
    model = cell.model()
    steps = Steps()
    fit = cell.trainer(root, [*cell.callbacks(), steps, *callbacks], **cell.options)
    cell.fit(fit, cell.prepare(model))
    return fingerprint(model, fit), steps.seen, fit


def look(root, seen):
    """Add what the store says."""
    folders = sorted((root / "headwatch").iterdir()) if (root / "headwatch").exists() else []
    seen.runs = len(folders)
    if seen.runs == 1:
        run = headwatch.load(root)
        tables = {name: run.table(name)["step"].to_pylist() for name in run.monitors}
        seen.steps = {name: sorted(set(steps)) for name, steps in tables.items()}
        seen.once = all(steps.count(step) == 4 for steps in tables.values() for step in set(steps))
        seen.once &= not list(run.path.glob(".tmp/*"))
        seen.status = run.info["status"]
        seen.messages = run.info["messages"]
        seen.heads = "/".join(sorted({site["status"] for site in run.info["heads"]}))
    return seen


def twice(root, cell):
    """Train without and with the monitors."""
    plain, plain_steps, _ = trained(root / "plain", cell, [])
    watched, steps, fit = trained(root / "watched", cell, cell.monitors())
    seen = look(root / "watched", Seen(steps, plain == watched and plain_steps == steps))
    seen.note = cell.note(fit)
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("headwatch")]
    assert left == [], f"threads are left behind: {left}"
    return seen
