"""A tiny decoder with dropout, and a Trainer for it, for tests of the callbacks."""

import hashlib
import pickle
import random

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

VOCABULARY, CONTEXT = 32, 12


class Attention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, N = x.shape
        q, k, v = (p(x).view(B, T, self.n_heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        p = 0.1 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)
        return self.out(y.transpose(1, 2).reshape(B, T, N))


class Block(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.attention = Attention(d_model, n_heads)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.attention(self.norm(x)))


class Tiny(pl.LightningModule):
    """2 layers × 2 heads, d_model 16."""

    def __init__(self, d_model=16, n_heads=2, n_layers=2, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(VOCABULARY, d_model)
        self.blocks = nn.Sequential(*(Block(d_model, n_heads) for _ in range(n_layers)))
        self.head = nn.Linear(d_model, VOCABULARY)
        self.losses = []

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self._loss(batch))

    def _loss(self, batch):
        return F.cross_entropy(self(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def batches(n=64, batch_size=4):
    tokens = torch.randint(0, VOCABULARY, (n, CONTEXT + 1), generator=torch.Generator().manual_seed(7))
    return DataLoader(tokens, batch_size=batch_size, shuffle=True)


def trainer(root, callbacks, **options):
    defaults = {
        "max_steps": 12,
        "logger": False,
        "accelerator": "cpu",
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return pl.Trainer(default_root_dir=root, callbacks=callbacks, **{**defaults, **options})


def fingerprint(model, fit):
    """Everything that training leaves behind: losses, weights, optimizer state, random number generators."""
    digest = hashlib.sha256()
    tensors = list(model.state_dict().values())
    for optimizer in fit.optimizers:
        for state in optimizer.state_dict()["state"].values():
            tensors += [torch.as_tensor(value) for value in state.values()]
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    digest.update(pickle.dumps((random.getstate(), np.random.get_state(legacy=True)[1].tobytes())))
    return digest.hexdigest(), list(model.losses)
