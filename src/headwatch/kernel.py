"""All statistics of a form from its core; the norm is the only one that has a scale."""

from __future__ import annotations

import torch
from torch import Tensor

from headwatch.cores import symmetric_part
from headwatch.lobes import balance, lobe_shape, lobe_shares, lobes, signature
from headwatch.theta import head_type, parity, theta

__all__ = ["core_statistics"]

_NOISE = 16 * torch.finfo(torch.float64).eps


def core_statistics(K: Tensor, edge: float, noise: Tensor | float = _NOISE) -> dict[str, Tensor]:
    """Every statistic of every core.

    a = ‖T‖²/‖L‖² from the core itself; b, c and d from the lobes of the symmetric part; PR from Σh⁴ = ‖K Kᵀ‖² and SR
    from the largest eigenvalue of K Kᵀ, so no singular value is computed.

    Args:
        K: see :mod:`headwatch.cores`; float64, shape ``(heads, n, m)``.
        edge: relative size below which an eigenvalue, and c − d, have no sign.
        noise: rounding of K relative to ‖K‖.

    Returns:
        Shape ``(heads,)`` each. What needs S is NaN where S = 0.
    """
    energy = (K**2).sum((-2, -1))
    spectrum = torch.linalg.eigvalsh(symmetric_part(K))
    alpha, beta = lobes(spectrum)
    a = _antisymmetric_energy(K) / energy
    b, c, d = (share / energy for share in lobe_shares(alpha, beta))
    symmetric = b + c + d
    symmetric = torch.where(symmetric > noise**2, symmetric, torch.nan)
    b_sym, c_sym, d_sym = (share / symmetric for share in (b, c, d))
    n_pos, n_neg = signature(spectrum, edge)
    distance, position = theta(a, b, c, d)
    return {
        "a": a, "b": b, "c": c, "d": d,
        "b_sym": b_sym, "c_sym": c_sym, "d_sym": d_sym,
        "norm": energy.sqrt(),
        "trace_ratio": K.diagonal(dim1=-2, dim2=-1).sum(-1) / energy.sqrt(),
        **{key: torch.where(symmetric.isnan(), torch.nan, value) for key, value in lobe_shape(alpha, beta).items()},
        "balance": balance(n_pos, n_neg),
        **_ranks(K, energy),
        "n_pos": n_pos, "n_neg": n_neg,
        "theta_distance": distance, "theta_position": position,
        "parity": parity(c, d, edge),
        "head_type": head_type(c_sym, d_sym),
    }  # fmt: skip


def _antisymmetric_energy(K: Tensor) -> Tensor:
    """‖T‖² of K = [K₁ K₂]: ‖K₁ − K₁ᵀ‖²/4 + ‖K₂‖²/2."""
    K_1, K_2 = K[..., : K.shape[-2]], K[..., K.shape[-2] :]
    return ((K_1 - K_1.mT) ** 2).sum((-2, -1)) / 4 + (K_2**2).sum((-2, -1)) / 2


def _ranks(K: Tensor, energy: Tensor) -> dict[str, Tensor]:
    """PR = (Σh²)²/Σh⁴, SR = Σh²/h₁² and 1/SR."""
    gram = K @ K.mT
    largest = torch.linalg.eigvalsh(gram)[:, -1]
    return {
        "participation_ratio": energy**2 / (gram**2).sum((-2, -1)),
        "stable_rank": energy / largest,
        "leading_share": largest / energy,
    }
