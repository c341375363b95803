"""Layouts in words."""

from __future__ import annotations

import numpy as np

from headwatch.heads import layouts
from headwatch.heads.headmap import IDENTITY, Projection

__all__ = ["layout_of"]


def layout_of(query: Projection, key: Projection) -> str:
    """How the weights of W_Q and W_K lie.

    Args:
        query: W_Q, index shape ``(n_heads, n)``.
        key: W_K, index shape ``(n_kv_heads, n)``.
    """
    q, k = query.terms[0].rows, key.terms[0].rows
    if len(q) > 1 or len(k) > 1:
        return "multi-source (MLA)"
    if q[0].parameter != k[0].parameter:
        name = "separate"
    else:
        assert q[0].index is not None, "W_Q of a proven site has indexed rows"
        assert k[0].index is not None, "W_K of a proven site has indexed rows"
        name = _fused(q[0].index, k[0].index)
    if q[0].pattern.count(" ") > IDENTITY.count(" "):
        name = f"3-D einsum {name}"
    elif q[0].pattern != IDENTITY:
        name = f"transposed {name}"
    return name


def _fused(q: np.ndarray, k: np.ndarray) -> str:
    (heads, n), kv_heads = q.shape, len(k)
    known = [("fused-concat", layouts.concatenated(heads, kv_heads, n))]
    if heads == kv_heads:
        known.append(("fused-interleaved-per-head", layouts.interleaved(heads, n)))
    if heads % kv_heads == 0:
        known.append(("fused-grouped", layouts.grouped(heads, kv_heads, n)))
    if np.array_equal(q, k):
        return "shared by query and key"
    same = (name for name, (a, b) in known if np.array_equal(a, q) and np.array_equal(b, k))
    return next(same, "fused, in an order of its own")
