"""The tiny decoder in the other package: ``lightning.pytorch`` shares no class with ``pytorch_lightning``."""

import torch
from lightning.pytorch import LightningModule, Trainer
from tiny import VOCABULARY, Block
from torch import nn


class Other(LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Embedding(VOCABULARY, 16), Block(16, 2), Block(16, 2), nn.Linear(16, VOCABULARY)
        )
        self.losses = []

    def training_step(self, batch, batch_idx):
        scores = self.network(batch[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def other_trainer(root, callbacks, **options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(default_root_dir=root, callbacks=callbacks, max_steps=12, accelerator="cpu", **quiet, **options)
