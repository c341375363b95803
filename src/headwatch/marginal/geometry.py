"""What a mask alone says: how many keys each query sees, and where uniform attention would fall."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headwatch.marginal.masks import Mask, double

__all__ = ["Geometry", "geometry", "query_blocks"]

_ELEMENTS = 1 << 21  # pairs of a mask that are looked at together


@dataclass(frozen=True)
class Geometry:
    """Statistics of a mask; b is B or 1, h is H or 1.

    Attributes:
        counted: queries that count (valid, and sampled when there is a stride), 0 or 1, shape (b, h, T).
        uniform: u(k) = Σ 1/|K_q| over the counted queries q that see k, shape (b, h, S).
        seen_by: |Q_k|, number of counted queries that see k, shape (b, h, S).
        starts: first valid token of each segment, bool, shape (b, h, S); all False unless T = S.
        n: number of counted queries, shape (b, h).
        log_keys: mean of ln|K_q| over the counted queries: row entropy of uniform attention, shape (b, h).
        spans: per block of queries the smallest range of keys that holds all that counted queries of it see.
        block, query_stride: the blocks of queries that ``spans`` belongs to.
    """

    counted: Tensor
    uniform: Tensor
    seen_by: Tensor
    starts: Tensor
    n: Tensor
    log_keys: Tensor
    spans: tuple[slice, ...]
    block: int
    query_stride: int


def query_blocks(T: int, block: int, stride: int = 1) -> Iterator[slice]:
    """Blocks of every stride-th query, the last query always among them.

    >>> list(query_blocks(10, 2, 3))
    [slice(0, 6, 3), slice(6, 12, 3)]
    """
    step = block * stride
    return (slice(start, start + step, stride) for start in range((T - 1) % stride, T, step))


def geometry(
    mask: Mask,
    *,
    valid: Tensor | None = None,
    block: int = 128,
    query_stride: int = 1,
    device: torch.device | None = None,
) -> Geometry:
    """Statistics of a mask over its valid queries.

    A query is valid if it sees a key and, in self-attention (T = S), if its own token is seen by some query: a token
    that nobody may see is padding. A segment is a block of a block-diagonal mask; packed documents are found so.

    Args:
        mask: what the model applied.
        valid: tokens that are real, bool, shape (B, T), for padding that the mask does not show.
        block: queries per block of ``spans``.
        query_stride: count every stride-th query only, the last one included.
        device: where to compute.
    """
    device = device or torch.device("cpu")
    keys, first, last, seen = _plain_rows(mask, device) if mask.is_plain else _rows(mask, device)
    real = keys > 0
    if mask.T == mask.S:
        real = real & seen
    if valid is not None:
        real = real & valid.to(device)[:, None, :]
    sampled = torch.zeros(mask.T, dtype=torch.bool, device=device)
    sampled[(mask.T - 1) % query_stride :: query_stride] = True
    counted = (real & sampled).float()
    uniform, seen_by = _columns(mask, counted, counted / keys.clamp(min=1))
    starts = _starts(real, first, last) & (seen_by > 0) if mask.T == mask.S else seen_by < 0
    n = counted.sum(-1)
    log_keys = (counted * keys.clamp(min=1).log()).sum(-1) / n.clamp(min=1)
    first, last = torch.where(counted > 0, first, mask.S), torch.where(counted > 0, last, -1)
    spans = _spans(first, last, list(query_blocks(mask.T, block, query_stride)))
    return Geometry(counted, uniform, seen_by, starts, n, log_keys, spans, block, query_stride)


def _plain_rows(mask: Mask, device: torch.device) -> tuple[Tensor, ...]:
    query = torch.arange(mask.T, device=device)[None, None]
    last = query.clamp(max=mask.S - 1) if mask.is_causal else torch.full_like(query, mask.S - 1)
    seen = torch.arange(mask.S, device=device)[None, None] < (mask.T if mask.is_causal else mask.S)
    return last + 1, torch.zeros_like(query), last, seen


def _rows(mask: Mask, device: torch.device) -> tuple[Tensor, ...]:
    """Per query: number of keys, first and last key (S and −1 without any); per key: whether some query sees it."""
    position = torch.arange(mask.S, device=device, dtype=torch.int32)
    parts, seen = [], None
    for rows in _mask_blocks(mask):
        visible = mask.visible(rows, device)
        first = torch.where(visible, position, mask.S).amin(-1)
        last = torch.where(visible, position, -1).amax(-1)
        parts.append((visible.sum(-1), first, last))
        any_query = visible.any(-2)
        seen = any_query if seen is None else seen | any_query
    keys, first, last = (torch.cat(column, -1) for column in zip(*parts, strict=True))
    assert seen is not None
    return keys, first.long(), last.long(), seen


def _mask_blocks(mask: Mask) -> Iterator[slice]:
    one = mask.rows(slice(0, 1, 1))
    size = mask.S * (1 if one is None else one.shape[0] * one.shape[1])
    return query_blocks(mask.T, max(1, min(mask.T, _ELEMENTS // size)))


def _columns(mask: Mask, counted: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over queries, per key that they see, of ``shares`` and of ``counted``."""
    weights = torch.stack((shares, counted), -2)  # (b, h, 2, T)
    if mask.is_plain and not mask.is_causal:
        total = weights.sum(-1, keepdim=True).expand(*weights.shape[:-1], mask.S)
    elif mask.is_plain:
        total = double(weights.flip(-1)).cumsum(-1).flip(-1).to(weights)
        total = torch.nn.functional.pad(total, (0, max(0, mask.S - mask.T)))[..., : mask.S]
    else:
        total = torch.zeros((), device=counted.device)
        for rows in _mask_blocks(mask):
            total = total + weights[..., rows] @ mask.visible(rows, counted.device).to(weights.dtype)
    return total[..., 0, :], total[..., 1, :]


def _starts(real: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Valid tokens k with no visible pair across the border before k."""
    T = real.shape[-1]
    first, last = torch.where(real, first, T), torch.where(real, last, -1)
    lowest_later = first.flip(-1).cummin(-1).values.flip(-1)
    highest_earlier = torch.nn.functional.pad(last.cummax(-1).values, (1, 0), value=-1)[..., :-1]
    position = torch.arange(T, device=real.device)
    return real & (lowest_later >= position) & (highest_earlier < position)


def _spans(first: Tensor, last: Tensor, blocks: list[slice]) -> tuple[slice, ...]:
    low, high = first.amin((0, 1)).tolist(), last.amax((0, 1)).tolist()
    spans = ((min(low[rows]), max(high[rows]) + 1) for rows in blocks)
    return tuple(slice(min(a, b), b) for a, b in spans)
