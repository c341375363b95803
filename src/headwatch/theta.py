"""Θ, the profiles of rank-one forms, and where a profile stands to it."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["head_type", "parity", "theta"]

_TYPE_THRESHOLD = 0.02


def theta(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Distance to Θ and position on it, both ours.

    Θ = {a = b, c·d = 0} is two segments from M = (½, ½, 0, 0) to the vertices c = 1 and d = 1. With
    u_c = (−½, −½, 1, 0), |u|² = 3/2 and τ = clip((π − M)·u / 1.5, 0, 1), the distance along c is ‖π − M − τu‖ in R⁴.

    Args:
        a, b, c, d: coordinates of profiles, any one shape.

    Returns:
        The distance to the nearer segment; the position ±√τ on it, + on the c-segment. For a rank-one form the
        position is tr L/‖L‖.

    >>> [round(x.item(), 6) for x in theta(*torch.tensor([0.375, 0.375, 0.0, 0.25], dtype=torch.float64))]
    [0.0, -0.5]
    """
    along_c, tau_c = _segment(a, b, c, d)
    along_d, tau_d = _segment(a, b, d, c)
    nearer_c = along_c <= along_d
    return torch.minimum(along_c, along_d), torch.where(nearer_c, tau_c.sqrt(), -tau_d.sqrt())


def _segment(a: Tensor, b: Tensor, along: Tensor, across: Tensor) -> tuple[Tensor, Tensor]:
    """Distance to the segment from M to the vertex ``along`` = 1, and τ ∈ [0, 1] of the nearest point."""
    tau = ((along - (a - 0.5) / 2 - (b - 0.5) / 2) / 1.5).clamp(0, 1)
    squares = (a - 0.5 + tau / 2) ** 2 + (b - 0.5 + tau / 2) ** 2 + (along - tau) ** 2 + across**2
    return squares.sqrt(), tau


def parity(c: Tensor, d: Tensor, dead_zone: float) -> Tensor:
    """Sign of c − d; 0 where |c − d| ≤ ``dead_zone``, for at M the sign is noise."""
    return torch.where((c - d).abs() <= dead_zone, (c - d) * 0, (c - d).sign())


def head_type(c_sym: Tensor, d_sym: Tensor) -> Tensor:
    """The paper's rule as an index of ``metrics.HEAD_TYPES``: II iff c_sym + d_sym ≤ 0.02, else I+ iff c_sym > d_sym.

    >>> from headwatch.metrics import HEAD_TYPES
    >>> HEAD_TYPES[int(head_type(torch.tensor(0.3), torch.tensor(0.1)))]
    'I+'
    """
    sided = torch.where(c_sym > d_sym, 1.0, 2.0).to(c_sym)
    code = torch.where(c_sym + d_sym <= _TYPE_THRESHOLD, torch.zeros_like(c_sym), sided)
    return torch.where((c_sym + d_sym).isnan(), torch.nan, code)
