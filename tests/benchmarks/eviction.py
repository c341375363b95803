"""Rules that say how many keys each head keeps, and the evaluation of a model whose cache was cut.

Each rule gives counts (documents, layers, heads) from scores (documents, layers, heads, keys) of the context. Which
keys of a head stay is decided the same way for all rules: the sinks, then those of highest score.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwatch.budgets import COMPRESSION, Budgets, floored

Counts = NDArray[np.int64]
Scores = NDArray[np.float64]
ALPHA = 0.2  # safeguard of Ada-KV
BETA = 20  # steepness of PyramidKV


def fixed(fractions: NDArray[np.float64], scores: Scores) -> Counts:
    """Counts of a static budget (layers, heads), as many keys in total as its mean asks for."""
    D, L, H, K = scores.shape
    ideal = (fractions * K).ravel()
    counts = np.floor(ideal).astype(np.int64)
    rest = round(ideal.sum()) - counts.sum()
    counts[np.argsort(counts - ideal, kind="stable")[:rest]] += 1
    return np.broadcast_to(counts.reshape(L, H), (D, L, H))


def uniform(scores: Scores, keep: float) -> Counts:
    return fixed(np.full(scores.shape[1:3], keep), scores)


def pyramid(scores: Scores, keep: float) -> Counts:
    """PyramidKV (Cai et al., arXiv:2406.02069): a falling arithmetic sequence over layers, the last keep/β."""
    _, L, H, _ = scores.shape
    last = keep / BETA
    first = 2 * keep - last
    if first > 1:
        first, last = 1.0, 2 * keep - 1
    return fixed(np.repeat(np.linspace(first, last, L)[:, None], H, 1), scores)


def ada(scores: Scores, keep: float) -> Counts:
    """Ada-KV (Feng et al., arXiv:2407.11550): per document and layer the highest scores over all heads, after a safe
    share α of each head's own."""
    _, _, H, K = scores.shape
    kept = int(K * keep)
    order = np.argsort(-scores, -1, kind="stable")
    values = scores.copy()
    np.put_along_axis(values, order[..., : int(ALPHA * kept)], np.inf, -1)
    return _top_counts(values.reshape(*values.shape[:2], H * K), kept * H, K).reshape(scores.shape[:3])


def one_cut(scores: Scores, keep: float) -> Counts:
    """Per document the highest scores over all layers and heads, as KVzip does (Kim et al., arXiv:2505.23416)."""
    D, L, H, K = scores.shape
    flat = scores.reshape(D, L * H * K)
    return _top_counts(flat, round(keep * L * H * K), K).reshape(D, L, H)


def budget(budgets: Budgets, which: str) -> Callable[[Scores, float], Counts]:
    """The static budgets of headwatch: ``which`` is "kept" (look-back) or "reading"."""

    def rule(scores: Scores, keep: float) -> Counts:
        place = int(np.abs(COMPRESSION - (1 - keep)).argmin())
        fractions = floored(getattr(budgets, which)[place][None], [1 - keep])[0]
        return fixed(fractions, scores)

    return rule


def _top_counts(values: Scores, count: int, keys: int) -> Counts:
    head = np.argsort(-values, -1, kind="stable")[..., :count] // keys
    n = values.shape[-1] // keys
    return np.stack([(head == h).sum(-1) for h in range(n)], -1)


def kept_keys(scores: Scores, counts: Counts, sinks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keys that stay, bool, shape (documents, layers, heads, keys)."""
    values = np.where(sinks[:, None, None], np.inf, scores)
    rank = np.argsort(np.argsort(-values, -1, kind="stable"), -1, kind="stable")
    return rank < counts[..., None]


def masks(kept: NDArray[np.bool_], T: int) -> list[Tensor]:
    """Per layer which pairs are visible when queries after the context see only what was kept of it."""
    D, L, H, K = kept.shape
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    layers = []
    for layer in range(L):
        visible = causal.expand(D, H, T, T).clone()
        visible[:, :, K:, :K] &= torch.from_numpy(kept[:, layer])[:, :, None]
        layers.append(visible)
    return layers
