"""The bilinear form of a head, kept as its factors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Factors", "homogenise"]


@dataclass(frozen=True)
class Factors:
    """The factors of a batch of forms L = W_Kᵀ W_Q.

    Attributes:
        W_K: key matrices, shape ``(..., n, N)``; k = W_K x.
        W_Q: query matrices, shape ``(..., n, N)``; q = W_Q x.
    """

    W_K: Tensor
    W_Q: Tensor

    def __post_init__(self) -> None:
        if self.W_K.shape != self.W_Q.shape or self.W_K.ndim < 2:
            raise ValueError(
                f"expected W_K and W_Q of one shape (..., d_head, d_model), found {tuple(self.W_K.shape)} and "
                f"{tuple(self.W_Q.shape)}; repeat the key heads of grouped queries first"
            )

    @property
    def shape(self) -> torch.Size:
        """Shape of the batch: ``(..., n, N)`` without its last two."""
        return self.W_K.shape[:-2]

    @property
    def d_head(self) -> int:
        """n, the rows of one factor."""
        return self.W_K.shape[-2]

    @property
    def d_model(self) -> int:
        """N, the dimension on which the form lives."""
        return self.W_K.shape[-1]

    def flat(self) -> Factors:
        """The same heads in one row: shape ``(heads, n, N)``."""
        return Factors(self.W_K.reshape(-1, self.d_head, self.d_model), self.W_Q.reshape(-1, self.d_head, self.d_model))

    def take(self, heads: Tensor | slice) -> Factors:
        """The heads at these places of the first dimension."""
        return Factors(self.W_K[heads], self.W_Q[heads])

    def double(self) -> Factors:
        """The same factors in float64 on the CPU, where every dtype has an eigensolver."""
        return Factors(self.W_K.to("cpu", torch.float64), self.W_Q.to("cpu", torch.float64))


def homogenise(W: Tensor, bias: Tensor) -> Tensor:
    """Ŵ = [W | bias] on R^(N+1): the form of Ŵ_K and Ŵ_Q includes the biases, on inputs (x, 1).

    Args:
        W: shape ``(..., n, N)``.
        bias: shape ``(..., n)``.

    Returns:
        Shape ``(..., n, N + 1)``.

    >>> homogenise(torch.eye(2), torch.tensor([3.0, 4.0]))
    tensor([[1., 0., 3.],
            [0., 1., 4.]])
    """
    return torch.cat([W, bias.to(W).unsqueeze(-1)], dim=-1)
