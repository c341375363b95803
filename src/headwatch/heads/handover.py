"""Heads that the user hands over: a module, its weights, its counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor, nn

from headwatch.heads import layouts
from headwatch.heads.headmap import FLAT, IDENTITY, Projection, Rows, Site, Term
from headwatch.heads.names import named_modules

__all__ = ["handed_sites"]

_KNOWN = ("module", "W_Q", "W_K", "n_heads", "n_kv_heads", "layout", "transposed", "rows", "b_Q", "b_K", "kv_head")
_LAYOUTS = ("separate", "concatenated", "interleaved", "grouped")

Entry = Mapping[str, object] | object


def handed_sites(model: nn.Module, heads: Sequence[Entry], parameters: Mapping[str, Tensor]) -> list[Site]:
    """Sites of what the user handed over, not yet proven.

    Every entry is a mapping, or an object with attributes, of:

    - ``module``: the attention module, by its name in the model.
    - ``W_Q``, ``W_K``: names of the weights; the same name for a fused weight.
    - ``n_heads``, ``n_kv_heads`` (default: ``n_heads``).
    - ``layout``: "separate" (default for two weights), "concatenated" ([Q; K; V], default for one), "interleaved"
      ([q, k, v] per head) or "grouped" ([q × group, k, v] per key head).
    - ``rows``: instead of a layout, a pair of index arrays of shapes (n_heads, d_head) and (n_kv_heads, d_head).
    - ``transposed``: True for weights kept (in, out). Weights of shape (head, d_model, d_head) are recognised.
    - ``kv_head``: key head of every query head (default: head // group).
    - ``b_Q``, ``b_K``: names of biases, indexed as the weights.

    Raises:
        ValueError: an entry lacks something, names what the model has not, or does not fit the weights' shapes.
    """
    modules = {name for name, _ in named_modules(model)}
    return [_site(_Reader(entry, parameters), modules) for entry in heads]


class _Reader:
    """One entry: its values, checked."""

    def __init__(self, entry: Entry, parameters: Mapping[str, Tensor]) -> None:
        values = entry if isinstance(entry, Mapping) else {key: getattr(entry, key, None) for key in _KNOWN}
        self.values = {str(key): value for key, value in values.items() if value is not None}
        self.parameters = parameters
        unknown = sorted(set(self.values) - set(_KNOWN))
        if unknown:
            raise ValueError(f"heads: unknown key {unknown[0]!r}; expected some of: {', '.join(_KNOWN)}")

    def text(self, key: str) -> str:
        """A string that must be there."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise ValueError(f"heads: {key!r} must be a string in every entry, found {value!r} in {self.values}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A positive count."""
        value = self.values.get(key, default)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"heads: {key!r} must be a positive number, found {value!r} in {self.values}")
        return value

    def weight(self, key: str) -> Tensor:
        """A parameter of the model, by the name in the entry."""
        name = self.text(key)
        if name not in self.parameters:
            near = [other for other in self.parameters if other.startswith(name.rsplit(".", 1)[0])][:8]
            raise ValueError(f"heads: the model has no parameter {name!r}; near it: {', '.join(near) or 'none'}")
        return self.parameters[name]


def _site(entry: _Reader, modules: set[str]) -> Site:
    module = entry.text("module")
    if module not in modules:
        near = [name for name in sorted(modules) if name.startswith(module.rsplit(".", 1)[0])][:8]
        raise ValueError(f"heads: the model has no module {module!r}; near it: {', '.join(near) or 'none'}")
    n_heads = entry.count("n_heads")
    n_kv_heads = entry.count("n_kv_heads", n_heads)
    q_index, k_index, layout = _rows(entry, n_heads, n_kv_heads)
    kv_head = entry.values.get("kv_head", [head * n_kv_heads // n_heads for head in range(n_heads)])
    W_Q, W_K = (_projection(entry, key, index) for key, index in (("Q", q_index), ("K", k_index)))
    return Site(
        layer=-1,
        module=module,
        d_model=_matrix_shape(entry, "W_Q")[1],
        d_head=q_index.shape[1],
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        W_Q=W_Q,
        W_K=W_K,
        kv_head=tuple(int(kv) for kv in kv_head),  # type: ignore[attr-defined]
        heads=tuple(range(n_heads)),
        status="structural",
        flags=("handed_over",),
        layout=layout,
    )


def _rows(entry: _Reader, n_heads: int, n_kv_heads: int) -> tuple[np.ndarray, np.ndarray, str]:
    given = entry.values.get("rows")
    rows = _matrix_shape(entry, "W_Q")[0], _matrix_shape(entry, "W_K")[0]
    if given is not None:
        q, k = (np.asarray(each) for each in given)  # type: ignore[attr-defined]
        layout = "rows given"
    else:
        same = entry.text("W_Q") == entry.text("W_K")
        layout = str(entry.values.get("layout", "concatenated" if same else "separate"))
        q, k = _by_layout(layout, rows[0], n_heads, n_kv_heads)
    shapes = (n_heads, q.shape[-1]), (n_kv_heads, q.shape[-1])
    if (q.shape, k.shape) != shapes or q.max() >= rows[0] or k.max() >= rows[1]:
        raise ValueError(
            f"heads: {entry.text('module')}: layout {layout!r} needs rows up to {q.max()} and {k.max()} in shapes "
            f"{shapes}; "
            f"found weights of {rows[0]} and {rows[1]} rows, indices of shapes {q.shape} and {k.shape}"
        )
    return q, k, layout


def _by_layout(layout: str, rows: int, n_heads: int, n_kv_heads: int) -> tuple[np.ndarray, np.ndarray]:
    if layout not in _LAYOUTS:
        raise ValueError(f"heads: unknown layout {layout!r}; expected one of: {', '.join(_LAYOUTS)}")
    if layout == "separate":
        d_head = rows // n_heads
        return layouts.separate(n_heads, d_head), layouts.separate(n_kv_heads, d_head)
    d_head = rows // (n_heads + 2 * n_kv_heads)
    if layout == "concatenated":
        return layouts.concatenated(n_heads, n_kv_heads, d_head)
    if layout == "interleaved":
        return layouts.interleaved(n_heads, d_head)
    return layouts.grouped(n_heads, n_kv_heads, d_head)


def _matrix_shape(entry: _Reader, key: str) -> tuple[int, int]:
    """(out, in) of a weight."""
    weight = entry.weight(key)
    if weight.dim() == 3:
        return weight.shape[0] * weight.shape[2], weight.shape[1]
    if weight.dim() != 2:
        raise ValueError(f"heads: {entry.text(key)} has shape {tuple(weight.shape)}; expected a matrix or one per head")
    out, in_ = weight.shape
    return (in_, out) if entry.values.get("transposed") else (out, in_)


def _projection(entry: _Reader, side: str, index: np.ndarray) -> Projection:
    per_head = entry.weight(f"W_{side}").dim() == 3
    pattern = "h i n -> (h n) i" if per_head else "i o -> o i" if entry.values.get("transposed") else IDENTITY
    bias = None
    if f"b_{side}" in entry.values:
        entry.weight(f"b_{side}")
        bias = Rows(entry.text(f"b_{side}"), FLAT, index)
    return Projection((Term((Rows(entry.text(f"W_{side}"), pattern, index),)),), bias)
