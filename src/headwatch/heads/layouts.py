"""Row indices of W_Q and W_K in a weight, one function per layout; every index has shape ``(heads, d_head)``."""

from __future__ import annotations

import numpy as np

__all__ = ["concatenated", "grouped", "interleaved", "separate"]


def separate(n_heads: int, d_head: int, start: int = 0) -> np.ndarray:
    """Heads one after the other.

    >>> separate(2, 2, start=4).tolist()
    [[4, 5], [6, 7]]
    """
    return start + np.arange(n_heads * d_head).reshape(n_heads, d_head)


def concatenated(n_heads: int, n_kv_heads: int, d_head: int) -> tuple[np.ndarray, np.ndarray]:
    """[Q; K; V], the blocks of unequal height under grouped-query attention."""
    return separate(n_heads, d_head), separate(n_kv_heads, d_head, start=n_heads * d_head)


def interleaved(n_heads: int, d_head: int) -> tuple[np.ndarray, np.ndarray]:
    """[q, k, v] per head (Megatron: GPT-NeoX, BLOOM).

    >>> [index.tolist() for index in interleaved(2, 1)]
    [[[0], [3]], [[1], [4]]]
    """
    rows = np.arange(3 * n_heads * d_head).reshape(n_heads, 3, d_head)
    return rows[:, 0], rows[:, 1]


def grouped(n_heads: int, n_kv_heads: int, d_head: int) -> tuple[np.ndarray, np.ndarray]:
    """[q × group, k, v] per key-value head (Falcon 40B).

    >>> [index.tolist() for index in grouped(4, 2, 1)]
    [[[0], [1], [4], [5]], [[2], [6]]]
    """
    group = n_heads // n_kv_heads
    rows = np.arange(n_kv_heads * (group + 2) * d_head).reshape(n_kv_heads, group + 2, d_head)
    return rows[:, :group].reshape(n_heads, d_head), rows[:, group]
