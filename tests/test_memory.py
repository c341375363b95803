"""What watching keeps in memory: nothing that grows, nothing of the model, at most a layer's factors at a time."""

import gc
import os
import weakref
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import headwatch
from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor
from headwatch.heads import find_heads, named_parameters
from headwatch.measure import ProfileMeasure
from headwatch.parallel import Source
from headwatch.price import Price

N, HEADS, LAYERS, VOCABULARY = 16, 2, 2, 16


class Attention(nn.Module):
    def __init__(self, N, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(N, N) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Net(pl.LightningModule):
    def __init__(self, N=N, n_heads=HEADS, n_layers=LAYERS):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, N)
        self.blocks = nn.Sequential(*(Attention(N, n_heads) for _ in range(n_layers)))
        self.head = nn.Linear(N, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def batches():
    return DataLoader(torch.randint(0, VOCABULARY, (64, 9), generator=torch.Generator().manual_seed(1)), batch_size=4)


def train(root, callbacks, model, steps):
    trainer = pl.Trainer(
        max_steps=steps, accelerator="cpu", default_root_dir=root, callbacks=callbacks, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, batches())


def resident():
    """MiB of this process in memory: Python's, torch's and Arrow's together."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Sizes(pl.Callback):
    """Memory in use once the worker has caught up."""

    def __init__(self, steps):
        self.at = dict.fromkeys(steps, 0.0)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step in self.at:
            [monitor] = [c for c in trainer.callbacks if isinstance(c, QKProfileMonitor)]
            monitor._session.recorder.flush()
            gc.collect()
            self.at[trainer.global_step] = resident()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the kernel's account of this process")
def test_no_growth_over_a_thousand_snapshots(tmp_path, monkeypatch):
    monkeypatch.setattr(Price, "stretch", lambda *given: 1)
    sizes = Sizes((200, 1000))
    train(tmp_path, [QKProfileMonitor(1, early_steps=(), on_error="raise"), sizes], Net(64, 4, 2), 1000)
    assert len(headwatch.load(tmp_path).steps()) == 1001
    kept = 800 * 2 * 2 * 64 * 64 * 4 / 2**20  # MiB, if every snapshot's factors stayed
    assert sizes.at[1000] - sizes.at[200] < kept / 5


def test_nothing_of_the_model_is_alive_after_fit(tmp_path):
    monitors = [QKProfileMonitor(4, on_error="raise"), MarginalAttentionMonitor(torch.zeros(2, 8, dtype=torch.long), 4)]
    model = Net()
    kept = [weakref.ref(model), weakref.ref(model.blocks[0]), weakref.ref(model.blocks[1].q_proj.weight)]
    train(tmp_path, monitors, model, 9)
    del model
    gc.collect()
    assert [reference() for reference in kept] == [None, None, None]


class Live(TorchDispatchMode):
    """Bytes of the storages that operations inside have made and that are still alive; the largest sum."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = self.largest = 0
        self._seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage):
        key, size = storage.data_ptr(), storage.nbytes()
        if key in self._seen or key in self.own:
            return
        self._seen.add(key)
        self.now += size
        self.peak, self.largest = max(self.peak, self.now), max(self.largest, size)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key, size):
        self._seen.discard(key)
        self.now -= size


class Whole:
    """A stand-in for a sharded parameter: its whole is made when it is asked for."""

    def __init__(self, tensor):
        self._tensor = tensor
        self.placements = (type("Shard", (), {"dim": 1})(),)
        self.device_mesh = type("Mesh", (), {"device_type": "cpu"})()
        self.shape = tensor.shape

    def detach(self):
        return self

    def to(self, device):
        return self

    def dim(self):
        return self._tensor.dim()

    def full_tensor(self):
        return self._tensor.clone()


def test_sharded_weights_are_whole_one_layer_at_a_time():
    model = Net(64, 4, 6)
    head_map, plain = find_heads(model), named_parameters(model)
    live = Live()
    live.own = {tensor.untyped_storage().data_ptr() for tensor in plain.values()}
    source = Source(head_map, lambda: {name: Whole(tensor) for name, tensor in plain.items()})
    assert all(site.gathered for site in source.plans)
    with live:
        source.visit(lambda share, tensors: None)
    one_layer = 2 * (64 * 64 + 64) * 4
    assert one_layer <= live.peak <= 1.1 * one_layer


def test_a_snapshot_copies_query_and_key_rows_and_no_more():
    model = Net(64, 4, 6)
    live = Live()
    live.own = {tensor.untyped_storage().data_ptr() for tensor in named_parameters(model).values()}
    measure = ProfileMeasure(find_heads(model), lambda: named_parameters(model), null=False)
    with live:
        finish = measure.take(0)
    factors = 6 * 2 * (64 * 64 + 64) * 4
    assert factors <= live.now <= 1.1 * factors
    assert live.largest == 64 * 64 * 4  # on a device only this copy of one projection stands beside the weights
    assert np.isfinite(finish(0).heads["a"].to_numpy()).all()
