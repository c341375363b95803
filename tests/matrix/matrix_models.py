"""Variations of the tiny decoder: what people's modules do that a Trainer must cope with."""

import itertools
import json
import time
from pathlib import Path

import pytorch_lightning as pl
import torch
from tiny import VOCABULARY, Block, Tiny, batches
from torch import nn
from torch.utils.checkpoint import checkpoint


class TwoOptimizers(Tiny):
    """Manual optimization; the second optimizer steps with every other batch, so steps jump by one or two."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.losses.append(loss.item())
        first, second = self.optimizers()
        self.manual_backward(loss)
        for optimizer in (first, second)[: 1 + batch_idx % 2]:
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.blocks.parameters(), 0.1), torch.optim.AdamW(self.head.parameters(), 0.05)]


class MadeLate(Tiny):
    """Layers are made in ``configure_model``."""

    def __init__(self):
        super().__init__()
        self.blocks = None

    def configure_model(self):
        if self.blocks is None:
            self.blocks = nn.Sequential(*(Block(16, 2) for _ in range(2)))


class Checkpointed(Tiny):
    """Activations are recomputed in the backward pass."""

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


class Skips(Tiny):
    """Every third batch is skipped by returning None."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if batch_idx % 3 else None


class Closures(Tiny):
    """LBFGS calls its closure several times a step."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class Scheduled(Tiny):
    """A learning rate schedule that warms up."""

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Bare(Tiny):
    """A LightningModule without a ``forward``: the network is an attribute."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(self.embed, self.blocks, self.head)
        del self.embed, self.blocks, self.head

    forward = pl.LightningModule.forward

    def _loss(self, batch):
        scores = self.network(batch[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())


class Compiles(Tiny):
    """Counts the graphs that are compiled for it."""

    def __init__(self):
        super().__init__()
        self.graphs = 0

    def backend(self, graph, inputs):
        self.graphs += 1
        return graph.forward

    def training_step(self, batch, batch_idx):
        return self._loss(batch)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())

    def validation_step(self, batch, batch_idx):
        return self._loss(batch)


class CompiledInside(Compiles):
    """Only the blocks are compiled, without a break in the graph."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.compile(self.blocks, backend=self.backend, fullgraph=True)


class InFloat16(Tiny):
    """AdamW's epsilon is zero in 16 bits."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Backbone(Tiny):
    """Has what Lightning's fine-tuning callback expects."""

    def __init__(self):
        super().__init__()
        self.backbone = self.blocks
        del self.blocks
        self.backbone.requires_grad_(False)

    def forward(self, tokens):
        return self.head(self.backbone(self.embed(tokens)))

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=self.hparams.lr)


class Recorded(Tiny):
    """Writes down what its process saw, for objects do not come back from a spawned process."""

    def on_train_start(self):
        self.steps = [self.global_step]

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.steps.append(self.global_step)

    def on_train_end(self):
        weights = {name: tensor.tolist() for name, tensor in self.state_dict().items()}
        said = {"steps": self.steps, "losses": self.losses, "weights": weights}
        root = Path(self.trainer.default_root_dir)
        root.mkdir(parents=True, exist_ok=True)
        (root / f"rank{self.global_rank}.json").write_text(json.dumps(said))


class BatchSized(Tiny):
    """Brings its own data, by a batch size that the tuner may change."""

    def __init__(self, batch_size=4):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return batches(batch_size=self.batch_size)

    def val_dataloader(self):
        return batches(n=8)


class Tested(Tiny):
    """Can be tested and asked for predictions."""

    test_step = Tiny.validation_step

    def predict_step(self, batch, batch_idx):
        return self(batch[:, :-1])


class Data(pl.LightningDataModule):
    """A data module with training and validation batches."""

    def train_dataloader(self):
        return batches()

    def val_dataloader(self):
        return batches(n=8)


class Endless(torch.utils.data.IterableDataset):
    """A stream of documents without a length."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(11)
        return (torch.randint(0, VOCABULARY, (13,), generator=generator) for _ in itertools.count())


class TimeRunsOut(pl.Callback):
    """Moves the clock of ``max_time`` an hour on at one step, so that it stops there on every machine."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step - 1:
            [timer] = [c for c in trainer.callbacks if isinstance(c, pl.callbacks.Timer)]
            timer._start_time[pl.trainer.states.RunningStage.TRAINING] = time.monotonic() - 3600
