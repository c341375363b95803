"""Which token and which channel every element of a tensor is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

__all__ = ["Layout"]


@dataclass(frozen=True, eq=False)
class Layout:
    """Tokens along some axes of a tensor, channels along others; or both along all axes, where they follow no order.

    Attributes:
        shape: of the tensor.
        token_axes, tokens: the axes that count tokens, and the token at every place along them (−1: none).
        channel_axes, channels: the same for channels, in ``n_channels // width`` groups (heads) of ``width``.
        n_tokens, n_channels, width: how many there are.
    """

    shape: tuple[int, ...]
    token_axes: tuple[int, ...]
    tokens: np.ndarray
    channel_axes: tuple[int, ...]
    channels: np.ndarray
    n_tokens: int
    n_channels: int
    width: int

    @classmethod
    def regular(
        cls,
        shape: Sequence[int],
        token_axes: Sequence[int],
        channel_axes: Sequence[int],
        tokens: np.ndarray,
        width: int,
    ) -> Layout:
        """Tokens and channels along axes of their own, channels in order.

        >>> Layout.regular((2, 3, 4), (0, 1), (2,), np.arange(6), 4).element(np.array([4]), np.array([1]))
        array([17])
        """
        sizes, n_channels = [shape[a] for a in token_axes], math.prod(shape[a] for a in channel_axes)
        channels = np.arange(n_channels).reshape([shape[a] for a in channel_axes])
        table = tokens.reshape(sizes)
        return cls(
            tuple(shape), tuple(token_axes), table, tuple(channel_axes), channels, tokens.size, n_channels, width
        )

    @classmethod
    def listed(cls, tokens: np.ndarray, channels: np.ndarray, n_tokens: int, width: int) -> Layout:
        """Any token and channel at any place: arrays of the tensor's shape, −1 for elements that count for none."""
        axes = tuple(range(tokens.ndim))
        n_channels = int(channels[tokens >= 0].max(initial=-1)) + 1
        return cls(tokens.shape, axes, tokens, axes, channels, n_tokens, n_channels, width or n_channels)

    @property
    def n_groups(self) -> int:
        """Heads."""
        return self.n_channels // self.width

    def token_of(self, elements: np.ndarray) -> np.ndarray:
        """Token of elements, given by their flat places."""
        return self._along(self.token_axes, self.tokens, elements)

    def channel_of(self, elements: np.ndarray) -> np.ndarray:
        """Channel of elements, given by their flat places."""
        return self._along(self.channel_axes, self.channels, elements)

    def element(self, tokens: np.ndarray, channels: np.ndarray) -> np.ndarray:
        """Flat place of (token, channel), −1 where there is none."""
        if self._is_listed:
            return np.asarray(self._table[tokens, channels])
        return np.asarray(self._token_starts[tokens] + self._channel_starts[channels])

    def place_of(self, channel: int) -> int:
        """Flat place of some element of a channel."""
        places = self._table[:, channel] if self._is_listed else self._token_starts[:1] + self._channel_starts[channel]
        return int(places[places >= 0][0])

    def some_element(self) -> np.ndarray:
        """Flat place of some element of every token, −1 where there is none; shape ``(n_tokens,)``."""
        return np.asarray(self._table.max(axis=1, initial=-1)) if self._is_listed else self._token_starts

    def spread(self, values: np.ndarray) -> np.ndarray:
        """A value per token, as an array that broadcasts with the tensor; 0 where an element counts for none."""
        sizes = [self.shape[a] if a in self.token_axes else 1 for a in range(len(self.shape))]
        table = self.tokens.transpose(np.argsort(self.token_axes)) if not self._is_listed else self.tokens
        return np.asarray(np.where(table >= 0, values[table], 0).reshape(sizes))

    @property
    def _is_listed(self) -> bool:
        return self.token_axes == self.channel_axes

    def _along(self, axes: tuple[int, ...], table: np.ndarray, elements: np.ndarray) -> np.ndarray:
        coordinates = np.unravel_index(elements, self.shape)
        return np.asarray(table[tuple(coordinates[a] for a in axes)])

    @cached_property
    def _token_starts(self) -> np.ndarray:
        return self._starts(self.token_axes, self.tokens, self.n_tokens)

    @cached_property
    def _channel_starts(self) -> np.ndarray:
        return self._starts(self.channel_axes, self.channels, self.n_channels)

    def _starts(self, axes: tuple[int, ...], table: np.ndarray, count: int) -> np.ndarray:
        strides = [math.prod(self.shape[a + 1 :]) for a in axes]
        grids = np.meshgrid(*[np.arange(self.shape[a]) * s for a, s in zip(axes, strides, strict=True)], indexing="ij")
        starts = np.zeros(count, dtype=np.int64)
        starts[table.reshape(-1)] = np.sum(grids, axis=0).reshape(-1)
        return starts

    @cached_property
    def _table(self) -> np.ndarray:
        table = np.full((self.n_tokens, self.n_channels), -1, dtype=np.int64)
        used = np.flatnonzero(self.tokens.reshape(-1) >= 0)
        table[self.tokens.reshape(-1)[used], self.channels.reshape(-1)[used]] = used
        return table
