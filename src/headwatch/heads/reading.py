"""Read W_K and W_Q of the watched heads out of live parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from headwatch.forms import Factors, homogenise
from headwatch.heads.headmap import FLAT, IDENTITY, Gain, Projection, Rows, Site
from headwatch.heads.rotation import rotate

__all__ = ["CopiedFactors", "collect_part", "copy_factors", "read_factors", "stacked_rows", "sum_of_products"]


@dataclass(frozen=True)
class Part:
    """One projection as read: everything that a worker needs to build its rows, detached from the model.

    Attributes:
        terms: factors of every term; the first has shape ``(heads, n, inner)``.
        bias: shape ``(heads, n)``, or None.
        gain: shape ``(heads, n)`` or ``(n,)``, or None.
        inner: gains inside the terms.
    """

    terms: tuple[tuple[Tensor, ...], ...]
    bias: Tensor | None
    gain: Tensor | None
    inner: tuple[Tensor | None, ...]


@dataclass(frozen=True)
class CopiedFactors:
    """The rows of one site, copied in the weights' own dtype, key heads not repeated."""

    site: Site
    query: Part
    key: Part
    norm: Tensor | None

    @property
    def eps(self) -> float:
        """Rounding unit of the coarsest dtype that the weights are kept in."""
        dtypes = {part.terms[0][0].dtype for part in (self.query, self.key)}
        return max(torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point)

    def factors(
        self, *, bias: bool = False, norm_gain: bool = False, qk_gain: bool = True, displacement: int = 0
    ) -> Factors:
        """Factors of the watched heads, shape ``(len(site.heads), n, N)``, or N + 1 with ``bias``.

        Args:
            bias: append the biases as a last column (Ŵ = [W | b]).
            norm_gain: fold the gain of the norm in front into the columns.
            qk_gain: fold the gains of a QK-norm into the rows (the numerator form).
            displacement: query position − key position; rotary sites only turn, others have none to apply.

        Raises:
            ValueError: a displacement of a site whose rotary positions were never measured.
        """
        W_Q = self._matrix(self.site.W_Q, self.query, bias, norm_gain, qk_gain)
        W_K = self._matrix(self.site.W_K, self.key, bias, norm_gain, qk_gain)
        if displacement:
            W_Q = _displaced(W_Q, self.site, displacement)
        key_rows = torch.as_tensor(_key_rows(self.site), device=W_K.device)
        return Factors(W_K=W_K.index_select(0, key_rows), W_Q=W_Q)

    def _matrix(self, projection: Projection, part: Part, bias: bool, norm_gain: bool, qk_gain: bool) -> Tensor:
        matrix = sum_of_products(projection, part)
        if norm_gain and self.norm is not None:
            matrix = matrix * _wide(self.norm)
        if bias:
            matrix = homogenise(matrix, matrix.new_zeros(matrix.shape[:2]) if part.bias is None else part.bias)
        if projection.centred:
            matrix = matrix - matrix.mean(dim=-2, keepdim=True)
        return matrix * _wide(part.gain).unsqueeze(-1) if qk_gain and part.gain is not None else matrix


def copy_factors(site: Site, parameters: Mapping[str, Tensor]) -> CopiedFactors:
    """Copy the rows of the watched heads to the CPU in the weights' dtype: one index_select per parameter.

    Raises:
        KeyError: a parameter of the site is not among ``parameters``.
    """
    return _collect(site, parameters, torch.device("cpu"))


def read_factors(
    site: Site,
    parameters: Mapping[str, Tensor],
    *,
    bias: bool = False,
    norm_gain: bool = False,
    qk_gain: bool = True,
    displacement: int = 0,
) -> Factors:
    """Factors of the watched heads of one site, on the device of the weights; see ``CopiedFactors.factors``."""
    copied = _collect(site, parameters, None)
    return copied.factors(bias=bias, norm_gain=norm_gain, qk_gain=qk_gain, displacement=displacement)


@torch.no_grad()
def _collect(site: Site, parameters: Mapping[str, Tensor], device: torch.device | None) -> CopiedFactors:
    keys = sorted({site.kv_head[head] for head in site.heads})
    return CopiedFactors(
        site=site,
        query=collect_part(site.W_Q, list(site.heads), site.n_heads, parameters, device),
        key=collect_part(site.W_K, keys, site.n_kv_heads, parameters, device),
        norm=None if site.norm is None else _gain(site.norm, None, parameters, device),
    )


def collect_part(
    projection: Projection,
    heads: list[int],
    n_heads: int,
    parameters: Mapping[str, Tensor],
    device: torch.device | None = None,
) -> Part:
    """Read one projection of these heads (of ``n_heads``), to ``device`` or where the weights are."""
    terms = tuple(
        (
            _rows(term.rows[0], heads, n_heads, parameters, device),
            *(_whole(r, parameters, device) for r in term.rows[1:]),
        )
        for term in projection.terms
    )
    return Part(
        terms=terms,
        bias=None if projection.bias is None else _rows(projection.bias, heads, n_heads, parameters, device)[..., 0],
        gain=None if projection.gain is None else _gain(projection.gain, heads, parameters, device),
        inner=tuple(None if t.gain is None else _gain(t.gain, None, parameters, device) for t in projection.terms),
    )


