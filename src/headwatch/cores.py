"""Cores: the form L of a head in coordinates of the at most 2n dimensions that it lives on.

L = Q [K; 0] Qᵀ with orthonormal columns Q, so the core K, shape ``(n, m)`` with m = min(2n, N), holds the norm, the
trace, the singular values, and the nonzero spectra of the symmetric and antisymmetric parts. The N × N matrix is never
formed. With M = [W_K; W_Q] and Mᵀ = Q [R_K R_Q], where R_K ends in zero rows: K = (R_K R_Qᵀ)[:n].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwatch.forms import Factors

__all__ = ["Cores", "antisymmetric_part", "cores", "gram_cores", "qr_cores", "symmetric_part"]

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
    if factors.W_K.device.type == "mps":  # has no float64
        factors = factors.double()
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
    squares = G.diagonal(dim1=-2, dim2=-1)  # ‖k_i‖² and ‖q_i‖²
    sizes = squares[:, :n].amax(-1) * squares[:, n:].amax(-1)
    C, info = torch.linalg.cholesky_ex(G)
    pivots = C.diagonal(dim1=-2, dim2=-1) ** 2 / squares
    safe = ((squares > 1 / _SAFE) & (squares < _SAFE)).all(-1) & (info == 0) & (pivots.amin(-1) > _SMALLEST_PIVOT)
    K = C[:, :n, :n].mT @ C[:, n:] / sizes.sqrt()[:, None, None]
    lengths = (squares[:, :n] * squares[:, n:] / sizes[:, None]).sqrt()
    return Cores(K, sizes.sqrt(), _noise(K, lengths), safe)


def _gram(factors: Factors) -> Tensor:
    """The lower triangle of G = [[P, ·], [X, R]] in float64, on the CPU: P = W_K W_Kᵀ, X = W_Q W_Kᵀ, R = W_Q W_Qᵀ."""
    n = factors.d_head
    W_K, W_Q = factors.W_K.double(), factors.W_Q.double()
    G = torch.zeros(factors.shape[0], 2 * n, 2 * n, dtype=torch.float64)
    G[:, :n, :n] = W_K @ W_K.mT
    G[:, n:, :n] = W_Q @ W_K.mT
    G[:, n:, n:] = W_Q @ W_Q.mT
    return G


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
    noise = _noise(K, R_K.norm(dim=-2) * R_Q.norm(dim=-2))
    return Cores(K, size_K * size_Q, noise, sound & (noise < 1))  # else L is zero though its factors are not


def _noise(K: Tensor, lengths: Tensor) -> Tensor:
    """See ``Cores.noise``, from ‖k_i‖‖q_i‖ of the rows on the scale of K."""
    return torch.nan_to_num(16 * _EPS * lengths.sum(-1) / torch.linalg.matrix_norm(K), nan=torch.inf)


def _scaled(W: Tensor, size: Tensor, sound: Tensor) -> Tensor:
    return torch.where(sound[:, None, None], W / size[:, None, None], 0.0)


def symmetric_part(K: Tensor) -> Tensor:
    """The lower triangle of (L + Lᵀ)/2 in the coordinates of the core, shape ``(heads, m, m)``; above it is zero.

    With K = [K₁ K₂]: [[(K₁ + K₁ᵀ)/2, ·], [K₂ᵀ/2, 0]].
    """
    return _part(K, 1)


def antisymmetric_part(K: Tensor) -> Tensor:
    """(L − Lᵀ)/2 in the coordinates of the core, shape ``(heads, m, m)``."""
    lower = _part(K, -1).tril(-1)
    return lower - lower.mT


def _part(K: Tensor, sign: int) -> Tensor:
    n, m = K.shape[-2:]
    K_1, K_2 = K[..., :n], K[..., n:]
    part = K.new_zeros(K.shape[0], m, m)
    part[:, :n, :n] = (K_1 + sign * K_1.mT) / 2
    part[:, n:, :n] = sign * K_2.mT / 2
    return part
