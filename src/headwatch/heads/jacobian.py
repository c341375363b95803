"""Sparse Jacobians between a tensor and the cuts before it, measured with few backward passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headwatch.heads.layout import Layout

__all__ = ["Entries", "Untraceable", "backward", "read"]

_BATCH = 1 << 23  # elements of one batch of cotangents


class Untraceable(ValueError):
    """What stands between projections and attention cannot be written as rows of weights; the message says why."""


@dataclass(frozen=True)
class Entries:
    """Non-zero entries of a Jacobian, as parallel arrays: d tensor[token, channel] / d leaf[token, source]."""

    token: np.ndarray
    channel: np.ndarray
    source: np.ndarray
    value: np.ndarray


def read(
    tensor: Tensor, layout: Layout, leaves: Sequence[Tensor], layouts: Sequence[Layout], plan: np.ndarray
) -> list[Entries]:
    """Entries of the Jacobian for every leaf: pass p reads channel ``plan[p, m]`` of token m (−1: none).

    Args:
        tensor: what depends on the leaves.
        layout: its tokens and channels.
        leaves: leaves of its graph.
        layouts: tokens and channels of every leaf.
        plan: shape ``(passes, n_tokens)``.
    """
    found: list[list[tuple[np.ndarray, ...]]] = [[] for _ in leaves]
    for channels, grads in _reads(tensor, layout, leaves, plan):
        for i, grad in enumerate(grads):
            if grad is not None:
                found[i].append(_nonzero(grad, layouts[i], channels))
    none = tuple(np.zeros(0, dtype=dtype) for dtype in (np.int64, np.int64, np.int64, np.float64))
    return [Entries(*(np.concatenate(part) for part in zip(none, *each, strict=True))) for each in found]


def _reads(
    tensor: Tensor, layout: Layout, leaves: Sequence[Tensor], plan: np.ndarray
) -> Iterator[tuple[np.ndarray, tuple[Tensor | None, ...]]]:
    """Batches of backward passes: their part of the plan, and gradients with a leading pass dimension."""
    size = max(1, _BATCH // max(tensor.numel(), *(leaf.numel() for leaf in leaves)))
    for start in range(0, len(plan), size):
        channels = plan[start : start + size]
        places = torch.as_tensor(np.where(channels >= 0, layout.element(np.arange(layout.n_tokens), channels), -1))
        cotangent = torch.zeros(len(channels), tensor.numel(), dtype=tensor.dtype)
        cotangent.scatter_add_(1, places.clamp(min=0), (places >= 0).to(tensor.dtype))
        yield channels, _batched_backward(tensor, cotangent.view(-1, *tensor.shape).to(tensor.device), leaves)


def _batched_backward(tensor: Tensor, cotangents: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    if len(cotangents) > 1:
        try:
            return torch.autograd.grad(
                tensor, list(leaves), cotangents, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
        except RuntimeError:  # a backward that vmap does not know
            pass
    single = [backward(tensor, each, leaves) for each in cotangents]
    return tuple(None if each[0] is None else torch.stack(each) for each in zip(*single, strict=True))


def _nonzero(grad: Tensor, layout: Layout, channels: np.ndarray) -> tuple[np.ndarray, ...]:
    """Entries of a batch of gradients, shape ``(passes, *leaf)``."""
    flat = grad.flatten(1)
    turn, place = flat.nonzero(as_tuple=True)
    value = flat[turn, place].double().cpu().numpy()
    element = place.cpu().numpy()
    token = layout.token_of(element)
    return token, channels[turn.cpu().numpy(), token], layout.channel_of(element), value


def backward(tensor: Tensor, cotangent: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Gradients of ⟨tensor, cotangent⟩ to the leaves; None where one has no part in it."""
    return torch.autograd.grad(tensor, list(leaves), cotangent, retain_graph=True, allow_unused=True)
