"""Trainings of several ranks, small ones; each is called in every rank and returns plain JSON."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils.data import DataLoader

import headwatch.callbacks._base
import headwatch.measure
from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor
from headwatch.heads import find_heads, named_parameters
from headwatch.heads.names import clean_name
from headwatch.measure import ProfileMeasure
from headwatch.parallel import Source, current_ranks
from headwatch.price import Price

VOCABULARY, CONTEXT, STEPS = 32, 12, 6
N, HEADS, KV_HEADS, LAYERS = 32, 4, 2, 3


class Attention(nn.Module):
    """Grouped-query attention with a gain in front, written so that tensor parallelism may split its heads."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim = N // HEADS
        self.n_heads, self.n_kv_heads = HEADS, KV_HEADS
        self.q_proj = nn.Linear(N, N)
        self.k_proj = nn.Linear(N, self.head_dim * KV_HEADS)
        self.v_proj = nn.Linear(N, self.head_dim * KV_HEADS)
        self.out = nn.Linear(N, N)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for p in projections)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(N)
        self.attention = Attention()
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.attention(self.norm(x)))


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(VOCABULARY, N)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(N, VOCABULARY)
        self.losses: list[float] = []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = F.cross_entropy(self(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.02, foreach=False)


class Sharded(Net):
    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for block in self.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.embed, mesh=mesh)
        fully_shard(self.head, mesh=mesh)


class Split(Net):
    """Tensor parallel."""

    def configure_model(self) -> None:
        plan = {name: ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")} | {"out": RowwiseParallel()}
        for block in self.blocks:
            parallelize_module(block.attention, self.device_mesh["tensor_parallel"], plan)


class SplitCounted(Split):
    """Tensor parallel, each module counting the heads of its own rank."""

    def configure_model(self) -> None:
        super().configure_model()
        for block in self.blocks:
            block.attention.n_heads //= self.device_mesh["tensor_parallel"].size()
            block.attention.n_kv_heads //= self.device_mesh["tensor_parallel"].size()


class Both(Split):
    """Tensor parallel inside, FSDP2 outside."""

    def configure_model(self) -> None:
        super().configure_model()
        for block in self.blocks:
            fully_shard(block, mesh=self.device_mesh["data_parallel"])


def data() -> DataLoader:
    tokens = torch.randint(0, VOCABULARY, (64, CONTEXT + 1), generator=torch.Generator().manual_seed(7))
    return DataLoader(tokens, batch_size=4)


def probe() -> list[torch.Tensor]:
    """Three probe batches, so that ranks get unequal shares."""
    return [torch.randint(0, VOCABULARY, (2, CONTEXT), generator=torch.Generator().manual_seed(i)) for i in range(3)]


def fit(
    root: Path,
    model: Net,
    strategy: Any,
    callbacks: list[pl.Callback],
    steps: int = STEPS,
    checkpoint: Path | None = None,
) -> Net:
    pl.seed_everything(3, verbose=False)
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=strategy,
        default_root_dir=root,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data(), ckpt_path=checkpoint)
    return model


