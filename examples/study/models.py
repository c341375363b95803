"""The two models of the study: the same blocks, read forwards (decoder) or both ways (encoder)."""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT, MASK, IGNORED = 128, 256, -100
MASKED_SHARE = 0.15


class Attention(nn.Module):
    """Multi-head attention without biases; causal in a decoder."""

    def __init__(self, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__()
        self.n_heads, self.causal = n_heads, causal
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            p(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, d_model: int, n_heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(d_model), Attention(d_model, n_heads, causal)
        self.norm2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ByteModel(pl.LightningModule):
    """A model of bytes.

    Args:
        kind: "decoder" predicts the next byte; "encoder" predicts the 15 % of bytes that were masked.
        n_layers, n_heads, d_model: its shape.
        lr: of AdamW, after 20 steps of warm-up.
        seed: of the masks; recorded with the run.
    """

    def __init__(
        self, kind: str, n_layers: int = 4, n_heads: int = 4, d_model: int = 128, lr: float = 1e-3, seed: int = 0
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.causal, self.lr = kind == "decoder", lr
        self.masks = torch.Generator().manual_seed(seed)
        self.tokens, self.positions = nn.Embedding(257, d_model), nn.Embedding(CONTEXT, d_model)
        self.blocks = nn.Sequential(*(Block(d_model, n_heads, self.causal) for _ in range(n_layers)))
        self.norm, self.logits = nn.LayerNorm(d_model), nn.Linear(d_model, 257, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, shape ``(B, T, 257)``."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.logits(self.norm(self.blocks(x)))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Mean cross-entropy of the bytes to predict, in nats."""
        inputs, targets = self._task(batch)
        loss = F.cross_entropy(self(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        self.log("train/loss", loss)
        return loss

    def _task(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        if self.causal:
            return batch[:, :-1], batch[:, 1:]
        masked = torch.rand(batch.shape, generator=self.masks) < MASKED_SHARE
        return batch.masked_fill(masked, MASK)[:, :-1], batch.masked_fill(~masked, IGNORED)[:, :-1]

    def configure_optimizers(self) -> dict[str, object]:  # type: ignore[override]
        """AdamW with linear warm-up."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
