"""Products q·kᵀ of two activations, as code that computes attention step by step forms them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

__all__ = ["PRODUCTS", "Args", "Kwargs", "ScoreTag", "parse_einsum"]

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


@dataclass(frozen=True)
class ScoreTag:
    """What a tensor of scores is: scale · q·kᵀ (soft-capped) plus what was added, in some order of dimensions.

    Attributes:
        q, k: as the model multiplied them, shapes ``(*batch, T, n)`` and ``(*batch', S, n)``.
        labels: one per dimension: "T", "S", or "" for batch dimensions in the order of the product.
        scale: factor of q·k so far; inside the tanh once one was seen.
        outer: factor after a tanh, None before.
        hidden: where a two-valued additive mask hides a pair, broadcast as the scores were then.
        extra: columns appended behind the keys (a learned sink, as in gpt-oss).
    """

    q: Tensor
    k: Tensor
    labels: tuple[str, ...]
    scale: float = 1.0
    outer: float | None = None
    hidden: Tensor | None = None
    extra: int = 0

    @property
    def softcap(self) -> float | None:
        """c of c · tanh(scale · q·k / c); None without one."""
        return self.outer

    @property
    def total_scale(self) -> float:
        """The factor of q·k in the call's convention."""
        return self.scale if self.outer is None else self.scale * self.outer

    def canonical(self, scores: Tensor) -> Tensor:
        """Scores (or weights) in the order ``(…, T, S)``."""
        order = [i for i, label in enumerate(self.labels) if not label]
        order += [self.labels.index("T"), self.labels.index("S")]
        return scores.permute(order)


def _matmul(args: Args, kwargs: Kwargs, out: Tensor) -> ScoreTag | None:
    left, right = _two(args, kwargs, "input", "other")
    return _product(left, right, out)


def _bmm(args: Args, kwargs: Kwargs, out: Tensor) -> ScoreTag | None:
    left, right = _two(args, kwargs, "input", "mat2")
    return _product(left, right, out)


def _baddbmm(args: Args, kwargs: Kwargs, out: Tensor) -> ScoreTag | None:
    left, right = _two(args[1:], kwargs, "batch1", "batch2")
    tag = _product(left, right, out)
    return None if tag is None else replace(tag, scale=float(kwargs.get("alpha", 1.0)))


def _two(args: Args, kwargs: Kwargs, first: str, second: str) -> tuple[Any, Any]:
    values = [*args, *(kwargs[key] for key in (first, second) if key in kwargs)]
    return values[0], values[1]


def _product(left: Tensor, right: Tensor, out: Tensor) -> ScoreTag | None:
    """q @ kᵀ of two activations."""
    if out.dim() < 3 or left.dim() < 2 or right.dim() < 2 or _is_weight(left) or _is_weight(right):
        return None
    return ScoreTag(left, right.transpose(-1, -2), ("",) * (out.dim() - 2) + ("T", "S"))


def _is_weight(tensor: Tensor) -> bool:
    base = tensor._base if tensor._base is not None else tensor
    return isinstance(base, torch.nn.Parameter)


def _einsum(args: Args, kwargs: Kwargs, out: Tensor) -> ScoreTag | None:
    """Two activations contracted over one index; batch indices, then one index of q alone and one of k alone."""
    equation = args[0]
    operands = list(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else list(args[1:])
    if not isinstance(equation, str) or len(operands) != 2 or any(_is_weight(each) for each in operands):
        return None
    parsed = parse_einsum(equation, operands)
    if parsed is None:
        return None
    a, b, result = parsed
    summed = [i for i in a if i in b and i not in result]
    only_a, only_b = [i for i in a if i not in b], [i for i in b if i not in a]
    if len(summed) != 1 or not only_b or not only_a:
        return None
    return _einsum_tag(operands, (a, b, result), summed[0], only_a, only_b)


def _einsum_tag(
    operands: list[Tensor], names: tuple[str, str, str], d: str, only_a: list[str], only_b: list[str]
) -> ScoreTag | None:
    a, b, result = names
    order = {i: result.index(i) for i in (*only_a, *only_b)}
    queries_first = max(only_b, key=order.__getitem__) == max(order, key=order.__getitem__)
    if not queries_first:
        operands, a, b, only_a, only_b = operands[::-1], b, a, only_b, only_a
    T, S = max(only_a, key=order.__getitem__), max(only_b, key=order.__getitem__)
    if len(only_b) > 1:
        return None
    batch = [i for i in result if i not in (T, S)]
    q = operands[0].permute([a.index(i) for i in (*batch, T, d)])
    present = [i for i in batch if i in b]
    k = operands[1].permute([b.index(i) for i in (*present, S, d)])
    for place, i in enumerate(batch):
        k = k if i in b else k.unsqueeze(place)
    return ScoreTag(q, k, tuple("T" if i == T else "S" if i == S else "" for i in result))


def parse_einsum(equation: str, operands: list[Tensor]) -> tuple[str, str, str] | None:
    """Index letters of both operands and the result; an ellipsis becomes letters of its own."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    names = left.split(",")
    if not arrow or len(names) != 2:
        return None
    widths = [t.dim() - len(n.replace("...", "")) for n, t in zip(names, operands, strict=True)]
    dots = "ΑΒΓΔΕΖ"[: max(widths)] if "..." in equation else ""
    a, b = (n.replace("...", dots[len(dots) - w :] if "..." in n else "") for n, w in zip(names, widths, strict=True))
    return a, b, result.replace("...", dots)


PRODUCTS: dict[str, Callable[[Args, Kwargs, Tensor], ScoreTag | None]] = {
    "matmul": _matmul,
    "__matmul__": _matmul,
    "__rmatmul__": lambda args, kwargs, out: _matmul(args[::-1], kwargs, out),
    "bmm": _bmm,
    "baddbmm": _baddbmm,
    "baddbmm_": _baddbmm,
    "einsum": _einsum,
}
