"""Rotary positions of a projection: R(d) applied to rows."""

from __future__ import annotations

import torch
from torch import Tensor

from headwatch.heads.headmap import Rope

__all__ = ["pairs", "rotate"]


def pairs(rope: Rope) -> tuple[list[int], list[int]]:
    """First and second coordinate of every rotated pair.

    >>> pairs(Rope("half", 0, 4, (1.0, 0.1)))
    ([0, 1], [2, 3])
    >>> pairs(Rope("interleaved", 2, 6, (1.0, 0.1)))
    ([2, 4], [3, 5])
    """
    turned = list(range(rope.start, rope.stop))
    half = len(turned) // 2
    return (turned[:half], turned[half:]) if rope.pairing == "half" else (turned[::2], turned[1::2])


def rotate(rows: Tensor, rope: Rope, displacement: float) -> Tensor:
    """R(displacement) @ rows, shape ``(..., n, N)``: (x, y) → (x cos − y sin, y cos + x sin) for every pair."""
    first, second = pairs(rope)
    angle = displacement * torch.tensor(rope.frequencies, dtype=torch.float64, device=rows.device)
    cos, sin = angle.cos().to(rows.dtype).unsqueeze(-1), angle.sin().to(rows.dtype).unsqueeze(-1)
    turned = rows.clone()
    turned[..., first, :] = rows[..., first, :] * cos - rows[..., second, :] * sin
    turned[..., second, :] = rows[..., second, :] * cos + rows[..., first, :] * sin
    return turned
