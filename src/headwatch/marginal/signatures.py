"""Signatures of heads from their marginal attention."""

from __future__ import annotations

import torch
from torch import Tensor

from headwatch.marginal.masks import double
from headwatch.marginal.record import Marginals

__all__ = ["ignored_keys", "signatures", "token_signal"]

_EMPTY = 1e-6  # share of attention outside the ignored keys below which its distribution is rounding


def ignored_keys(marginals: Marginals, special: Tensor | None = None) -> Tensor:
    """B: the first valid token of each segment, and special tokens; bool, shape (B or 1, H or 1, S).

    Args:
        special: special tokens, bool, shape (B, S).
    """
    starts = marginals.geometry.starts
    return starts if special is None else starts | special.to(starts.device)[:, None, :]


def signatures(marginals: Marginals, ignored: Tensor | None = None) -> dict[str, Tensor]:
    """Signatures of every head on every document, float64, shape (B, H).

    With C the valid keys outside the ignored ones B, m the mass, u the mass of uniform attention, λ = m/u:

    - ``n_eff`` = exp(−KL(m_C ‖ u_C)), 1 for uniform attention under any mask;
    - ``c95``: share of the u-mass of C that the keys of highest λ need to hold 95 % of m_C (the last key counts in
      part, so that uniform attention reads .95 exactly);
    - ``peak_mean``: mean over C of the largest weight that any query gives the key;
    - ``mutual_information`` = H(m/n) − mean row entropy in nats over all valid keys, minus the same for uniform
      attention under the same mask;
    - ``sink_share``: share of the mass on B;
    - ``row_entropy``: mean entropy of a query's attention in nats;
    - ``max_logit``: largest score before softmax.

    A head without attention outside B has no distribution there: ``n_eff`` and ``c95`` are NaN.

    Source: the definitions are ours; the idea of marginal attention is that of Maiorca, Nelson and Locatello,
    arXiv:2610.03109.

    Args:
        marginals: column statistics.
        ignored: B, bool, broadcastable to (B, H, S); by default the first valid token of each segment.
    """
    shape = marginals.mass.shape
    known = marginals.geometry
    mass = double(marginals.mass)
    uniform, seen_by = (double(t).expand(shape) for t in (known.uniform, known.seen_by))
    ignored = (known.starts if ignored is None else ignored).to(mass.device).expand(shape)
    kept = (seen_by > 0) & ~ignored
    n = double(known.n).expand(shape[:2])
    m_C, u_C = _normalised(mass, kept, n), _normalised(uniform, kept, n)
    entropy = double(marginals.row_entropy)
    information = _entropy(mass / n[..., None]) - entropy
    uniform_information = _entropy(uniform / n[..., None]) - double(known.log_keys)
    return {
        "n_eff": (-_divergence(m_C, u_C)).exp(),
        "c95": _cover(m_C, u_C),
        "peak_mean": torch.where(kept, double(marginals.peak), 0).sum(-1) / kept.sum(-1),
        "mutual_information": information - uniform_information,
        "sink_share": torch.where(ignored, mass, 0).sum(-1) / n,
        "row_entropy": torch.where(n > 0, entropy, torch.nan),
        "max_logit": torch.where(n > 0, double(marginals.max_logit), torch.nan),
    }


def token_signal(marginals: Marginals) -> Tensor:
    """Mean over the heads of λ(k), float64, shape (B, S); NaN for padding."""
    return double(marginals.lift).nanmean(1)


def _normalised(mass: Tensor, kept: Tensor, n: Tensor) -> Tensor:
    mass = torch.where(kept, mass, 0)
    total = mass.sum(-1, keepdim=True)
    return mass / torch.where(total > _EMPTY * n[..., None], total, torch.nan)


def _entropy(p: Tensor) -> Tensor:
    return -torch.xlogy(p, p).sum(-1)


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    return (torch.xlogy(p, p) - torch.xlogy(p, torch.where(q > 0, q, 1))).sum(-1)


def _cover(m: Tensor, u: Tensor, share: float = 0.95) -> Tensor:
    """Share of u under the keys of highest m/u that hold ``share`` of m, the last of them taken in part."""
    order = (m / torch.where(u > 0, u, torch.inf)).argsort(-1, descending=True)
    m, u = m.gather(-1, order), u.gather(-1, order)
    before = m.cumsum(-1) - m
    part = ((share - before) / torch.where(m > 0, m, 1)).clamp(0, 1)
    return torch.where(m > 0, part * u, 0 * m).sum(-1)
