"""The mask that a model really applied, whatever form it has, by rows of queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["HIDDEN", "Mask", "MaskChunk", "double", "visible_pairs"]

MaskChunk = Callable[[int, int], Tensor]

# Added instead of −∞: finfo.min in most code, −10,000 in older code. No position bias of a visible pair is as low.
HIDDEN = -9e3


@dataclass(frozen=True)
class Mask:
    """Which of S keys each of T queries may see, and what is added to their scores.

    Attributes:
        T, S: number of queries and keys.
        mask: bool (True = visible) or float added to the scores; four dimensions, each T, S, B, H or 1; None if absent.
        is_causal: query t sees keys 0..t (aligned top left, as in torch).
        chunk: ``chunk(i, j)`` gives the mask of queries i..j−1 instead, for masks that exist as code only.
    """

    T: int
    S: int
    mask: Tensor | None = None
    is_causal: bool = False
    chunk: MaskChunk | None = None

    def __post_init__(self) -> None:
        if self.mask is not None and not _fits(self.mask, self.T, self.S):
            raise ValueError(
                f"mask: expected a shape that broadcasts to (B, H, {self.T}, {self.S}), found {tuple(self.mask.shape)}"
            )

    @property
    def is_plain(self) -> bool:
        """Whether the mask is causal or nothing, so that its geometry has a closed form."""
        return self.mask is None and self.chunk is None

    def rows(self, rows: slice) -> Tensor | None:
        """The mask of some queries, shape (B or 1, H or 1, c or 1, S or 1)."""
        if self.chunk is not None:
            return _four(self.chunk(rows.start, min(rows.stop, self.T)))[:, :, :: rows.step or 1]
        if self.mask is None:
            return None
        mask = _four(self.mask)
        return mask if mask.shape[2] == 1 else mask[:, :, rows]

    def visible(self, rows: slice, device: torch.device) -> Tensor:
        """Visible pairs of some queries: bool, shape (B or 1, H or 1, c, S)."""
        mask = self.rows(rows)
        query = torch.arange(self.T, device=device)[rows]
        seen = torch.ones(1, 1, len(query), self.S, dtype=torch.bool, device=device)
        if self.is_causal:
            seen = seen & (query[:, None] >= torch.arange(self.S, device=device))
        return seen if mask is None else seen & visible_pairs(mask)


def visible_pairs(mask: Tensor) -> Tensor:
    """True where a mask lets a query see a key; a float mask hides what it lowers by 9,000 or more.

    >>> visible_pairs(torch.tensor([0.5, -3.0, -1e4, -torch.inf]))
    tensor([ True,  True, False, False])
    """
    return mask if mask.dtype == torch.bool else mask > HIDDEN


def double(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU where the device has none (MPS)."""
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()


def _fits(mask: Tensor, T: int, S: int) -> bool:
    shape = (1, 1, *mask.shape)[-2:]
    return mask.ndim <= 4 and shape[0] in (1, T) and shape[1] in (1, S)


def _four(mask: Tensor) -> Tensor:
    return mask[(None,) * (4 - mask.ndim)]
