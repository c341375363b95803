"""Cores: the form L of a head in coordinates of the at most 2n dimensions that it lives on.

L = Q [K; 0] Qᵀ with orthonormal columns Q, so the core K, shape ``(n, m)`` with m = min(2n, N), holds the norm, the
trace, the singular values, and the nonzero spectra of the symmetric and antisymmetric parts. The N × N matrix is never
formed. With M = [W_K; W_Q] and Mᵀ = Q [R_K R_Q], where R_K ends in zero rows: K = (R_K R_Qᵀ)[:n].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwatch.forms import Factors

__all__ = ["Cores", "cores", "gram_cores", "qr_cores", "square"]

_EPS = torch.finfo(torch.float64).eps
_SAFE = 1e140  # Gram entries between 1/_SAFE and _SAFE neither overflow nor underflow in what follows
_SMALLEST_PIVOT = 1e-6  # sin² of the angle of a row of M to the rows before it; below it Cholesky may lose 1e-12


@dataclass(frozen=True)
class Cores:
    """Cores of a row of heads.

    Attributes:
        K: float64 on the CPU, shape ``(heads, min(n, N), min(2n, N))``, of the order of 1.
        scale: shape ``(heads,)``; ‖L‖ = scale · ‖K‖.
        noise: shape ``(heads,)``; rounding of K relative to ‖K‖, 16 eps Σ ‖k_i‖‖q_i‖ / ‖K‖ over the rows.
        sound: shape ``(heads,)``; False for a head that is zero, NaN or Inf.
    """

    K: Tensor
    scale: Tensor
    noise: Tensor
    sound: Tensor


def cores(factors: Factors) -> Cores:
    """Cores by the fastest way that is exact for each head.

    Gram and Cholesky lose everything on rank-deficient heads (tied, rank one), which is where heads drift to; those
    are told by their pivots and go through a QR. Both in float64: in float32 the breakdown gives no sign.

    Args:
        factors: shape ``(heads, n, N)``, any dtype and device. Products are formed where they are.
    """
    if 2 * factors.d_head > factors.d_model:
        return qr_cores(factors)
    fast = gram_cores(factors)
    failed = (~fast.sound).nonzero().flatten()
    if len(failed):
        slow = qr_cores(factors.take(failed.to(factors.W_K.device)))
        for name, values in vars(slow).items():
            getattr(fast, name)[failed] = values
    return fast


def gram_cores(factors: Factors) -> Cores:
    """Cores by G = M Mᵀ = C Cᵀ, for which R = Cᵀ. ``sound`` is False where that is not safe.

    Args:
        factors: shape ``(heads, n, N)`` with 2n ≤ N.
    """
    n = factors.d_head
    G = _gram(factors)
    diagonal = G.diagonal(dim1=-2, dim2=-1)
    size_K, size_Q = diagonal[:, :n].amax(-1), diagonal[:, n:].amax(-1)
    safe = ((diagonal > 1 / _SAFE) & (diagonal < _SAFE)).all(-1)
    unit = torch.where(safe[:, None], diagonal.rsqrt(), 0.0)
    G = torch.where(safe[:, None, None], G * unit[:, :, None] * unit[:, None, :], torch.eye(2 * n, dtype=G.dtype))
    C, info = torch.linalg.cholesky_ex(G)
    safe &= (info == 0) & (C.diagonal(dim1=-2, dim2=-1).amin(-1) ** 2 > _SMALLEST_PIVOT)
    length = diagonal.sqrt()
    R_K = C[:, :n, :n].mT * (length[:, :n] / size_K.sqrt()[:, None])[:, None, :]
    R_Q = C[:, n:, :] * (length[:, n:] / size_Q.sqrt()[:, None])[:, :, None]
    K = R_K @ R_Q
    return Cores(K, (size_K * size_Q).sqrt(), _noise(K, R_K, R_Q.mT), safe)


def _gram(factors: Factors) -> Tensor:
    """G = [[P, X], [Xᵀ, R]] with P = W_K W_Kᵀ, X = W_K W_Qᵀ, R = W_Q W_Qᵀ, in float64; returned on the CPU."""
    W_K, W_Q = factors.W_K.double(), factors.W_Q.double()
    P, X, R = W_K @ W_K.mT, W_K @ W_Q.mT, W_Q @ W_Q.mT
    return torch.cat([torch.cat([P, X], -1), torch.cat([X.mT, R], -1)], -2).cpu()


def qr_cores(factors: Factors) -> Cores:
    """Cores by QR, which holds for every finite head whose form is not zero.

    Args:
        factors: shape ``(heads, n, N)``, any dtype.
    """
    factors = factors.double()
    size_K, size_Q = (W.abs().amax((-2, -1)) for W in (factors.W_K, factors.W_Q))
    sound = size_K.isfinite() & size_Q.isfinite() & (size_K > 0) & (size_Q > 0)
    M = torch.cat([_scaled(factors.W_K, size_K, sound), _scaled(factors.W_Q, size_Q, sound)], dim=-2)
    R = torch.linalg.qr(M.mT, mode="r").R
    R_K, R_Q = R.split(factors.d_head, dim=-1)
    K = R_K[:, : factors.d_head] @ R_Q.mT
    noise = _noise(K, R_K, R_Q)
    return Cores(K, size_K * size_Q, noise, sound & (noise < 1))  # else L is zero though its factors are not


def _noise(K: Tensor, R_K: Tensor, R_Q: Tensor) -> Tensor:
    sizes = (R_K.norm(dim=-2) * R_Q.norm(dim=-2)).sum(-1)
    return torch.nan_to_num(16 * _EPS * sizes / K.norm(dim=(-2, -1)), nan=torch.inf)


def _scaled(W: Tensor, size: Tensor, sound: Tensor) -> Tensor:
    return torch.where(sound[:, None, None], W / size[:, None, None], 0.0)


def square(K: Tensor) -> Tensor:
    """[K; 0]: the core as a square matrix, shape ``(heads, m, m)``."""
    return pad(K, (0, 0, 0, K.shape[-1] - K.shape[-2]))
