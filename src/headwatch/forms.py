"""The bilinear form of a head, kept as its factors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Factors:
    """The factors of a batch of forms L = W_Kᵀ W_Q.

    Attributes:
        W_K: key matrices, shape ``(..., n, N)``; k = W_K x.
        W_Q: query matrices, shape ``(..., n, N)``; q = W_Q x.
    """

    W_K: Tensor
    W_Q: Tensor
