"""Does the model compute the scores that the extracted factors predict?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwatch.heads.headmap import Rope
from headwatch.heads.recipe import Recipe
from headwatch.heads.rotation import pairs

__all__ = ["Evidence", "score_errors", "score_tolerance", "scores"]

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
_DOCUMENTS, _POSITIONS = 4, 48


@dataclass(frozen=True)
class Evidence:
    """What one attention call used, against which factors are held.

    Attributes:
        q, k: as used, shapes ``(B, H, T, n)`` and ``(B, Hk, S, n)``, without graph.
        x: input that both projections share, shape ``(rows, N)``.
        q_rows, k_rows: row of x of every token, shapes ``(B, T)`` and ``(B, S)``; −1 where there is none.
        tolerance: largest error of a score that rounding explains.
    """

    q: Tensor
    k: Tensor
    x: Tensor
    q_rows: np.ndarray
    k_rows: np.ndarray
    tolerance: float


def score_tolerance(*tensors: Tensor) -> float:
    """Largest |predicted − used| / max |used| of q·k that rounding to the coarsest of these dtypes explains.

    1e-4 in float32, 3e-2 in bfloat16.
    """
    return max(_TOLERANCE.get(tensor.dtype, 3e-2) for tensor in tensors)


@torch.no_grad()
def scores(
    evidence: Evidence,
    query: Recipe,
    key: Recipe,
    rope: Rope | None,
    parameters: Mapping[str, Tensor],
    *,
    diagonal: bool = False,
) -> tuple[Tensor, Tensor]:
    """q·k as used and as predicted, in float64, shape (query heads, pairs of tokens) each, of up to four documents.

    Args:
        evidence: q, k and the input they came from.
        query, key: how W_Q and W_K are read.
        rope: rotary positions to apply to both, by position in the document.
        parameters: the model's, by name.
        diagonal: q_t·k_t only, which no rotation of positions changes.
    """
    group = evidence.q.shape[1] // evidence.k.shape[1]
    used, predicted = [], []
    for document in _spread(len(evidence.q), _DOCUMENTS):
        t = _known(evidence.q_rows[document])
        s = t if diagonal else _known(evidence.k_rows[document])
        q = evidence.q[document][:, t].double()[..., list(query.places)]
        k = evidence.k[document][:, s].double()[..., list(key.places)]
        used.append(_products(q, k.repeat_interleave(group, 0), diagonal))
        x_q, x_k = (evidence.x[rows[document][at]] for rows, at in ((evidence.q_rows, t), (evidence.k_rows, s)))
        q = _turned(query.predict(x_q, parameters)[:, list(query.heads)], rope, t).transpose(0, 1)
        k = _turned(key.predict(x_k, parameters)[:, list(key.heads)], rope, s).transpose(0, 1)
        predicted.append(_products(q, k.repeat_interleave(group, 0), diagonal))
    return torch.cat(used, dim=1), torch.cat(predicted, dim=1)


def score_errors(used: Tensor, predicted: Tensor) -> np.ndarray:
    """Per head, max |predicted − used| / max |used|; 0 where both are all zero.

    >>> score_errors(torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, -1.0]])).tolist()
    [0.5]
    """
    error = (predicted - used).abs().nan_to_num(torch.inf).amax(dim=1)
    return torch.where(error == 0, error, error / used.abs().amax(dim=1)).cpu().numpy()


def _products(q: Tensor, k: Tensor, diagonal: bool) -> Tensor:
    """q·k of every head, shape (heads, pairs of tokens)."""
    return (q * k).sum(-1) if diagonal else (q @ k.transpose(-1, -2)).flatten(1)


def _spread(size: int, most: int) -> list[int]:
    return sorted({int(place) for place in np.linspace(0, size - 1, min(size, most))})


def _known(rows: np.ndarray) -> list[int]:
    """Positions whose input row is known, at most 48 of them."""
    known = np.flatnonzero(rows >= 0)
    return [int(known[place]) for place in _spread(len(known), _POSITIONS)]


def _turned(x: Tensor, rope: Rope | None, positions: list[int]) -> Tensor:
    """(tokens, heads, n) rotated by position."""
    if rope is None:
        return x
    first, second = pairs(rope)
    angle = torch.outer(
        torch.tensor(positions, dtype=torch.float64), torch.tensor(rope.frequencies, dtype=torch.float64)
    )
    cos, sin = (each.unsqueeze(1).to(x.device) for each in (angle.cos(), angle.sin()))
    turned = x.clone()
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., second] * cos + x[..., first] * sin
    return turned
