"""The input that query and key share, and how every projection reaches it: directly, or through one more projection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwatch.heads.jacobian import Untraceable
from headwatch.heads.layout import Layout
from headwatch.heads.norms import NormFormula
from headwatch.heads.resolve import Channel, follow
from headwatch.heads.trace import Cut, Tracer

__all__ = ["CrossAttention", "Paths", "Under", "inputs_of"]


class CrossAttention(ValueError):
    """Query and key do not come from one input."""


def inputs_of(cut: Cut) -> Tensor:
    """What a projection was given, as a matrix (row, i), without graph."""
    assert cut.linear is not None
    return cut.linear.inputs().detach()


@dataclass(frozen=True)
class Under:
    """The projection beneath another: the other's inputs, channel by channel."""

    cut: Cut
    channels: list[Channel]
    norm: Cut | None


class Paths:
    """How the projections of one attention call reach the input that they share.

    Attributes:
        root: that input, shape (row, N).
        entry: a projection that was given it.
    """

    def __init__(self, tracer: Tracer, query: set[Cut], key: set[Cut]) -> None:
        self._tracer = tracer
        self._under: dict[Cut, Under | None] = {}
        self._formulas: dict[Cut, NormFormula] = {}
        self._direct: dict[Cut, bool] = {}
        self.entry = self._shared(query, key)
        self.root = inputs_of(self.entry)

    def beneath(self, cut: Cut) -> Under | None:
        """None for a projection of the root itself, else the projection of the root beneath it."""
        if cut not in self._direct:
            self._direct[cut] = _same(inputs_of(cut), self.root)
        return None if self._direct[cut] else self._expanded(cut)

    def formula(self, norm: Cut) -> NormFormula:
        """What a norm between two projections computes."""
        return self._formulas[norm]

    def _shared(self, query: set[Cut], key: set[Cut]) -> Cut:
        for candidate in self._candidates(query):
            if all(self._reaches(cut, inputs_of(candidate)) for cut in (*query, *key)):
                return candidate
        raise CrossAttention("cross-attention: query and key come from different inputs")

    def _candidates(self, cuts: Iterable[Cut]) -> Iterator[Cut]:
        cuts = sorted(cuts, key=lambda cut: -inputs_of(cut).shape[1])
        yield from cuts
        for cut in cuts:
            under = self._expanded(cut)
            if under is not None:
                yield under.cut

    def _reaches(self, cut: Cut, candidate: Tensor) -> bool:
        if _same(inputs_of(cut), candidate):
            return True
        under = self._expanded(cut)
        return under is not None and _same(inputs_of(under.cut), candidate)

    def _expanded(self, cut: Cut) -> Under | None:
        if cut not in self._under:
            try:
                self._under[cut] = self._follow(cut)
            except Untraceable:
                self._under[cut] = None
        return self._under[cut]

    def _follow(self, cut: Cut) -> Under:
        assert cut.linear is not None
        tensor = cut.linear.x
        if not tensor.requires_grad:
            raise Untraceable("nothing was projected before")
        length = tensor.shape[-2] if tensor.dim() > 2 else 1
        trail = follow(self._tracer, tensor, _layout(cut), length, ("under", cut.linear.matrix.parameter))
        below = {link.cut for channel in trail.channels for link in channel.links}
        norms = {channel.norm for channel in trail.channels}
        if len(below) != 1 or len(norms) != 1 or trail.rotation is not None:
            raise Untraceable("inputs of a projection come from several others")
        if any(len(c.links) != 1 or c.shifts or abs(c.links[0].factor - 1) > 1e-6 for c in trail.channels):
            raise Untraceable("inputs of a projection are scaled or shifted")
        self._formulas.update(trail.formulas)
        return Under(next(iter(below)), trail.channels, next(iter(norms)))


def _layout(cut: Cut) -> Layout:
    """Rows and columns of a projection's input."""
    assert cut.linear is not None
    x, x_dim = cut.linear.x, cut.linear.x_dim
    rows = [a for a in range(x.dim()) if a != x_dim]
    return Layout.regular(x.shape, rows, (x_dim,), np.arange(x.numel() // x.shape[x_dim]), x.shape[x_dim])


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and (a.data_ptr() == b.data_ptr() or bool(torch.equal(a.float(), b.float())))
