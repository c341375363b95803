"""Which heads of a site a rank can read from its own shards, and the site as it lies there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from headwatch.heads.headmap import FLAT, IDENTITY, Gain, Projection, Rows, Site, Term

__all__ = [
    "gains_of",
    "held_heads",
    "is_sharded",
    "is_split",
    "is_whole",
    "local_site",
    "local_tensor",
    "parameters_of",
    "span",
]


def is_split(parameter: Tensor) -> bool:
    """Whether a parameter is a DTensor, told without importing it."""
    return hasattr(parameter, "full_tensor") and hasattr(parameter, "placements")


def is_sharded(parameter: Tensor) -> bool:
    """Whether this rank may lack a part of a parameter: DTensor, DeepSpeed ZeRO-3, or a flat piece of FSDP1."""
    return is_split(parameter) or hasattr(parameter, "ds_id") or parameter.numel() == 0


def local_tensor(parameter: Tensor) -> Tensor:
    """What this rank holds of a parameter."""
    local: Tensor = parameter.detach().to_local() if is_split(parameter) else parameter  # type: ignore[attr-defined]
    return local


def span(parameter: Tensor) -> tuple[int, int]:
    """First and last + 1 index of dimension 0 that this rank holds; (0, 0) when it is not held by whole slices."""
    if not is_split(parameter):
        return (0, 0) if is_sharded(parameter) else (0, _length(parameter))
    names = [type(placement).__name__ for placement in parameter.placements]  # type: ignore[attr-defined]
    sharded = [i for i, name in enumerate(names) if name != "Replicate"]
    if not sharded:
        return 0, _length(parameter)
    [dim, *more] = sharded
    if more or names[dim] != "Shard" or parameter.placements[dim].dim != 0:  # type: ignore[attr-defined]
        return 0, 0
    return _chunk(parameter, dim)


def _length(parameter: Tensor) -> int:
    return int(parameter.shape[0]) if parameter.dim() else 1


def _chunk(parameter: Tensor, mesh_dim: int) -> tuple[int, int]:
    """The shard as ``torch.chunk`` cuts it, checked against what lies there."""
    mesh = parameter.device_mesh  # type: ignore[attr-defined]
    size, place = mesh.size(mesh_dim), mesh.get_coordinate()[mesh_dim]
    chunk = math.ceil(parameter.shape[0] / size)
    start, stop = min(place * chunk, parameter.shape[0]), min((place + 1) * chunk, parameter.shape[0])
    return (start, stop) if local_tensor(parameter).shape[0] == stop - start else (0, 0)


def held_heads(site: Site, parameters: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Watched heads of which this rank holds every query row, key row and bias; gains are small and do not count."""
    if any(not is_whole(parameters[name]) for name in _undivided(site)):
        return ()
    return tuple(
        head
        for head in site.heads
        if _holds(site.W_Q, site.n_heads, head, parameters)
        and _holds(site.W_K, site.n_kv_heads, site.kv_head[head], parameters)
    )


def local_site(site: Site, heads: Sequence[int], parameters: Mapping[str, Tensor]) -> Site:
    """The site with these heads alone, its rows counted in this rank's shards; all must be held."""
    return replace(
        site,
        heads=tuple(heads),
        W_Q=_moved_projection(site.W_Q, site.n_heads, parameters),
        W_K=_moved_projection(site.W_K, site.n_kv_heads, parameters),
    )


def parameters_of(site: Site) -> tuple[str, ...]:
    """Names of all parameters that a site is read from, in a fixed order."""
    divided = [n for p in (site.W_Q, site.W_K) for r in (*_first_rows(p), *_biases(p)) for n in _row_names(r)]
    return tuple(dict.fromkeys((*divided, *_undivided(site), *gains_of(site))))


def gains_of(site: Site) -> tuple[str, ...]:
    """Names of the gains: QK-norm, latent norms, the norm in front."""
    gains = [site.norm, *(gain for p in (site.W_Q, site.W_K) for gain in (p.gain, *(t.gain for t in p.terms)))]
    return tuple(name for gain in gains if gain is not None for name in _gain_names(gain))


def _gain_names(gain: Gain) -> tuple[str, ...]:
    return gain.parameter, *gain.more