def weights(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for tensor in model.parameters():
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        digest.update(local.detach().contiguous().numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    return digest.hexdigest()


class Keep(pl.Callback):
    """Keeps the whole trained weights of rank 0, to be measured by one process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        root = trainer.strategy.model
        flat = isinstance(root, FullyShardedDataParallel)
        with FullyShardedDataParallel.summon_full_params(root, writeback=False) if flat else nullcontext():
            whole = {
                clean_name(name): (p.detach().full_tensor() if hasattr(p, "full_tensor") else p.detach()).clone()
                for name, p in pl_module.named_parameters()
            }
        if trainer.is_global_zero:
            torch.save(whole, self.path)


def _twice(root: Path, make: type[Net], strategy: Any) -> dict[str, Any]:
    """Train without and with both monitors."""
    plain = fit(root / "plain", make(), strategy(), [])
    when = {"every_n_train_steps": 4, "early_steps": (1, 2), "on_error": "raise"}
    monitors = [QKProfileMonitor(**when), MarginalAttentionMonitor(probe(), **when)]
    watched = fit(root, make(), strategy(), [*monitors, Keep(root / "weights.pt")])
    return {
        "plain": [plain.losses, weights(plain)],
        "watched": [watched.losses, weights(watched)],
        "threads": sorted(t.name for t in threading.enumerate() if t.name.startswith("headwatch")),
    }


def ddp(root: Path) -> dict[str, Any]:
    return _twice(root, Net, DDPStrategy)


def fsdp2(root: Path) -> dict[str, Any]:
    return _twice(root, Sharded, lambda: ModelParallelStrategy(tensor_parallel_size=1, data_parallel_size=_world()))


def tensor_parallel(root: Path) -> dict[str, Any]:
    return _twice(root, Split, lambda: ModelParallelStrategy(tensor_parallel_size=_world(), data_parallel_size=1))


def tensor_parallel_counted(root: Path) -> dict[str, Any]:
    monitor = QKProfileMonitor(every_n_train_steps=4, early_steps=(1, 2), on_error="raise")
    strategy = ModelParallelStrategy(tensor_parallel_size=_world(), data_parallel_size=1)
    model = fit(root, SplitCounted(), strategy, [monitor, Keep(root / "weights.pt")])
    return {"losses": model.losses}


def tensor_and_data_parallel(root: Path) -> dict[str, Any]:
    return _twice(root, Both, lambda: ModelParallelStrategy(tensor_parallel_size=2, data_parallel_size=_world() // 2))


def _world() -> int:
    return int(os.environ["WORLD_SIZE"])


def fsdp1(root: Path) -> dict[str, Any]:
    """Lightning takes FSDPStrategy to an accelerator only, by its exact class; torch's FSDP itself runs on the CPU."""
    return _twice(root, Net, lambda: _OnCPU(auto_wrap_policy=ModuleWrapPolicy({Block})))


class _OnCPU(FSDPStrategy):
    def _setup_model(self, model: nn.Module) -> nn.Module:
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **self.kwargs)


def failing_rank(root: Path) -> dict[str, Any]:
    """The last rank fails at every reading."""

    class Failing(QKProfileMonitor):
        def measure(self, trainer: Any, *rest: Any) -> ProfileMeasure:
            measure = super().measure(trainer, *rest)
            if trainer.global_rank == trainer.world_size - 1:
                measure._source.visit = _out_of_memory
            return measure

    model = fit(root, Net(), DDPStrategy(), [Failing(every_n_train_steps=4, early_steps=(1, 2))])
    return {"losses": model.losses}


def failing_reads(root: Path) -> dict[str, Any]:
    """The last rank of a sharded training cannot copy the rows that all have put together."""
    if int(os.environ["RANK"]) == _world() - 1:
        headwatch.measure.copy_factors = _out_of_memory
    strategy = ModelParallelStrategy(tensor_parallel_size=1, data_parallel_size=_world())
    fit(root, Sharded(), strategy, [QKProfileMonitor(every_n_train_steps=4, early_steps=(1, 2))])
    return {}


def crashing_rank(root: Path) -> dict[str, Any]:
    """The last rank fails in its training step; the other one learns of it from torch.distributed."""

    class Crashing(Net):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if self.global_step == 3 and self.global_rank == self.trainer.world_size - 1:
                raise RuntimeError("boom")
            return super().training_step(batch, batch_idx)

    fit(root, Crashing(), DDPStrategy(), [QKProfileMonitor(every_n_train_steps=4, early_steps=(1, 2))])
    return {}


def resumed(root: Path) -> dict[str, Any]:
    """Broken off after step 6, resumed from the checkpoint of step 4."""

    def callbacks() -> list[pl.Callback]:
        saved = ModelCheckpoint(root / "saved", save_top_k=-1, every_n_train_steps=4, filename="{step}")
        return [QKProfileMonitor(every_n_train_steps=3, early_steps=(1,), on_error="raise"), saved]

    fit(root, Net(), DDPStrategy(), callbacks())
    fit(root, Net(), DDPStrategy(), callbacks(), steps=8, checkpoint=root / "saved" / "step=4.ckpt")
    return {}


def slow_rank(root: Path) -> dict[str, Any]:
    """Reading takes long on rank 0 alone; the interval is stretched on both."""

    class Slow(QKProfileMonitor):
        stretches: ClassVar[list[int]] = []

        def measure(self, trainer: Any, *rest: Any) -> ProfileMeasure:
            measure = super().measure(trainer, *rest)
            visit = measure._source.visit
            if trainer.is_global_zero:
                measure._source.visit = lambda copy: (time.sleep(0.05), visit(copy))[1]
            return measure

        def on_train_batch_end(self, *given: Any) -> None:
            super().on_train_batch_end(*given)
            self.stretches.append(self._watcher.schedule.stretch)

    headwatch.callbacks._base.Price = lambda share: Price(share, allowance=0.0)
    fit(root, Net(), DDPStrategy(), [Slow(every_n_train_steps=1, early_steps=())])
    return {"stretches": Slow.stretches}


def parts_of_a_model(root: Path) -> dict[str, Any]:
    """Each rank has its own layers, as under pipeline parallelism."""
    torch.distributed.init_process_group("gloo")
    net = Net()
    head_map = find_heads(net)
    if current_ranks().rank == 1:
        del net.blocks[2]
    try:
        Source(head_map, lambda: named_parameters(net), current_ranks())
    except ValueError as error:
        return {"said": str(error)}
    return {"said": ""}


def _out_of_memory(*given: Any) -> None:
    raise MemoryError("no room for the factors")
