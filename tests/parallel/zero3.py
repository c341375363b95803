"""A training under DeepSpeed ZeRO-3 on the CPU, in DeepSpeed's own loop: Lightning takes its strategy to a GPU only."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from scenarios import Net, data, probe
from torch.nn import functional as F

from headwatch.heads import find_heads, named_parameters
from headwatch.measure import ProfileMeasure
from headwatch.parallel import Source, current_ranks
from headwatch.parallel.discovery import discover
from headwatch.parallel.layout import layout_of
from headwatch.parallel.signatures import SharedSignatures
from headwatch.probe.documents import probe_batches

STEPS = 4


def zero3(root: Path) -> dict[str, Any]:
    deepspeed = _deepspeed()
    plain, _ = _train(deepspeed, watched=False)
    watched, snapshots = _train(deepspeed, watched=True, keep=root / "weights.pt")
    if snapshots:
        torch.save([snapshot.heads.to_pydict() for snapshot in snapshots], root / "snapshots.pt")
    return {"plain": plain, "watched": watched}


def _deepspeed() -> Any:
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import deepspeed.comm.torch

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # it would compile an extension
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    return deepspeed


def _train(deepspeed: Any, watched: bool, keep: Path | None = None) -> tuple[list[float], list[Any]]:
    pl.seed_everything(3, verbose=False)
    net = Net()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    measures = _measures(net, engine) if watched else []
    losses = []
    for step, batch in zip(range(STEPS), data(), strict=False):
        loss = F.cross_entropy(engine(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        snapshots = [measure.take(step)(step) for measure in measures]
    if keep is not None:
        with deepspeed.zero.GatheredParameters(list(net.parameters()), modifier_rank=None):
            torch.save({name: p.detach().clone() for name, p in net.named_parameters()}, keep)
    return losses, snapshots if current_ranks().leads else []


def _measures(net: Net, engine: Any) -> list[Any]:
    ranks = current_ranks()
    head_map = discover(net, engine, lambda probe: find_heads(net, probe=probe), None)
    source = Source(head_map, lambda: named_parameters(net), ranks, root=engine)
    assert all(plan.gathered for plan in source.plans)
    profile = ProfileMeasure(head_map, lambda: named_parameters(net), null=False, source=source)
    layout = layout_of(net, engine)
    assert layout == "zero3"
    return [profile, SharedSignatures(net, head_map, probe_batches(probe()), ranks=ranks, layout=layout)]