def _undivided(site: Site) -> list[str]:
    """Second factors of products: all heads read all of them."""
    return [n for p in (site.W_Q, site.W_K) for term in p.terms for rows in term.rows[1:] for n in _row_names(rows)]


def _row_names(rows: Rows) -> tuple[str, ...]:
    return rows.parameter, *rows.more


def _biases(projection: Projection) -> tuple[Rows, ...]:
    return (projection.bias,) if projection.bias is not None else ()


def _first_rows(projection: Projection) -> Iterator[Rows]:
    return (term.rows[0] for term in projection.terms)


def is_whole(parameter: Tensor) -> bool:
    """Whether this rank holds all of a parameter."""
    return span(parameter) == (0, _length(parameter))


def _holds(projection: Projection, n_heads: int, head: int, parameters: Mapping[str, Tensor]) -> bool:
    divided = (*_first_rows(projection), *_biases(projection))
    return all(_holds_rows(rows, n_heads, head, parameters) for rows in divided)


def _holds_rows(rows: Rows, n_heads: int, head: int, parameters: Mapping[str, Tensor]) -> bool:
    start, stop = _row_span(rows, parameters)
    wanted = _index(rows, n_heads, parameters)[head]
    return bool(wanted.min() >= start and wanted.max() < stop)


def _row_span(rows: Rows, parameters: Mapping[str, Tensor]) -> tuple[int, int]:
    """Rows of the (out, in) matrix that this rank holds."""
    parameter = parameters[rows.parameter]
    per_slice = None if rows.more else _rows_per_slice(rows.pattern, tuple(parameter.shape))
    if per_slice is None:
        whole = all(is_whole(parameters[name]) for name in _row_names(rows))
        return (0, _n_rows(rows, parameters)) if whole else (0, 0)
    start, stop = span(parameter)
    return start * per_slice, stop * per_slice


def _rows_per_slice(pattern: str, shape: tuple[int, ...]) -> int | None:
    """Matrix rows in one slice of dimension 0; None where slices are not runs of rows.

    >>> _rows_per_slice("o i -> o i", (12, 5)), _rows_per_slice("h i n -> (h n) i", (4, 16, 8))
    (1, 8)
    >>> _rows_per_slice("flat", (4, 8))
    8
    >>> _rows_per_slice("i o -> o i", (5, 12)) is None
    True
    """
    if pattern == IDENTITY or len(shape) == 1:
        return 1
    if pattern == FLAT:
        return math.prod(shape[1:])
    sizes = dict(zip(pattern.split("->")[0].split(), shape, strict=True))
    out = _out_axes(pattern)
    if out[0] != next(iter(sizes)):
        return None
    return math.prod(sizes[name] for name in out[1:])


def _out_axes(pattern: str) -> list[str]:
    right = pattern.split("->")[1].strip()
    return right[1 : right.index(")")].split() if right.startswith("(") else [right.split()[0]]


def _n_rows(rows: Rows, parameters: Mapping[str, Tensor]) -> int:
    return sum(_height(rows.pattern, parameters[name]) for name in _row_names(rows))


def _height(pattern: str, parameter: Tensor) -> int:
    """Rows of one parameter as a matrix."""
    if pattern == FLAT or parameter.dim() == 1:
        return parameter.numel()
    sizes = dict(zip(pattern.split("->")[0].split(), parameter.shape, strict=True))
    return math.prod(sizes[name] for name in _out_axes(pattern))


def _index(rows: Rows, n_heads: int, parameters: Mapping[str, Tensor]) -> np.ndarray:
    if rows.index is not None:
        return rows.index
    return np.arange(_n_rows(rows, parameters)).reshape(n_heads, -1)


def _moved_projection(projection: Projection, n_heads: int, parameters: Mapping[str, Tensor]) -> Projection:
    terms = tuple(_moved_term(term, n_heads, parameters) for term in projection.terms)
    bias = projection.bias
    return replace(projection, terms=terms, bias=None if bias is None else _moved(bias, n_heads, parameters))


def _moved_term(term: Term, n_heads: int, parameters: Mapping[str, Tensor]) -> Term:
    return replace(term, rows=(_moved(term.rows[0], n_heads, parameters), *term.rows[1:]))


def _moved(rows: Rows, n_heads: int, parameters: Mapping[str, Tensor]) -> Rows:
    return replace(rows, index=_index(rows, n_heads, parameters) - _row_span(rows, parameters)[0])
