"""The profile π(L) = (a, b, c, d) of an attention head and every statistic beside it: pure functions.

Definitions: A. O'Desky, *On attention heads and bilinear forms*, arXiv:2609.22990v1; what is ours says so. Everything
but the norm is free of scale, so the 1/√n of the scores is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwatch.cores import cores, square
from headwatch.forms import Factors
from headwatch.lobes import balance, lobe_shape, lobe_shares, lobes, signature
from headwatch.theta import HEAD_TYPES, head_type, parity, theta

__all__ = ["HEAD_TYPES", "problems", "statistics", "tolerance"]

_EPS = torch.finfo(torch.float64).eps


def statistics(factors: Factors, *, eps: float | None = None) -> dict[str, Tensor]:
    """Every statistic of every head.

    Args:
        factors: W_K and W_Q, shape ``(..., n, N)``, any floating dtype; the work is done in float64.
        eps: rounding unit of the dtype that the weights are kept in, where it is not that of ``factors``.

    Returns:
        One float64 tensor on the CPU of shape ``(...)`` per profile metric of :mod:`headwatch.metrics`, without the two
        that need a history. ``n_pos``, ``n_neg``, ``parity`` and ``head_type`` (an index of ``HEAD_TYPES``) hold whole
        numbers. A head that is zero, NaN or Inf holds NaN throughout and leaves the others unchanged.

    >>> head = Factors(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]]))
    >>> {key: statistics(head)[key].item() for key in ("a", "b", "c", "d", "theta_position")}
    {'a': 0.0, 'b': 0.0, 'c': 1.0, 'd': 0.0, 'theta_position': 1.0}
    """
    edge = tolerance(factors.d_head, torch.finfo(factors.W_K.dtype).eps if eps is None else eps)
    found = cores(factors.flat())
    table = _statistics(found.K, edge)
    table["norm"] = table["norm"] * found.scale
    return {key: torch.where(found.sound, value, torch.nan).reshape(factors.shape) for key, value in table.items()}


def problems(factors: Factors) -> list[str]:
    """Per head, in row order: "nan", "inf", "zero_form", or "" where the head has a profile."""
    finite = factors.flat()
    norms = statistics(factors)["norm"].flatten()
    return [_problem(finite.take(slice(i, i + 1)), bool(norm.isnan())) for i, norm in enumerate(norms)]


def _problem(head: Factors, failed: bool) -> str:
    if not failed:
        return ""
    if bool(head.W_K.isnan().any() | head.W_Q.isnan().any()):
        return "nan"
    return "inf" if bool(head.W_K.isinf().any() | head.W_Q.isinf().any()) else "zero_form"


def tolerance(d_head: int, eps: float) -> float:
    """Relative size below which an eigenvalue has no sign: max(1e-9, 8·2n·eps), at most 0.01 (16-bit weights)."""
    return min(max(1e-9, 16 * d_head * eps), 0.01)


def _statistics(K: Tensor, edge: float) -> dict[str, Tensor]:
    """All statistics from cores of shape (heads, n, m)."""
    core = square(K)
    energy = (core**2).sum((-2, -1))
    norm = energy.sqrt()
    a = ((core - core.mT) ** 2).sum((-2, -1)) / 4 / energy
    spectrum = torch.linalg.eigvalsh((core + core.mT) / 2)
    alpha, beta = lobes(spectrum)
    b, c, d = (share / energy for share in lobe_shares(alpha, beta))
    symmetric = b + c + d
    symmetric = torch.where(symmetric > (16 * _EPS) ** 2, symmetric, torch.nan)
    n_pos, n_neg = (count.double() for count in signature(spectrum, edge))
    distance, position = theta(a, b, c, d)
    return {
        "a": a, "b": b, "c": c, "d": d,
        "b_sym": b / symmetric, "c_sym": c / symmetric, "d_sym": d / symmetric,
        "norm": norm,
        "trace_ratio": core.diagonal(dim1=-2, dim2=-1).sum(-1) / norm,
        **lobe_shape(alpha, beta),
        "balance": balance(n_pos, n_neg),
        **_ranks(K, energy),
        "n_pos": n_pos, "n_neg": n_neg,
        "theta_distance": distance, "theta_position": position,
        "parity": parity(c, d, edge),
        "head_type": head_type(c / symmetric, d / symmetric),
    }  # fmt: skip


def _ranks(K: Tensor, energy: Tensor) -> dict[str, Tensor]:
    """PR = (Σh²)²/Σh⁴ and SR = Σh²/h₁² over the singular values h of L: from K Kᵀ."""
    gram = K @ K.mT
    largest = torch.linalg.eigvalsh(gram)[:, -1]
    return {
        "participation_ratio": energy**2 / (gram**2).sum((-2, -1)),
        "stable_rank": energy / largest,
        "leading_share": largest / energy,
    }
