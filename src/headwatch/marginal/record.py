"""What is left of attention when the query axis is reduced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headwatch.marginal.geometry import Geometry

__all__ = ["Block", "Marginals", "Observer"]


@dataclass(frozen=True)
class Marginals:
    """Attention with the query axis reduced.

    Attributes:
        mass: m(k) = Σ_q A[q,k] over the counted queries, shape (B, H, S).
        peak: x(k) = max_q A[q,k], shape (B, H, S).
        row_entropy: mean over the counted queries of the entropy of A[q,·] in nats, shape (B, H).
        max_logit: largest score before softmax, shape (B, H); NaN where only weights were seen.
        geometry: what the mask alone says.
    """

    mass: Tensor
    peak: Tensor
    row_entropy: Tensor
    max_logit: Tensor
    geometry: Geometry

    @property
    def lift(self) -> Tensor:
        """λ(k) = m(k)/u(k), shape (B, H, S); NaN for a key that no counted query sees."""
        return self.mass / torch.where(self.geometry.seen_by > 0, self.geometry.uniform, torch.nan)

    @property
    def mean(self) -> Tensor:
        """m(k)/|Q_k|, shape (B, H, S)."""
        return self.mass / torch.where(self.geometry.seen_by > 0, self.geometry.seen_by, torch.nan)


@dataclass(frozen=True)
class Block:
    """One block of the computation: which documents, heads, queries and keys."""

    documents: slice
    heads: slice
    queries: slice
    keys: slice


Observer = Callable[[Block, Tensor], None]
