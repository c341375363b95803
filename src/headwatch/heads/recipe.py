"""How one projection at an attention call comes about: what a site keeps, and what its proof needs beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headwatch.heads.headmap import Projection, Term
from headwatch.heads.norms import NormFormula
from headwatch.heads.reading import collect_part

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """W_Q or W_K of one attention call.

    Attributes:
        projection: parameters and rows, one group of rows per head (distinct key heads for W_K).
        heads: for every head at the call, the head of ``projection`` that it is.
        places: coordinates of q (or k) at the call that the rows predict; all of them except under MLA.
        factor: what q or k is multiplied with before the call, beside gains.
        norm: formula of the QK-norm, None without one.
        norm_bias: (parameter, flat places, shape (heads, n)) that the norm adds, or None.
        inner: formula of the norm inside each term, None where there is none.
        root: name of the parameter of the first projection, by which its input is found again.
    """

    projection: Projection
    heads: tuple[int, ...]
    places: tuple[int, ...]
    factor: float
    root: str
    norm: NormFormula | None = None
    norm_bias: tuple[str, np.ndarray] | None = None
    inner: tuple[NormFormula | None, ...] = field(default=())

    @property
    def n_heads(self) -> int:
        """Distinct heads."""
        return max(self.heads) + 1

    def predict(self, x: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """q (or k) before rotation from the inputs of the projection, in float64: (tokens, N) → (tokens, heads, n)."""
        part = collect_part(self.projection, list(range(self.n_heads)), self.n_heads, parameters)
        x = x.double()
        total = sum(
            self._term(x, term, tensors, gain, formula)
            for term, tensors, gain, formula in zip(
                self.projection.terms, part.terms, part.inner, self.inner or (None,) * len(part.terms), strict=True
            )
        )
        assert isinstance(total, Tensor)
        if part.bias is not None:
            total = total + part.bias.double()
        if self.norm is not None:
            total = self._normed(total, part.gain, parameters)
        return total * self.factor

    def _term(
        self, x: Tensor, term: Term, tensors: tuple[Tensor, ...], gain: Tensor | None, formula: NormFormula | None
    ) -> Tensor:
        for tensor in reversed(tensors[1:]):
            x = x @ tensor.double().T
        if formula is not None:
            x = formula.normalised(x)
        if gain is not None:
            x = x * gain.double()
        return term.scale * torch.einsum("ti,hni->thn", x, tensors[0].double())

    def _normed(self, q: Tensor, gain: Tensor | None, parameters: Mapping[str, Tensor]) -> Tensor:
        assert self.norm is not None
        whole = self.norm.size != q.shape[-1] and self.norm.kind != "gain"
        q = self.norm.normalised(q.flatten(1)).view_as(q) if whole else self.norm.normalised(q)
        q = q if gain is None else q * gain.double()
        if self.norm_bias is None:
            return q
        name, places = self.norm_bias
        return q + parameters[name].detach().reshape(-1)[torch.as_tensor(places)].double()
