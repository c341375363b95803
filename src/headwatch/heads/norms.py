"""What a norm between projection and attention computes, found by trying the formulas on its own input and output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from headwatch.heads.jacobian import Untraceable
from headwatch.heads.trace import Cut

__all__ = ["NormFormula", "fit_norm", "trailing_places"]

_NORMALISED: tuple[Literal["rms", "layer", "l2"], ...] = ("rms", "layer", "l2")
_EPS = (0.0, 1e-6, 1e-5, 1e-8, 1e-12)


@dataclass(frozen=True)
class NormFormula:
    """y = normalised(x) · (offset + gain) + bias, over the last dimension.

    Attributes:
        kind: "rms", "layer" (mean taken away), "l2", or "gain" (nothing is normalised).
        eps: added to the mean square.
        size: how many values are normalised together.
        gain, bias: names of parameters, or None.
        offset: 1 where 1 + w is multiplied.
    """

    kind: Literal["rms", "layer", "l2", "gain"]
    eps: float
    size: int
    gain: str | None = None
    offset: float = 0.0
    bias: str | None = None

    def normalised(self, x: Tensor) -> Tensor:
        """The part without gain and bias, over the last dimension of x."""
        if self.kind == "gain":
            return x
        if self.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        square = x.square().sum(-1, keepdim=True) if self.kind == "l2" else x.square().mean(-1, keepdim=True)
        return x * (square + self.eps).rsqrt()


def fit_norm(cut: Cut, tolerance: float) -> NormFormula:
    """The formula that reproduces the output of a norm from its input.

    Raises:
        Untraceable: no known formula does.
    """
    some = slice(0, 2 if cut.leaf.dim() > 2 else 64)
    x, y = (each.detach()[some].double() for each in (cut.input, cut.leaf))
    best = min(((_error(formula, cut, x, y), i, formula) for i, formula in enumerate(_formulas(cut))), default=None)
    if best is None or not best[0] <= tolerance:
        error = "" if best is None else f" (nearest formula is off by {best[0]:.1e})"
        raise Untraceable(f"{cut.module} stands between projection and attention and is no norm that is known{error}")
    return best[2]


def _formulas(cut: Cut) -> Iterator[NormFormula]:
    size = cut.leaf.shape[-1]
    names = list(cut.tensors)
    gains: list[tuple[str | None, str | None]] = [
        (g, b) for g in [*names, None] for b in [None, *names] if g != b or g is None
    ]
    for (gain, bias), offset in product(gains, (0.0, 1.0)):
        if len(names) != (gain is not None) + (bias is not None) or (offset and gain is None):
            continue
        if gain is not None:
            yield NormFormula("gain", 0.0, 1, gain, offset, bias)
        for kind, eps in product(_NORMALISED, dict.fromkeys((*cut.eps, *_EPS))):
            yield NormFormula(kind, eps, size, gain, offset, bias)


def _error(formula: NormFormula, cut: Cut, x: Tensor, y: Tensor) -> float:
    expected = formula.normalised(x)
    if formula.gain is not None:
        expected = expected * (cut.tensors[formula.gain].detach().double() + formula.offset)
    if formula.bias is not None:
        expected = expected + cut.tensors[formula.bias].detach().double()
    error = float((expected - y).abs().max() / y.abs().max().clamp(min=1e-30))
    return error if np.isfinite(error) else float("inf")


def trailing_places(parameter: torch.Size, shape: torch.Size) -> np.ndarray:
    """Flat place in a parameter of every element of a tensor over whose trailing dimensions it broadcasts."""
    places = np.arange(parameter.numel()).reshape(tuple(parameter))
    return np.broadcast_to(places, tuple(shape))
