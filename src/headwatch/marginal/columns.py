"""Column statistics of attention by blocks of queries; the T × T map of all heads is never formed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from headwatch.marginal.geometry import Geometry, geometry, query_blocks
from headwatch.marginal.masks import Mask, MaskChunk, visible_pairs
from headwatch.marginal.record import Block, Marginals, Observer

__all__ = ["column_statistics", "from_scores", "from_weights"]

_HIDDEN = -1e30  # finite, so that 0 · score is 0 in the entropy
_ELEMENTS = {"cpu": 1 << 18}  # pairs in one block: the cache on CPU, enough work per kernel elsewhere
_ELEMENTS_ELSEWHERE = 1 << 26

_Product = Callable[[Block], Tensor]


@torch.no_grad()
def column_statistics(
    q: Tensor,
    k: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    is_causal: bool = False,
    softcap: float | None = None,
    block: int = 128,
    query_stride: int = 1,
    mask_chunk: MaskChunk | None = None,
    valid: Tensor | None = None,
    geometry: Geometry | None = None,
    observe: Observer | None = None,
) -> Marginals:
    """Column statistics of softmax(cap(scale · q kᵀ) + mask), exact up to float32 (float64 for float64 inputs).

    Peak memory beyond the inputs is linear in T: a block of scores, and q and k in float32.

    Args:
        q: queries, shape (B, H, T, n).
        k: keys, shape (B, G, S, n); G divides H, query head h uses key-value head h // (H / G).
        scale: multiplies q · k.
        mask: bool (True = visible) or float added to the scores, broadcastable to (B, H, T, S).
        is_causal: query t sees keys 0..t.
        softcap: c in c · tanh(score / c), before the mask.
        block: queries per block.
        query_stride: count every stride-th query only, the last one included. Costs 1/stride, and accuracy where
            heads attend locally: on all-MiniLM-L6-v2, 256 tokens, strides of 2 and 4 keep n_eff at correlation .96
            and .82 over heads with the full value, c95 at .91 and .74, the mean peak at .99 and .96, mutual
            information at .999 and .996, row entropy at 1.000.
        mask_chunk: ``mask_chunk(i, j)`` gives the mask of queries i..j−1, in place of ``mask``.
        valid: real tokens, bool, shape (B, T), for padding that the mask does not show.
        geometry: the mask's statistics when they are known from an earlier call with the same mask, block and stride.
        observe: called with every block and its weights (documents, heads, queries, keys) before they are dropped;
            rows of queries that do not count are 0.

    Raises:
        ValueError: shapes do not fit.
    """
    _check(q, k)
    rule = Mask(q.shape[2], k.shape[2], mask, is_causal, mask_chunk)
    product = _Scores(q, k, scale, softcap)
    known = geometry or _geometry(rule, valid, block, query_stride, q.device)
    return _reduce(product, q.shape[0], q.shape[1], q.shape[1] // k.shape[1], rule, known, _work(q), observe)


@torch.no_grad()
def from_scores(
    scores: Tensor,
    *,
    visible: Tensor | None = None,
    block: int = 128,
    query_stride: int = 1,
    valid: Tensor | None = None,
    observe: Observer | None = None,
) -> Marginals:
    """Column statistics of softmax(scores), for a model that forms its scores itself.

    Args:
        scores: what softmax receives, mask included, shape (B, H, T, S); pairs at −9,000 or lower are masked.
        visible: pairs that are visible, bool, where the scores do not tell.
        block, query_stride, valid, observe: as in :func:`column_statistics`.
    """
    B, H, T, S = scores.shape

    def hidden(i: int, j: int) -> Tensor:
        part = scores[:, :, i:j]
        return part if visible is None else part.masked_fill(~visible.expand(B, H, T, S)[:, :, i:j], -torch.inf)

    rule = Mask(T, S, chunk=hidden)
    known = _geometry(rule, valid, block, query_stride, scores.device)
    return _reduce(None, B, H, 1, rule, known, _work(scores), observe)


@torch.no_grad()
def from_weights(
    weights: Tensor,
    *,
    mask: Tensor | None = None,
    block: int = 128,
    query_stride: int = 1,
    valid: Tensor | None = None,
    observe: Observer | None = None,
) -> Marginals:
    """Column statistics of attention weights that a model hands out.

    Args:
        weights: after softmax, without dropout, shape (B, H, T, S).
        mask: what was visible; without it a pair is taken as masked where its weight is exactly 0.
        block, query_stride, valid, observe: as in :func:`column_statistics`.
    """
    B, H, T, S = weights.shape
    hidden = weights > 0 if mask is None else mask

    def logarithms(block_: Block) -> Tensor:
        part = weights[block_.documents, block_.heads, block_.queries, block_.keys]
        return part.to(_work(weights)).log().clamp_(min=_HIDDEN)

    rule = Mask(T, S, visible_pairs(hidden))
    known = _geometry(rule, valid, block, query_stride, weights.device)
    marginals = _reduce(logarithms, B, H, 1, rule, known, _work(weights), observe)
    return replace(marginals, max_logit=torch.full_like(marginals.max_logit, torch.nan))


def _check(q: Tensor, k: Tensor) -> None:
    fits = q.ndim == k.ndim == 4 and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    if not fits or q.shape[1] % k.shape[1]:
        raise ValueError(
            "q, k: expected shapes (B, H, T, n) and (B, G, S, n) with G dividing H, "
            f"found {tuple(q.shape)} and {tuple(k.shape)}"
        )


def _work(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _geometry(rule: Mask, valid: Tensor | None, block: int, stride: int, device: torch.device) -> Geometry:
    return geometry(rule, valid=valid, block=block, query_stride=stride, device=device)


class _Scores:
    """scale · q kᵀ of a block; a group's query heads lie along the query axis, so that k is not repeated."""

    def __init__(self, q: Tensor, k: Tensor, scale: float, softcap: float | None) -> None:
        self.q, self.k, self.softcap = q, (k.to(_work(q)) * scale).transpose(-1, -2), softcap
        self.group = q.shape[1] // k.shape[1]

    def __call__(self, block: Block) -> Tensor:
        group = self.group
        q = self.q[block.documents, block.heads, block.queries].to(self.k.dtype)
        B, H, c, n = q.shape
        k = self.k[block.documents, block.heads.start // group : block.heads.stop // group, :, block.keys]
        scores = (q.reshape(B, H // group, group * c, n) @ k).view(B, H, c, k.shape[-1])
        if self.softcap is None:
            return scores
        return scores.div_(self.softcap).tanh_().mul_(self.softcap)


def _reduce(
    product: _Product | None,
    B: int,
    H: int,
    group: int,
    rule: Mask,
    known: Geometry,
    dtype: torch.dtype,
    observe: Observer | None,
) -> Marginals:
    device = known.counted.device
    mass, peak = (torch.zeros(B, H, rule.S, dtype=dtype, device=device) for _ in range(2))
    entropy = torch.zeros(B, H, dtype=dtype, device=device)
    largest = torch.full((B, H), -torch.inf, dtype=dtype, device=device)
    counted = known.counted.to(dtype)
    with torch.autocast(device.type, enabled=False):
        for rows, keys in zip(query_blocks(rule.T, known.block, known.query_stride), known.spans, strict=True):
            if keys.start >= keys.stop:  # no query of the block counts
                continue
            mask_rows = rule.rows(rows)
            for documents, heads in _parts(B, H, group, len(range(rule.T)[rows]) * (keys.stop - keys.start), device):
                block = Block(documents, heads, rows, keys)
                weights, row_entropy, row_max = _attend(product, block, mask_rows, rule.is_causal, counted, dtype)
                mass[documents, heads, keys] += weights.sum(-2)
                part = peak[documents, heads, keys]
                torch.maximum(part, weights.amax(-2), out=part)
                entropy[documents, heads] += row_entropy
                largest[documents, heads] = torch.maximum(largest[documents, heads], row_max)
                if observe is not None:
                    observe(block, weights)
    return Marginals(mass, peak, entropy / known.n.clamp(min=1), largest, known)


def _parts(B: int, H: int, group: int, pairs: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Documents and heads that fit in one block: some heads of one document, or all heads of some documents."""
    room = max(1, _ELEMENTS.get(device.type, _ELEMENTS_ELSEWHERE) // max(1, pairs))
    heads = min(H, max(group, room // group * group))
    documents = max(1, room // H)
    for b in range(0, B, documents):
        for h in range(0, H, heads):
            yield slice(b, min(b + documents, B)), slice(h, min(h + heads, H))


def _attend(
    product: _Product | None, block: Block, mask: Tensor | None, is_causal: bool, counted: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (B, H, c, S) of a block, and per head the sum of row entropies and the largest score."""
    mask = None if mask is None else _cut(mask, block)
    scores = _added(product, block, mask, dtype)
    _hide(scores, block, mask, is_causal)
    counts = _narrow(_narrow(counted, 0, block.documents), 1, block.heads)[..., block.queries, None]
    top = scores.amax(-1, keepdim=True)
    largest = torch.where(counts > 0, top, -torch.inf).amax((-2, -1))
    weights = scores.sub_(top).exp()
    total = weights.sum(-1, keepdim=True)
    weights.mul_(counts / total)
    entropy = (total.log() * counts).sum((-2, -1)) - _dot(weights, scores)
    return weights, entropy, largest


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Σ a·b over the last two dimensions, without a product in memory."""
    return (a.flatten(-2)[..., None, :] @ b.flatten(-2)[..., :, None])[..., 0, 0]


def _added(product: _Product | None, block: Block, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    if product is None:
        assert mask is not None
        return mask.to(dtype, copy=True)
    scores = product(block)
    return scores if mask is None or mask.dtype == torch.bool else scores.add_(mask)


def _hide(scores: Tensor, block: Block, mask: Tensor | None, is_causal: bool) -> None:
    if is_causal:
        _hide_future(scores, block)
    if mask is not None:
        scores.masked_fill_(~visible_pairs(mask), _HIDDEN)


def _hide_future(scores: Tensor, block: Block) -> None:
    first = max(block.queries.start, block.keys.start)  # every query of the block sees the keys before it
    if first >= block.keys.stop:
        return
    queries = torch.arange(block.queries.start, block.queries.stop, block.queries.step or 1, device=scores.device)
    keys = torch.arange(first, block.keys.stop, device=scores.device)
    hidden = queries[: scores.shape[-2], None] < keys
    scores[..., first - block.keys.start :].masked_fill_(hidden, _HIDDEN)


def _cut(mask: Tensor, block: Block) -> Tensor:
    return _narrow(_narrow(_narrow(mask, 0, block.documents), 1, block.heads), 3, block.keys)


def _narrow(tensor: Tensor, dim: int, part: slice) -> Tensor:
    """A slice along a dimension, unless the dimension is broadcast."""
    return tensor if tensor.shape[dim] == 1 else tensor.narrow(dim, part.start, part.stop - part.start)
