"""What a linear-like module does to its input, as a sum of terms over named parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from headwatch.heads.headmap import FLAT, IDENTITY, Projection, Rows, Term
from headwatch.heads.names import named_modules

__all__ = ["is_linear", "projection", "shape"]

_IN_OUT = frozenset({"Conv1D"})  # transformers' Conv1D keeps its weight (in, out)


def is_linear(module: nn.Module | None) -> bool:
    """Whether a module keeps one matrix as ``weight``, itself or in the layer that it wraps."""
    return module is not None and _keeper(module) is not None


def shape(module: nn.Module) -> tuple[int, int]:
    """(out, in) of a linear-like module."""
    _, keeper = _kept(module)
    out, in_ = cast("Tensor", keeper.weight).shape
    return (in_, out) if type(keeper).__name__ in _IN_OUT else (out, in_)


def projection(module: nn.Module, name: str, index: np.ndarray) -> Projection:
    """The indexed rows of a linear-like module: its weight, plus scale · B A for every active low-rank update."""
    inside, keeper = _kept(module)
    base = f"{name}.{inside}" if inside else name
    pattern = "i o -> o i" if type(keeper).__name__ in _IN_OUT else IDENTITY
    terms = [Term((Rows(f"{base}.weight", pattern, index),)), *_updates(module, name, index)]
    bias = None if getattr(keeper, "bias", None) is None else Rows(f"{base}.bias", FLAT, index)
    return Projection(tuple(terms), bias)


def _keeper(module: nn.Module) -> tuple[str, nn.Module] | None:
    """The module that keeps the weight which ``module`` shows as its own, and its name within it."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        return None
    if is_parametrized(module, "weight"):
        return "", module
    kept = ((name, each) for name, each in named_modules(module) if each._parameters.get("weight") is weight)
    return next(kept, None)


def _kept(module: nn.Module) -> tuple[str, nn.Module]:
    found = _keeper(module)
    if found is None:
        raise TypeError(f"expected a linear-like module, found {type(module).__name__}")
    return found


def _updates(module: nn.Module, name: str, index: np.ndarray) -> Iterator[Term]:
    if getattr(module, "merged", False) or getattr(module, "disable_adapters", False):
        return
    downs, scaling = getattr(module, "lora_A", None), getattr(module, "scaling", None)
    if not isinstance(downs, nn.ModuleDict) or not isinstance(scaling, dict):
        return
    for adapter in getattr(module, "active_adapters", list(downs)):
        if adapter in downs:
            factors = (Rows(f"{name}.lora_B.{adapter}.weight", index=index), Rows(f"{name}.lora_A.{adapter}.weight"))
            yield Term(factors, float(scaling[adapter]))
