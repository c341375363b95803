"""flex_attention: what its score_mod and mask_mod do, as a soft-cap and a mask of query rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["flex_rows", "flex_softcap"]

_SAMPLE = 8


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
    zero, one, far = (_scored(score_mod, x, shape, 0, stop, device) for x in (0.0, 1.0, 1e6))
    finite = zero.isfinite() & one.isfinite() & far.isfinite()
    if not bool(finite.any()):
        return None, False
    step, limit = (one - zero)[finite], (far - zero)[finite]
    if torch.allclose(step, torch.ones_like(step), rtol=1e-3) and torch.allclose(limit, 1e6 * step, rtol=1e-3):
        return None, True
    cap = float(limit.median())
    capped = cap > 0 and torch.allclose(limit, torch.full_like(limit, cap), rtol=1e-3)
    return cap, capped and torch.allclose(step, torch.full_like(step, cap * math.tanh(1 / cap)), rtol=1e-2, atol=1e-3)


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
