"""The profile π(L) = (a, b, c, d) of an attention head and every statistic beside it: pure functions.

Definitions: A. O'Desky, *On attention heads and bilinear forms*, arXiv:2609.22990v1; what is ours says so. Everything
but the norm is free of scale, so the 1/√n of the scores is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headwatch.cores import antisymmetric_part, cores, symmetric_part
from headwatch.forms import Factors
from headwatch.kernel import core_statistics

__all__ = ["Spectra", "problems", "spectra", "statistics", "tolerance"]

_CHUNK_BYTES = 1 << 25  # float64 copies of factors held at a time


def statistics(factors: Factors, *, eps: float | None = None) -> dict[str, Tensor]:
    """Every statistic of every head.

    Args:
        factors: W_K and W_Q, shape ``(..., n, N)``, any floating dtype and device; the work is done in float64, a few
            heads at a time, and eigenvalues on the CPU.
        eps: rounding unit of the dtype that the weights are kept in, where it is not that of ``factors``.

    Returns:
        One float64 tensor on the CPU of shape ``(...)`` per profile metric of :mod:`headwatch.metrics`, without the two
        that need a history. ``n_pos``, ``n_neg``, ``parity`` and ``head_type`` (an index of ``metrics.HEAD_TYPES``)
        hold whole numbers. A head that is zero, NaN or Inf holds NaN throughout and leaves the others unchanged; so
        does what needs S where S = 0, and what needs a lobe that is empty.

    >>> head = Factors(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]]))
    >>> {key: statistics(head)[key].item() for key in ("a", "b", "c", "d", "theta_position")}
    {'a': 0.0, 'b': 0.0, 'c': 1.0, 'd': 0.0, 'theta_position': 1.0}
    """
    edge = tolerance(factors.d_head, torch.finfo(factors.W_K.dtype).eps if eps is None else eps)
    tables = [_statistics(chunk, edge) for chunk in _chunks(factors.flat())]
    return {key: torch.cat([table[key] for table in tables]).reshape(factors.shape) for key in tables[0]}


def _statistics(factors: Factors, edge: float) -> dict[str, Tensor]:
    found = cores(factors)
    table = core_statistics(found.K, edge, found.noise)
    table["norm"] = table["norm"] * found.scale
    return {key: torch.where(found.sound, value, torch.nan) for key, value in table.items()}


def _chunks(factors: Factors) -> Iterator[Factors]:
    size = max(1, _CHUNK_BYTES // (16 * factors.d_head * factors.d_model))
    for start in range(0, max(1, factors.shape[0]), size):
        yield factors.take(slice(start, start + size))


def tolerance(d_head: int, eps: float) -> float:
    """Relative size below which an eigenvalue has no sign: max(1e-9, 8·2n·eps), at most 0.01 (16-bit weights)."""
    return min(max(1e-9, 16 * d_head * eps), 0.01)


def problems(factors: Factors) -> list[str]:
    """Per head, in row order: "nan", "inf", "zero_form", or "" where the head has a profile."""
    sound = torch.cat([cores(chunk).sound for chunk in _chunks(factors.flat())])
    sizes = (factors.W_K.abs().amax((-2, -1)) + factors.W_Q.abs().amax((-2, -1))).flatten()
    return ["" if ok else _problem(float(size)) for ok, size in zip(sound.tolist(), sizes.double(), strict=True)]


def _problem(size: float) -> str:
    return "zero_form" if abs(size) < float("inf") else "nan" if size != size else "inf"


@dataclass(frozen=True)
class Spectra:
    """The spectra of forms, with their scale. m = min(2n, N).

    Attributes:
        S: eigenvalues of (L + Lᵀ)/2 in ascending order, shape ``(..., m)``; the other N − m are 0.
        T: singular values of (L − Lᵀ)/2, of each equal pair one, decreasing, shape ``(..., m // 2)``.
        L: singular values of L, decreasing, shape ``(..., min(n, N))``.
    """

    S: Tensor
    T: Tensor
    L: Tensor


def spectra(factors: Factors) -> Spectra:
    """The spectra of S, T and L of every head: float64 on the CPU, NaN where a head has no profile."""
    parts = [_spectra(chunk) for chunk in _chunks(factors.flat())]
    joined = (torch.cat(tensors) for tensors in zip(*((p.S, p.T, p.L) for p in parts), strict=True))
    return Spectra(*(values.reshape(*factors.shape, -1) for values in joined))


def _spectra(factors: Factors) -> Spectra:
    found = cores(factors)
    m = found.K.shape[-1]
    scale = torch.where(found.sound, found.scale, torch.nan)[:, None]
    return Spectra(
        scale * torch.linalg.eigvalsh(symmetric_part(found.K)),
        scale * torch.linalg.svdvals(antisymmetric_part(found.K))[:, 0 : m // 2 * 2 : 2],
        scale * torch.linalg.svdvals(found.K),
    )
