"""A small causal decoder of text, written as a user would write it: nothing in it knows of headwatch."""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["TextDecoder"]


class _Attention(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, N = x.shape
        q, k, v = (part.view(B, T, self.n_heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, N))


class _Block(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.attention = _Attention(d_model, n_heads)
        self.norm2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TextDecoder(pl.LightningModule):
    """A pre-norm decoder over bytes.

    Args:
        n_layers: blocks.
        n_heads: attention heads per block; must divide ``d_model``.
        d_model: width of the residual stream.
        context: longest input, in bytes.
        lr: peak learning rate of AdamW, reached after ``warmup`` steps.
        warmup: steps of linear warm-up.
    """

    def __init__(
        self,
        n_layers: int = 4,
        n_heads: int = 4,
        d_model: int = 128,
        context: int = 128,
        lr: float = 1e-3,
        warmup: int = 20,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr, self.warmup = lr, warmup
        self.tokens = nn.Embedding(256, d_model)
        self.positions = nn.Embedding(context, d_model)
        self.blocks = nn.Sequential(*(_Block(d_model, n_heads) for _ in range(n_layers)))
        self.norm = nn.LayerNorm(d_model)
        self.logits = nn.Linear(d_model, 256, bias=False)
        self.apply(_initialise)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte, shape ``(B, T, 256)``, for tokens of shape ``(B, T)``."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.logits(self.norm(self.blocks(x)))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Mean cross-entropy of the next byte, in nats."""
        loss = self._loss(batch)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Log the same on text that training never sees."""
        self.log("val/loss", self._loss(batch), prog_bar=True)

    def configure_optimizers(self) -> dict[str, object]:  # type: ignore[override]
        """AdamW with linear warm-up."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(1, self.warmup)))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _loss(self, batch: Tensor) -> Tensor:
        return F.cross_entropy(self(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
