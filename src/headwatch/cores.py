"""Cores: the form L of a head in coordinates of the at most 2n dimensions that it lives on.

L = Q · core · Qᵀ with orthonormal columns Q, so core and L share norm, trace, singular values, and the nonzero
spectra of their symmetric and antisymmetric parts. The d_model × d_model matrix is never formed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwatch.forms import Factors

__all__ = ["qr_core"]


def qr_core(factors: Factors) -> Tensor:
    """The core by QR, which holds for rank-deficient heads as well.

    [W_Kᵀ W_Qᵀ] = Q [R_K R_Q] gives L = Q R_K R_Qᵀ Qᵀ.

    Args:
        factors: float64, shape ``(..., n, N)``, entries of the order of 1.

    Returns:
        Shape ``(..., m, m)`` with m = min(2n, N).
    """
    if 2 * factors.d_head >= factors.d_model:
        return factors.W_K.mT @ factors.W_Q
    R = torch.linalg.qr(torch.cat([factors.W_K, factors.W_Q], dim=-2).mT, mode="r").R
    R_K, R_Q = R.split(factors.d_head, dim=-1)
    return R_K @ R_Q.mT
