"""Modules that project without showing their weight: quantised layers, and code that multiplies in ways of its own.

What such a module does is measured: with the identity as its input it shows its matrix, f(I) − f(0). It is measured
anew whenever it is read, and never kept.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

__all__ = ["BIAS", "WEIGHT", "looks_affine", "measure_affine"]

WEIGHT, BIAS = "affine_weight", "affine_bias"  # last segments of the names under which the measured values stand


def looks_affine(module: nn.Module, x: object, out: object) -> bool:
    """Whether a module without inner modules mapped the last dimension of its input, by weights of its own."""
    if not isinstance(x, Tensor) or not isinstance(out, Tensor) or x.dim() < 2 or x.shape[:-1] != out.shape[:-1]:
        return False
    if not x.is_floating_point() or not out.is_floating_point():
        return False
    inner = [name for name, _ in module.named_children() if name != "parametrizations"]
    kept = [*module.parameters(recurse=is_parametrized(module)), *module.buffers(recurse=False)]
    return not inner and any(each.dim() >= 2 for each in kept)


@torch.no_grad()
def measure_affine(module: nn.Module, d_in: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """(weight, bias) of an affine module, shapes (out, d_in) and (out,), in the dtype that it gives.

    Args:
        module: computes f on the last dimension.
        d_in: width of its input.
        like: a tensor of the dtype and device of its input.
    """
    eye = torch.eye(d_in, dtype=like.dtype, device=like.device)
    bias = module.forward(torch.zeros_like(eye[:1]))[0]
    return (module.forward(eye) - bias).T, bias
