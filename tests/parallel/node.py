"""One process of a training over two nodes, started by torchrun: ``python node.py <directory>``."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytorch_lightning as pl
import scenarios

from headwatch.callbacks import QKProfileMonitor

warnings.simplefilter("ignore")
root = Path(sys.argv[1])
pl.seed_everything(3, verbose=False)
trainer = pl.Trainer(
    max_steps=scenarios.STEPS,
    accelerator="cpu",
    num_nodes=2,
    devices=1,
    strategy="ddp",
    default_root_dir=root,
    callbacks=[
        QKProfileMonitor(every_n_train_steps=4, early_steps=(1, 2), on_error="raise"),
        scenarios.Keep(root / "weights.pt"),
    ],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(scenarios.Net(), scenarios.data())
(root / f"node{trainer.node_rank}.txt").write_text(f"{trainer.global_rank} of {trainer.world_size}")
