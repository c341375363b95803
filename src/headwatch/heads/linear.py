"""What a linear-like module does to its input, as a sum of terms over named parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
from torch import Tensor, nn

from headwatch.heads.headmap import Projection, Rows, Term

__all__ = ["is_linear", "projection", "shape"]

_IN_OUT = frozenset({"Conv1D"})  # transformers' Conv1D keeps its weight (in, out)


def is_linear(module: nn.Module | None) -> bool:
    """Whether a module keeps one matrix as ``weight``, itself or in the layer that it wraps."""
    weight = getattr(_base(module), "weight", None)
    return weight is not None and weight.dim() == 2 and weight.is_floating_point()


def shape(module: nn.Module) -> tuple[int, int]:
    """(out, in) of a linear-like module."""
    base = _base(module)
    out, in_ = cast("Tensor", base.weight).shape if base is not None else (0, 0)
    return (in_, out) if type(base).__name__ in _IN_OUT else (out, in_)


def projection(module: nn.Module, name: str, index: np.ndarray) -> Projection:
    """The indexed rows of a linear-like module: its weight, plus scale · B A for every active low-rank update."""
    base = _base_name(module, name)
    pattern = "i o -> o i" if type(_base(module)).__name__ in _IN_OUT else "o i -> o i"
    terms = [Term((Rows(f"{base}.weight", pattern, index),)), *_updates(module, name, index)]
    bias = None if getattr(_base(module), "bias", None) is None else Rows(f"{base}.bias", index=index)
    return Projection(tuple(terms), bias)


def _base(module: nn.Module | None) -> nn.Module | None:
    """The layer that computes: a wrapper such as peft's keeps it as ``base_layer``."""
    inner = getattr(module, "base_layer", None) if module is not None else None
    return inner if isinstance(inner, nn.Module) else module


def _base_name(module: nn.Module, name: str) -> str:
    return name if _base(module) is module else f"{name}.base_layer"


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
