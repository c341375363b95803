"""A small causal language model and its training, for the benchmarks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (
            p(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotated(q), rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, n_heads)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm(x), mask)
        return x + self.mlp(x)


class SmallGPT(nn.Module):
    """Pre-norm, rotary positions, no biases in attention."""

    def __init__(self, n_tokens: int, width: int, n_layers: int, n_heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_tokens, width)
        self.blocks = nn.ModuleList([Block(width, n_heads) for _ in range(n_layers)])
        self.norm, self.unembed = nn.LayerNorm(width), nn.Linear(width, n_tokens, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02 if "embed" in name else parameter.shape[1] ** -0.5)

    def forward(self, ids: Tensor, masks: list[Tensor] | None = None) -> Tensor:
        """Logits. ``masks``: per layer the visible pairs, bool, broadcastable to (B, H, T, T)."""
        x = self.embed(ids)
        for i, block in enumerate(self.blocks):
            x = block(x, None if masks is None else masks[i])
        return self.unembed(self.norm(x))


def rotated(x: Tensor, base: float = 10_000.0) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


def train(
    model: SmallGPT,
    batch: Callable[[int], tuple[Tensor, Tensor]],
    steps: int,
    *,
    lr: float = 3e-3,
    at: Callable[[int], None] | None = None,
) -> float:
    """AdamW with warm-up and linear decay; ``batch(step)`` gives ids and targets (−100 = not counted)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min((t + 1) / 100, max(0.02, 1 - t / steps)))
    value = float("nan")
    for step in range(steps):
        if at is not None:
            at(step)
        ids, targets = batch(step)
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        value = loss.item()
    if at is not None:
        at(steps)
    return value
