"""Sparse Jacobians between a tensor and the cuts before it, measured with few backward passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["Entries", "Layout", "Untraceable", "read", "token_maps"]


_BATCH = 1 << 23  # elements of one batch of cotangents


class Untraceable(ValueError):
    """What stands between projections and attention cannot be written as rows of weights; the message says why."""


@dataclass(frozen=True)
class Layout:
    """Which token and which channel every element of a tensor is.

    Attributes:
        token: token of every element, −1 for elements that count for none; shape of the tensor.
        channel: channel of every element; channels come in ``n_channels // width`` groups (heads) of ``width``.
        n_tokens, n_channels, width: how many there are.
    """

    token: np.ndarray
    channel: np.ndarray
    n_tokens: int
    n_channels: int
    width: int

    @property
    def n_groups(self) -> int:
        """Heads."""
        return self.n_channels // self.width

    def elements(self) -> np.ndarray:
        """Flat place of (token, channel), shape ``(n_tokens, n_channels)``; −1 where there is none."""
        table = np.full((self.n_tokens, self.n_channels), -1, dtype=np.int64)
        token, channel = self.token.reshape(-1), self.channel.reshape(-1)
        used = token >= 0
        table[token[used], channel[used]] = np.flatnonzero(used)
        return table


@dataclass(frozen=True)
class Entries:
    """Non-zero entries of a Jacobian: d tensor[token, channel] / d leaf[element], as parallel arrays."""

    token: np.ndarray
    channel: np.ndarray
    element: np.ndarray
    value: np.ndarray


def token_maps(tensor: Tensor, layout: Layout, leaves: Sequence[Tensor]) -> list[np.ndarray]:
    """The token of ``tensor`` that every element of every leaf feeds, −1 for none; shape of the leaf.

    Token numbers are written in binary into the cotangents: 2 log₂(tokens) backward passes.

    Raises:
        Untraceable: an element feeds more than one token.
    """
    generator = np.random.default_rng(0)
    weights = generator.uniform(0.5, 1.5, layout.token.shape) * generator.choice([-1.0, 1.0], layout.token.shape)
    ids = [np.zeros(leaf.shape, dtype=np.int64) for leaf in leaves]
    used = [np.zeros(leaf.shape, dtype=bool) for leaf in leaves]
    for bit in range(max(1, int(layout.n_tokens - 1).bit_length())):
        ones = (layout.token >> bit) & 1 == 1
        hit = [_support(tensor, np.where(each & (layout.token >= 0), weights, 0.0), leaves) for each in (ones, ~ones)]
        for place, (one, zero) in enumerate(zip(*hit, strict=True)):
            if np.any(one & zero):
                raise Untraceable("tokens are mixed between the projection and the attention call")
            ids[place] |= one.astype(np.int64) << bit
            used[place] |= one | zero
    return [np.where(u, i, -1) for u, i in zip(used, ids, strict=True)]


def read(
    tensor: Tensor, layout: Layout, leaves: Sequence[Tensor], maps: Sequence[np.ndarray], plan: np.ndarray
) -> list[Entries]:
    """Entries of the Jacobian for every leaf: pass p reads channel ``plan[p, m]`` of token m (−1: none).

    Args:
        tensor: what depends on the leaves.
        layout: its tokens and channels.
        leaves: leaves of its graph.
        maps: token of every element of every leaf, from ``token_maps``.
        plan: shape ``(passes, n_tokens)``.
    """
    flat_maps = [each.reshape(-1) for each in maps]
    used = [torch.as_tensor(np.flatnonzero(each >= 0), device=tensor.device) for each in flat_maps]
    found: list[list[tuple[np.ndarray, ...]]] = [[] for _ in leaves]
    for channels, grads in _reads(tensor, layout, leaves, plan):
        for i, grad in enumerate(grads):
            if grad is not None:
                found[i].append(_nonzero(grad, flat_maps[i], used[i], channels))
    none = tuple(np.zeros(0, dtype=dtype) for dtype in (np.int64, np.int64, np.int64, np.float64))
    return [Entries(*(np.concatenate(part) for part in zip(none, *each, strict=True))) for each in found]


def _reads(
    tensor: Tensor, layout: Layout, leaves: Sequence[Tensor], plan: np.ndarray
) -> Iterator[tuple[np.ndarray, tuple[Tensor | None, ...]]]:
    """Batches of backward passes: their part of the plan, and gradients with a leading pass dimension."""
    where = layout.elements()
    size = max(1, _BATCH // max(tensor.numel(), *(leaf.numel() for leaf in leaves)))
    for start in range(0, len(plan), size):
        channels = plan[start : start + size]
        places = torch.as_tensor(np.where(channels >= 0, where[np.arange(layout.n_tokens), channels], -1))
        cotangent = torch.zeros(len(channels), tensor.numel(), dtype=tensor.dtype)
        cotangent.scatter_add_(1, places.clamp(min=0), (places >= 0).to(tensor.dtype))
        yield channels, _batched_backward(tensor, cotangent.view(-1, *tensor.shape).to(tensor.device), leaves)


def _batched_backward(tensor: Tensor, cotangents: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    try:
        return torch.autograd.grad(
            tensor, list(leaves), cotangents, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
    except RuntimeError:  # a backward that vmap does not know
        single = [_backward(tensor, each, leaves) for each in cotangents]
        return tuple(None if each[0] is None else torch.stack(list(each)) for each in zip(*single, strict=True))  # type: ignore[arg-type]


def _rounds(layout: Layout) -> list[np.ndarray]:
    """Group that every token reads, round after round."""
    tokens, groups = np.arange(layout.n_tokens), layout.n_groups
    rounds = max(1 if groups == 1 else 3, -(-3 * groups // layout.n_tokens))
    return [(tokens + turn) % groups for turn in range(rounds)]


def _nonzero(grad: Tensor, tokens: np.ndarray, used: Tensor, channels: np.ndarray) -> tuple[np.ndarray, ...]:
    """Entries of a batch of gradients, shape ``(passes, *leaf)``, among the elements that are used at all."""
    flat = grad.flatten(1)
    flat = flat if len(used) == flat.shape[1] else flat.index_select(1, used)
    turn, place = flat.nonzero(as_tuple=True)
    value = flat[turn, place].double().cpu().numpy()
    element = used[place].cpu().numpy()
    token = tokens[element]
    return token, channels[turn.cpu().numpy(), token], element, value


def _support(tensor: Tensor, cotangent: np.ndarray, leaves: Sequence[Tensor]) -> list[np.ndarray]:
    given = torch.as_tensor(cotangent).to(device=tensor.device, dtype=tensor.dtype)
    grads = _backward(tensor, given, leaves)
    return [
        np.zeros(leaf.shape, dtype=bool) if grad is None else (grad != 0).cpu().numpy()
        for leaf, grad in zip(leaves, grads, strict=True)
    ]


def _backward(tensor: Tensor, cotangent: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(tensor, list(leaves), cotangent, retain_graph=True, allow_unused=True)
