"""flex_attention: what its score_mod and mask_mod do, as a soft-cap and a mask of query rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["flex_rows", "flex_softcap"]

_SAMPLE = 8  # query rows that are tried
_SCORES, _FAR = (-2.0, 1.0, 50.0), 1e6


def flex_rows(
    score_mod: Callable[..., Tensor],
    mask_mod: Callable[..., Tensor],
    shape: tuple[int, int, int, int],
    device: torch.device,
) -> Callable[[int, int], Tensor]:
    """A function of (i, j) that gives the float mask of query rows [i, j), shape ``(B, H, j − i, S)``."""

    def rows(start: int, stop: int) -> Tensor:
        bias = _scored(score_mod, 0.0, shape, start, stop, device)
        return bias.masked_fill(~_grid(mask_mod, shape, start, stop, device), -math.inf)

    return rows


def flex_softcap(
    score_mod: Callable[..., Tensor], shape: tuple[int, int, int, int], device: torch.device
) -> tuple[float | None, bool]:
    """The soft-cap c in score_mod(x) = c · tanh(x/c) + bias (None: x + bias), and whether score_mod has this form."""
    stop = min(shape[2], _SAMPLE)
    zero, *rest = (_scored(score_mod, x, shape, 0, stop, device) for x in (0.0, *_SCORES, _FAR))
    finite = torch.stack([each.isfinite() for each in (zero, *rest)]).all(0)
    if not bool(finite.any()):
        return None, False
    *steps, limit = [(each - zero)[finite] for each in rest]
    cap = float(limit.median())
    if abs(cap - _FAR) <= 1e-3 * _FAR:
        return None, _are(steps, _SCORES)
    return cap, cap > 0 and _are([limit], (cap,)) and _are(steps, [cap * math.tanh(x / cap) for x in _SCORES])


def _are(steps: Sequence[Tensor], expected: Sequence[float]) -> bool:
    pairs = zip(steps, expected, strict=True)
    return all(torch.allclose(step, torch.full_like(step, x), rtol=1e-2, atol=1e-3) for step, x in pairs)


def _scored(
    mod: Callable[..., Tensor],
    value: float,
    shape: tuple[int, int, int, int],
    start: int,
    stop: int,
    device: torch.device,
) -> Tensor:
    score = torch.full((), value, device=device)
    return _grid(lambda *place: mod(score, *place), shape, start, stop, device)


def _grid(
    mod: Callable[..., Any], shape: tuple[int, int, int, int], start: int, stop: int, device: torch.device
) -> Tensor:
    """mod(b, h, t, s) over all documents, heads and keys and the query rows [start, stop)."""
    B, H, _, S = shape
    places = [torch.arange(size, device=device) for size in (B, H)]
    places += [torch.arange(start, stop, device=device), torch.arange(S, device=device)]
    for dim in reversed(range(4)):
        mod = torch.vmap(mod, in_dims=tuple(0 if d == dim else None for d in range(4)))
    return torch.as_tensor(mod(*places)).expand(B, H, stop - start, S)
