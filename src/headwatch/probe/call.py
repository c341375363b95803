"""One attention call of a model, as the model made it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

__all__ = ["AttentionCall", "fold_heads"]


@dataclass(frozen=True)
class AttentionCall:
    """What reached one attention call. A handler reduces it at once and keeps no tensor of it.

    Letters: B documents, H query heads, Hk key heads (Hk divides H; query head h uses key head h // (H // Hk)),
    T queries, S keys, n = d_head.

    Attributes:
        module: qualified name of the innermost named module that makes the call.
        ordinal: how many calls this module has made before, in this forward.
        q: shape ``(B, H, T, n)``, rotated, normalised and scaled as the model did.
        k: shape ``(B, Hk, S, n)``; not repeated unless the model repeated it.
        scale: multiplies q·k.
        is_causal: key s is visible to query t iff s ≤ t.
        mask: bool (True = visible) or float (added to the scores), broadcastable to ``(B, H, T, S)``.
        softcap: scores are softcap · tanh(scale · q·k / softcap), before any mask.
        kind: who computed it: "sdpa", "mha" (inside nn.MultiheadAttention), "flex", "eager" (a softmax in python).
        mask_chunk: flex only: mask of the query rows ``[i, j)``, shape ``(B, H, j - i, S)``, bool or float as ``mask``.
        weights: eager only: what the model's softmax returned, shape ``(B, H, T, S)``.
        scores: eager only: what the model's softmax received, same shape.
        complete: False where q and k are right but the scores cannot be rebuilt from what stands here.
    """

    module: str
    q: Tensor
    k: Tensor
    scale: float
    kind: Literal["sdpa", "mha", "flex", "eager"]
    is_causal: bool = False
    mask: Tensor | None = None
    softcap: float | None = None
    mask_chunk: Callable[[int, int], Tensor] | None = None
    weights: Tensor | None = None
    scores: Tensor | None = None
    complete: bool = True
    ordinal: int = 0

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // self.k.shape[1]


def fold_heads(q: Tensor, k: Tensor, n_documents: int | None = None) -> tuple[Tensor, Tensor]:
    """q and k as ``(B, H, T, n)`` and ``(B, Hk, S, n)``, from whatever batch dimensions they broadcast over.

    Args:
        q: shape ``(*batch, T, n)``.
        k: shape ``(*batch', S, n)``; batch' broadcasts with batch.
        n_documents: B, where only one batch dimension B·H is left; without it that dimension is B and H = 1.

    >>> import torch
    >>> q, k = fold_heads(torch.zeros(2, 3, 4, 5, 8), torch.zeros(2, 3, 1, 6, 8))
    >>> tuple(q.shape), tuple(k.shape)
    ((2, 12, 5, 8), (2, 3, 6, 8))
    """
    rank = max(q.dim(), k.dim(), 4 if n_documents is None and max(q.dim(), k.dim()) < 3 else 3)
    q, k = _padded(q, rank), _padded(k, rank)
    batch = tuple(max(a, b) for a, b in zip(q.shape[:-2], k.shape[:-2], strict=True))
    if len(batch) == 1:
        split = (n_documents, batch[0] // n_documents) if n_documents else (batch[0], 1)
        q, k = (x.expand(*batch, *x.shape[-2:]).unflatten(0, split) for x in (q, k))
        return q, k
    q = q.expand(*batch, *q.shape[-2:])
    kept = _leading_heads(tuple(k.shape[1:-2]), batch[1:])
    k = k.expand(batch[0], *(kept or batch[1:]), *k.shape[-2:])
    return q.flatten(1, -3), k.flatten(1, -3)


def _padded(x: Tensor, rank: int) -> Tensor:
    return x.reshape(*(1,) * (rank - x.dim()), *x.shape)


def _leading_heads(own: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...] | None:
    """The head dimensions of k when it broadcasts over trailing ones only (one key head per group), else None."""
    trailing = len(own)
    while trailing and own[trailing - 1] == 1:
        trailing -= 1
    repeated = math.prod(full[trailing:]) > 1
    return own if repeated and own[:trailing] == full[:trailing] else (own if own == full else None)
