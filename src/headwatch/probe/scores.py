"""Follow q·kᵀ from the product to the softmax of code that computes attention step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from headwatch.marginal.masks import HIDDEN
from headwatch.probe.products import PRODUCTS, Args, Kwargs, ScoreTag

__all__ = ["Scores", "name_of"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAME = _names(
    "clone contiguous to float type half bfloat16 double detach type_as alias dropout dropout_ clamp clamp_ clip "
    "nan_to_num masked_fill masked_fill_ where maximum minimum max min triu triu_ tril tril_"
)
_VIEWS = _names("view reshape unsqueeze unsqueeze_ squeeze flatten unflatten expand view_as reshape_as expand_as")
_PERMUTES = frozenset(["transpose", "permute", "swapaxes", "swapdims", "movedim", "__get__"])
_PLUS = frozenset(["add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__isub__"])
_TIMES = frozenset(["mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"])
_OVER = frozenset(["div", "div_", "__truediv__", "true_divide", "__itruediv__", "divide"])


def name_of(func: Callable[..., Any]) -> str:
    """Name of a torch function as it reaches a function mode."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return {id(torch.Tensor.mT): "mT", id(torch.Tensor.T): "T"}.get(id(getattr(func, "__self__", None)), "__get__")
    return name


class Scores:
    """All tensors that are scores now. They are held weakly: a tag ends with its tensor."""

    def __init__(self) -> None:
        self._tags: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def get(self, value: object) -> ScoreTag | None:
        """The tag of a tensor, None for anything else."""
        return self._tags.get(value) if isinstance(value, Tensor) else None

    def follow(self, func: Callable[..., Any], args: Args, kwargs: Kwargs, out: object) -> ScoreTag | None:
        """Tag the result of one function call where it is scores; returns the tag of a new product only."""
        if not isinstance(out, Tensor) or not out.is_floating_point():
            return None
        name = name_of(func)
        product = PRODUCTS.get(name)
        tag = product(args, kwargs, out) if product else None
        if tag is not None and self.get(tag.q) is None:  # scores times values are no scores
            self._tags[out] = tag
            return tag
        self._carry(name, args, kwargs, out)
        return None

    def _carry(self, name: str, args: Args, kwargs: Kwargs, out: Tensor) -> None:
        if name in ("cat", "concat", "concatenate"):
            self._append(args, kwargs, out)
            return
        operands = [*args, *kwargs.values()]
        place, tag = next(((i, t) for i, each in enumerate(operands) if (t := self.get(each)) is not None), (0, None))
        if tag is None:
            return
        source: Tensor = operands[place]
        carried = _carried(name, tag, source, [each for i, each in enumerate(args) if i != place], kwargs, out, place)
        if carried is None:
            self._tags.pop(out, None)
        else:
            self._tags[out] = carried

    def _append(self, args: Args, kwargs: Kwargs, out: Tensor) -> None:
        """Columns put behind the keys."""
        parts = args[0] if args else kwargs.get("tensors", ())
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        tag = self.get(parts[0]) if parts else None
        if tag is not None and tag.labels[dim] == "S" and not any(self.get(part) for part in parts[1:]):
            extra = tag.extra + out.shape[dim] - parts[0].shape[dim]
            self._tags[out] = replace(tag, extra=extra, hidden=None)


def _carried(
    name: str, tag: ScoreTag, source: Tensor, others: list[Any], kwargs: Kwargs, out: Tensor, place: int
) -> ScoreTag | None:
    """The tag after one function, None where it is scores no more."""
    if name in _VIEWS:
        return _viewed(tag, source, out)
    if name in _PERMUTES or name in ("mT", "T"):
        return _permuted(tag, name, source, others, kwargs)
    tag_ = _broadcast(tag, source, out)
    if tag_ is None:
        return None
    return tag_ if name in _SAME else _arithmetic(name, tag_, others, out, place)


def _arithmetic(name: str, tag: ScoreTag, others: list[Any], out: Tensor, place: int) -> ScoreTag | None:
    other = others[0] if others else None
    if name in _PLUS:
        return _added(tag, other, out)
    if name in _TIMES or (name in _OVER and place == 0):
        factor = _number(other)
        if factor is None:
            return tag
        factor = factor if name in _TIMES else 1.0 / factor
        if tag.outer is None:
            return replace(tag, scale=tag.scale * factor)
        return replace(tag, outer=tag.outer * factor)
    if name in ("tanh", "tanh_"):
        return replace(tag, outer=1.0)
    return None


def _number(value: object) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


def _added(tag: ScoreTag, other: object, out: Tensor) -> ScoreTag:
    """Remember a mask that hides by a moderate constant (Swin adds -100), which the scores alone would not tell."""
    if not isinstance(other, Tensor) or not other.is_floating_point() or other.numel() < 2:
        return tag
    low = float(other.min())
    if not HIDDEN < low <= -50.0 or not bool(((other == 0) | (other == low)).all()):
        return tag
    return replace(tag, hidden=(other < 0).expand(out.shape))


def _broadcast(tag: ScoreTag, source: Tensor, out: Tensor) -> ScoreTag | None:
    """The tag for a result whose shape may have grown by broadcasting in front or along batch dimensions."""
    extra = out.dim() - source.dim()
    if extra < 0 or any(
        label and s != o for label, s, o in zip(tag.labels, source.shape, out.shape[extra:], strict=True)
    ):
        return None
    return replace(tag, labels=("",) * extra + tag.labels) if extra else tag


def _viewed(tag: ScoreTag, source: Tensor, out: Tensor) -> ScoreTag | None:
    """Regrouped batch dimensions; the last two stay queries and keys."""
    if tag.labels[-2:] != ("T", "S") or out.dim() < 2 or out.shape[-2:] != source.shape[-2:]:
        return None
    hidden = None if tag.hidden is None else tag.hidden.reshape(out.shape)
    return replace(tag, labels=("",) * (out.dim() - 2) + ("T", "S"), hidden=hidden)


def _permuted(tag: ScoreTag, name: str, source: Tensor, others: list[Any], kwargs: Kwargs) -> ScoreTag | None:
    """Follow the names of dimensions; batch dimensions must keep their order."""
    places = torch.arange(source.dim())
    order = _order(name, places.tolist(), others, kwargs)
    if order is None or [i for i in order if tag.labels[i] == ""] != [
        i for i in places.tolist() if tag.labels[i] == ""
    ]:
        return None
    hidden = None if tag.hidden is None else tag.hidden.permute(order)
    return replace(tag, labels=tuple(tag.labels[i] for i in order), hidden=hidden)


def _order(name: str, places: list[int], others: list[Any], kwargs: Kwargs) -> list[int] | None:
    if name == "permute":
        dims = others[0] if others and isinstance(others[0], (tuple, list)) else others or kwargs.get("dims", ())
        return [places[d] for d in dims]
    if name in ("transpose", "swapaxes", "swapdims"):
        dims = others if len(others) == 2 else [v for key, v in kwargs.items() if key.startswith(("dim", "axis"))]
    elif name in ("mT", "T"):
        dims = [-2, -1]
    else:
        return None
    order = list(places)
    order[dims[0]], order[dims[1]] = order[dims[1]], order[dims[0]]
    return order
