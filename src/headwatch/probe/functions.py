"""Torch functions that a capture has to know: their arguments, by name."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

__all__ = [
    "FLASH_ARGUMENTS",
    "FLASH_PLAIN",
    "FLEX_ARGUMENTS",
    "SDPA_ARGUMENTS",
    "SOFTMAX",
    "bound",
    "flex_operator",
    "is_flash",
    "mha_heads",
    "reentrant_mha",
    "softmax_arguments",
]

SDPA_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
FLEX_ARGUMENTS = ("query", "key", "value", "score_mod", "block_mask", "scale")
FLASH_ARGUMENTS = (
    *("q", "k", "v", "dropout_p", "softmax_scale", "causal", "window_size_left", "window_size_right"),
    *("softcap", "alibi_slopes"),
)
FLASH_PLAIN = {"window_size_left": (None, -1), "window_size_right": (None, -1, 0), "alibi_slopes": (None,)}
SOFTMAX = frozenset({F.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax})


def bound(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, those of a builtin that has no signature."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


def softmax_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, int]:
    """(input, dim) of any of the softmax functions."""
    named = {"dim": -1, **bound(("input", "dim"), args, kwargs)}
    return named.get("input", named.get("self")), -1 if named["dim"] is None else named["dim"]


@cache
def flex_operator() -> object | None:
    """The higher-order operator beneath flex_attention; None where this torch has none."""
    return getattr(torch.ops.higher_order, "flex_attention", None)


def is_flash(func: object) -> bool:
    """Whether a function is the forward operator of the flash-attn package (a torch custom operator since 2.7)."""
    if not isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return False
    name = str(func)
    return name.startswith("flash_attn") and "forward" in name and "varlen" not in name


@cache
def reentrant_mha() -> Callable[..., Any]:
    """F.multi_head_attention_forward that computes under an active function mode.

    The original hands itself to the mode as one opaque function, so that its inner calls would never be seen. This is
    the same code with its own view of ``has_torch_function``; nothing global changes.
    """
    original = F.multi_head_attention_forward
    seen = {**original.__globals__, "has_torch_function": lambda *_: False}
    copy = types.FunctionType(original.__code__, seen, original.__name__, original.__defaults__, original.__closure__)
    copy.__kwdefaults__ = original.__kwdefaults__
    return copy


def mha_heads(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """num_heads of a call of F.multi_head_attention_forward."""
    return int(inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs).arguments["num_heads"])