def _rows(
    rows: Rows, heads: list[int], n_heads: int, parameters: Mapping[str, Tensor], device: torch.device | None
) -> Tensor:
    """The indexed rows of these heads, shape ``(len(heads), n, inner)``."""
    matrix = _as_matrix(rows, parameters)
    index = rows.index if rows.index is not None else np.arange(len(matrix)).reshape(n_heads, -1)
    wanted = torch.as_tensor(index[heads].reshape(-1), device=matrix.device)
    return _moved(matrix.index_select(0, wanted), device).unflatten(0, (len(heads), -1))


def _whole(rows: Rows, parameters: Mapping[str, Tensor], device: torch.device | None) -> Tensor:
    matrix = _as_matrix(rows, parameters)
    if rows.index is None:
        return _moved(matrix.clone(), device)
    return _moved(matrix.index_select(0, torch.as_tensor(rows.index.reshape(-1), device=matrix.device)), device)


def _as_matrix(rows: Rows, parameters: Mapping[str, Tensor]) -> Tensor:
    parts = [_matrix(_parameter(name, parameters), rows.pattern) for name in (rows.parameter, *rows.more)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def stacked_rows(rows: Sequence[Rows], parameters: Mapping[str, Tensor]) -> Rows:
    """Rows of several weights as rows of these laid under one another.

    Raises:
        ValueError: the weights are kept in different layouts.
    """
    if len({each.pattern for each in rows}) > 1:
        raise ValueError("expected rows of weights in one layout, found: " + ", ".join(each.pattern for each in rows))
    if len({(each.parameter, each.more) for each in rows}) == 1:
        return replace(rows[0], index=np.concatenate([_index(each, parameters) for each in rows]))
    starts = np.cumsum([0, *(len(_as_matrix(each, parameters)) for each in rows)])
    index = np.concatenate([start + _index(each, parameters) for start, each in zip(starts, rows, strict=False)])
    names = [name for each in rows for name in (each.parameter, *each.more)]
    return Rows(names[0], rows[0].pattern, index, tuple(names[1:]))


def _index(rows: Rows, parameters: Mapping[str, Tensor]) -> np.ndarray:
    return rows.index if rows.index is not None else np.arange(len(_as_matrix(rows, parameters)))[None]


def _matrix(tensor: Tensor, pattern: str) -> Tensor:
    if tensor.dim() == 1 or pattern == FLAT:
        return tensor.reshape(-1, 1)
    turned: Tensor = tensor if pattern == IDENTITY else rearrange(tensor, pattern)
    return turned


def _gain(gain: Gain, heads: list[int] | None, parameters: Mapping[str, Tensor], device: torch.device | None) -> Tensor:
    flat = torch.cat([_parameter(name, parameters).detach().reshape(-1) for name in (gain.parameter, *gain.more)])
    index = gain.index
    if index is None:
        return _wide(_moved(flat.clone(), device)) + gain.offset
    index = index[heads] if heads is not None and index.ndim == 2 else index
    wanted = torch.as_tensor(index.reshape(-1), device=flat.device)
    return _wide(_moved(flat.index_select(0, wanted), device)).reshape(index.shape) + gain.offset


def _parameter(name: str, parameters: Mapping[str, Tensor]) -> Tensor:
    try:
        return parameters[name].detach()
    except KeyError:
        raise KeyError(f"parameter {name!r} of a watched head is gone from the model: find the heads anew") from None


def _moved(tensor: Tensor, device: torch.device | None) -> Tensor:
    return tensor if device is None else tensor.to(device)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def sum_of_products(projection: Projection, part: Part) -> Tensor:
    """Σ scale · first @ diag(gain) @ second, shape ``(heads, n, N)``; sums and products are taken in float64."""
    simple = len(part.terms) == 1 and len(part.terms[0]) == 1
    total: Tensor | None = None
    for term, factors, gain in zip(projection.terms, part.terms, part.inner, strict=True):
        product = _wide(factors[0]) if simple else factors[0].double()
        product = product if gain is None else product * gain.to(product.dtype)
        for factor in factors[1:]:
            product = product @ factor.to(product.dtype)
        product = product if term.scale == 1.0 else product * term.scale
        total = product if total is None else total + product
    assert total is not None, "a projection has at least one term"
    return total


def _key_rows(site: Site) -> list[int]:
    """Place of every watched head's key head among those that were read."""
    keys = sorted({site.kv_head[head] for head in site.heads})
    return [keys.index(site.kv_head[head]) for head in site.heads]


def _displaced(W_Q: Tensor, site: Site, displacement: int) -> Tensor:
    if site.rope is not None:
        return rotate(W_Q, site.rope, displacement)
    if site.status == "structural":
        raise ValueError(
            f"{site.module}: displacement={displacement} needs measured rotary positions, but these heads were found "
            "by rule alone; pass a probe, or displacement=0"
        )
    return W_Q
