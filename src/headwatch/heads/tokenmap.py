"""Which token of a tensor every element of a leaf feeds: guessed from shapes and checked, or measured bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from headwatch.heads.jacobian import Untraceable, backward
from headwatch.heads.layout import Layout
from headwatch.heads.trace import Cut

__all__ = ["leaf_layouts"]

_CHECKS = 6  # random halves of the tokens that a guess has to tell apart


def leaf_layouts(tensor: Tensor, layout: Layout, cuts: Sequence[Cut], length: int) -> list[Layout]:
    """Tokens (those of ``tensor``) and channels of the leaf of every cut.

    A guess from the shapes must tell which elements random halves of the tokens depend on. Where none can, token
    numbers are written in binary into the cotangents: 2 log₂(tokens) backward passes.

    Args:
        tensor: q, k, or what a norm was given.
        layout: its tokens and channels.
        cuts: what it depends on.
        length: tokens per document.

    Raises:
        Untraceable: an element feeds more than one token.
    """
    probe = _Probe(tensor, layout, [cut.leaf for cut in cuts])
    used = probe.support(np.ones(layout.n_tokens))
    guesses = [list(_guesses(cut, layout, length, bool(part.all()))) for cut, part in zip(cuts, used, strict=True)]
    generator = np.random.default_rng(0)
    for _ in range(_CHECKS):
        half = generator.integers(0, 2, layout.n_tokens)
        for i, hit in enumerate(probe.support(half)):
            guesses[i] = [guess for guess in guesses[i] if _fits(guess, half, used[i], hit)]
    if all(guesses):
        return [guess[0] for guess in guesses]
    measured = _measured(probe, layout)
    return [
        guess[0] if guess else Layout.listed(tokens, _channels(cut, tokens), layout.n_tokens, 0)
        for guess, cut, tokens in zip(guesses, cuts, measured, strict=True)
    ]


class _Probe:
    """Backward passes with random weights: which elements of the leaves do some tokens depend on."""

    def __init__(self, tensor: Tensor, layout: Layout, leaves: list[Tensor]) -> None:
        generator = torch.Generator().manual_seed(0)
        size = torch.rand(tensor.shape, generator=generator) + 0.5
        sign = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
        self._weights = (size * sign).to(device=tensor.device, dtype=tensor.dtype)
        self._tensor, self._layout, self.leaves = tensor, layout, leaves

    def support(self, tokens: np.ndarray) -> list[Tensor]:
        """Where the leaves have a gradient from these tokens (0 or 1 each)."""
        chosen = torch.as_tensor(self._layout.spread(tokens)).to(self._weights)
        grads = backward(self._tensor, self._weights * chosen, self.leaves)
        return [
            torch.zeros(leaf.shape, dtype=torch.bool, device=leaf.device) if grad is None else grad != 0
            for leaf, grad in zip(self.leaves, grads, strict=True)
        ]


def _fits(guess: Layout, tokens: np.ndarray, used: Tensor, hit: Tensor) -> bool:
    expected = torch.as_tensor(guess.spread(tokens) > 0).to(hit.device)
    return bool(torch.equal(used & expected, hit))


def _guesses(cut: Cut, layout: Layout, length: int, whole: bool) -> Iterator[Layout]:
    """Layouts that the shape of a leaf allows; of a norm's only where all of it is used."""
    shape, n_tokens = tuple(cut.leaf.shape), layout.n_tokens
    documents = max(1, n_tokens // length)
    ids = np.arange(documents * length).reshape(documents, length)
    if ids.size != n_tokens:
        return
    if cut.linear is not None:
        rows = [a for a in range(len(shape)) if a not in cut.linear.channel_dims]
        if np.prod([shape[a] for a in rows]) == n_tokens:
            for tokens in (ids, ids.T):
                yield Layout.regular(shape, rows, cut.linear.channel_dims, tokens.reshape(-1), 1)
        return
    for axes in (*combinations(range(len(shape)), 2), *combinations(range(len(shape)), 1)) if whole else ():
        rest = [a for a in range(len(shape)) if a not in axes]
        sizes = tuple(shape[a] for a in axes)
        for tokens in (ids, ids.T):
            if rest and sizes in (tokens.shape, (n_tokens,)):
                yield Layout.regular(shape, axes, rest, tokens.reshape(-1), 1)


def _measured(probe: _Probe, layout: Layout) -> list[np.ndarray]:
    """Token of every element of every leaf, −1 for none."""
    ids = [np.zeros(leaf.shape, dtype=np.int64) for leaf in probe.leaves]
    used = [np.zeros(leaf.shape, dtype=bool) for leaf in probe.leaves]
    for bit in range(max(1, (layout.n_tokens - 1).bit_length())):
        ones = (np.arange(layout.n_tokens) >> bit) & 1
        hits = [[each.cpu().numpy() for each in probe.support(tokens)] for tokens in (ones, 1 - ones)]
        for place, (one, zero) in enumerate(zip(*hits, strict=True)):
            if np.any(one & zero):
                raise Untraceable("tokens are mixed between the projection and the attention call")
            ids[place] |= one.astype(np.int64) << bit
            used[place] |= one | zero
    return [np.where(each, token, -1) for each, token in zip(used, ids, strict=True)]


def _channels(cut: Cut, tokens: np.ndarray) -> np.ndarray:
    """Channel of every element: of the weight for a projection, place within the token for anything else."""
    if cut.linear is not None:
        return cut.linear.locate(tokens.shape, np.arange(tokens.size))[1].reshape(tokens.shape)
    flat = tokens.reshape(-1)
    order = np.argsort(flat, kind="stable")
    starts = np.searchsorted(flat[order], flat[order], side="left")
    rank = np.empty_like(flat)
    rank[order] = np.arange(len(flat)) - starts
    return rank.reshape(tokens.shape)
