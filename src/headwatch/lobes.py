"""The lobes of a spectrum, and what is read off them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import vector_norm

__all__ = ["balance", "lobe_shape", "lobe_shares", "lobes", "signature"]

_ROUNDING = 16 * torch.finfo(torch.float64).eps


def lobes(spectrum: Tensor) -> tuple[Tensor, Tensor]:
    """α and β: the positive eigenvalues and the absolute values of the negative ones.

    Args:
        spectrum: eigenvalues of S in ascending order, shape ``(..., m)``.

    Returns:
        Both decreasing and zero-padded, shape ``(..., m)``.

    >>> lobes(torch.tensor([-2.0, 1.0, 3.0]))
    (tensor([3., 1., 0.]), tensor([2., 0., 0.]))
    """
    return spectrum.clamp(min=0).flip(-1), (-spectrum).clamp(min=0)


def lobe_shares(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(2⟨α,β⟩, ‖(α−β)₊‖², ‖(α−β)₋‖²): b, c and d times ‖L‖². From the lobes, for 1 − a − b would cancel."""
    excess = alpha - beta
    return 2 * (alpha * beta).sum(-1), (excess.clamp(min=0) ** 2).sum(-1), (excess.clamp(max=0) ** 2).sum(-1)


def lobe_shape(alpha: Tensor, beta: Tensor) -> dict[str, Tensor]:
    """Sizes and shapes of the lobes compared.

    ρ = ‖β‖/‖α‖, pairing 𝒫 = 1 − ‖α−β‖/‖S‖, its bound 1 − |1−ρ|/√(1+ρ²) (reached iff β = ρα), the gap between
    them, and the departure ‖β − ρα‖/‖β‖. A lobe as small as the rounding of the other is empty: without a positive lobe
    ρ is infinite, without a negative one ρ is 0, and without either the departure, a matter of shape, is NaN.
    """
    size_a, size_b = vector_norm(alpha, dim=-1), vector_norm(beta, dim=-1)
    size = torch.hypot(size_a, size_b)
    rounding = _ROUNDING * alpha.shape[-1] ** 0.5 * size
    size_a, size_b = (torch.where(lobe > rounding, lobe, 0.0) for lobe in (size_a, size_b))
    pairing = 1 - vector_norm(alpha - beta, dim=-1) / size
    bound = 1 - (size_a - size_b).abs() / size
    unlike = vector_norm(beta / size_b.unsqueeze(-1) - alpha / size_a.unsqueeze(-1), dim=-1)
    return {
        "rho": size_b / size_a,
        "pairing": pairing,
        "pairing_bound": bound,
        "pairing_gap": (bound - pairing).clamp(min=0),
        "lobe_departure": unlike,
    }


def signature(spectrum: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """(n₊, n₋): eigenvalues above and below 0 by more than ``tolerance`` of the largest absolute one."""
    edge = tolerance * spectrum.abs().amax(-1, keepdim=True)
    return (spectrum > edge).sum(-1).to(spectrum), (spectrum < -edge).sum(-1).to(spectrum)


def balance(n_pos: Tensor, n_neg: Tensor) -> Tensor:
    """1 − |n₊ − n₋|/(n₊ + n₋); NaN where there is no eigenvalue."""
    return 1 - (n_pos - n_neg).abs() / (n_pos + n_neg)
