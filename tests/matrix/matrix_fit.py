"""Train the same thing without and with both monitors, and say what was seen."""

import hashlib
import itertools
import random
import threading
from dataclasses import dataclass, field

import numpy as np
import pytorch_lightning as pl
import torch
from tiny import CONTEXT, VOCABULARY, Attention

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
        norms_agree: the norm of the first head in the store is that of the weights at that step, by brute force.
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
    norms_agree: bool = True
    once: bool = True
    status: str = ""
    heads: str = ""
    messages: list[str] = field(default_factory=list)
    note: str = ""


class Steps(LightningCallback):
    """Writes down the optimizer steps done, and ‖W_Kᵀ W_Q‖ of the first head then, apart from headwatch."""

    def __init__(self):
        self.seen = []
        self.norms = {}

    def on_train_start(self, trainer, pl_module):
        self.seen.append(trainer.global_step)
        self._measure(trainer, pl_module)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(trainer.global_step)
        self._measure(trainer, pl_module)

    def on_train_end(self, trainer, pl_module):
        self.at_end = _norm(pl_module)

    def _measure(self, trainer, pl_module):
        self.norms[trainer.global_step] = _norm(pl_module)


def _norm(model):
    attention = next(module for module in model.modules() if isinstance(module, Attention))
    W_Q, W_K = (p.weight[:8].detach().double() for p in (attention.q_proj, attention.k_proj))
    return float(torch.linalg.matrix_norm(W_K.T @ W_Q))


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
        for before, now in itertools.pairwise(global_steps)
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
    """One training of a cell: its fingerprint, what the callback beside the monitors saw, the Trainer."""
    torch._dynamo.reset()
    pl.seed_everything(3)
    model = cell.model()
    steps = Steps()
    fit = cell.trainer(root, [*cell.callbacks(), steps, *callbacks], **cell.options)
    cell.fit(fit, cell.prepare(model))
    return fingerprint(model, fit), steps, fit


def look(root, seen, beside=None):
    """Add what the store says, and whether it agrees with the callback beside the monitors."""
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
        if beside is not None:
            seen.norms_agree = _agree(run.to_pandas().query("layer == 0 and head == 0"), beside)
        seen.heads = "/".join(sorted({site["status"] for site in run.info["heads"]}))
    return seen


def _agree(rows, beside):
    """The first head's norms in the store and beside it; at the end averaged weights may be swapped in."""
    ends = [beside.at_end, beside.norms[beside.seen[-1]]]
    pairs = [(row.norm, [beside.norms[row.step]] if row.step != beside.seen[-1] else ends) for row in rows.itertuples()]
    return all(any(np.isclose(norm, value, rtol=1e-9) for value in values) for norm, values in pairs)


def twice(root, cell):
    """Train without and with the monitors."""
    before = _threads()
    plain, plain_beside, _ = trained(root / "plain", cell, [])
    watched, beside, fit = trained(root / "watched", cell, cell.monitors())
    seen = Seen(beside.seen, plain == watched and plain_beside.seen == beside.seen)
    seen = look(root / "watched", seen, beside)
    seen.note = cell.note(fit)
    assert _threads() <= before, "a thread is left behind"
    return seen


def _threads():
    return {thread.ident for thread in threading.enumerate() if thread.name.startswith("headwatch")}
