"""The modules of a model from nothing but the names and shapes of its tensors: the rules that find heads then apply.

No weight is held: every parameter lies on the meta device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from headwatch.heads.counts import count_heads

__all__ = ["build_skeleton"]

_READ_FROM_MODULE = (  # sizes and layouts that rules ask the attention module for
    "new_decoder_architecture", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank",
)  # fmt: skip


class Skeleton(nn.Module):
    """A module that cannot compute; ``config`` is where head counts are looked for."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.config = config


class Conv1D(Skeleton):
    """A linear layer with its weight kept (in, out), by the name that rules know it by."""


def build_skeleton(shapes: Mapping[str, Tensor], config: Mapping[str, Any]) -> nn.Module:
    """The tree of modules whose parameters have these names.

    Args:
        shapes: tensors on the meta device by dotted name.
        config: of the model: head counts and the like.
    """
    root = Skeleton(config)
    for holder, own in _by_holder(shapes).items():
        module = _place(root, holder, _module(own, config))
        for key, tensor in own.items():
            if key not in module._parameters:
                module.register_parameter(key, nn.Parameter(tensor, requires_grad=tensor.is_floating_point()))
    for module in root.modules():
        _set_sizes(module, config)
    return root


def _by_holder(shapes: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors by the module that keeps them."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in shapes.items():
        holder, _, key = name.rpartition(".")
        found.setdefault(holder, {})[key] = tensor
    return found


def _module(own: Mapping[str, Tensor], config: Mapping[str, Any]) -> nn.Module:
    """An empty module of the kind that keeps these tensors."""
    stacked = own.get("in_proj_weight")
    if stacked is not None and stacked.shape[0] == 3 * stacked.shape[1]:
        attention = _torch_attention(stacked.shape[1], "in_proj_bias" in own, config)
        return attention or Skeleton()
    weight, bias = own.get("weight"), own.get("bias")
    if weight is None or weight.dim() != 2 or bias is None:
        return Skeleton()
    return Conv1D() if weight.shape[0] != bias.shape[0] == weight.shape[1] else Skeleton()


def _torch_attention(d_model: int, bias: bool, config: Mapping[str, Any]) -> nn.Module | None:
    n_heads = count_heads([Skeleton(config)]).n_heads
    if n_heads is None or d_model % n_heads:
        return None
    return nn.MultiheadAttention(d_model, n_heads, bias=bias, device="meta")


def _place(root: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Put a module at a dotted name; what is already there keeps its children."""
    if not name:
        return root
    holder_name, _, own = name.rpartition(".")
    holder = _place(root, holder_name, Skeleton())
    present = holder._modules.get(own)
    if present is not None and type(module) is Skeleton:
        return present
    if present is not None:
        module._modules.update(present._modules)
    holder._modules[own] = module
    return module


def _set_sizes(module: nn.Module, config: Mapping[str, Any]) -> None:
    for key in _READ_FROM_MODULE:
        if key in config and not hasattr(module, key):
            setattr(module, key, config[key])
    if "kv_a_proj_with_mqa" in module._modules:
        setattr(module, "num_heads", config.get("num_attention_heads", 0))  # noqa: B010
