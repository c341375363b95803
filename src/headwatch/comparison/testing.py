"""Many tests at once: corrected p-values."""

from __future__ import annotations

import numpy as np

from headwatch.comparison.trajectories import Array

__all__ = ["benjamini_hochberg"]


def benjamini_hochberg(p: Array) -> Array:
    """Adjusted p-values that bound the expected share of false discoveries (Benjamini and Hochberg 1995).

    Args:
        p: p-values, shape ``(m,)``; NaN is no test and stays NaN.

    >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03])).round(3).tolist()
    [0.03, 0.04, 0.04]
    """
    p = np.asarray(p, dtype=float)
    out, tested = np.full(p.shape, np.nan), ~np.isnan(p)
    if tested.any():
        order = np.argsort(p[tested], kind="stable")
        adjusted = np.empty(len(order))
        adjusted[order] = np.minimum(_step_up(p[tested][order]), 1)
        out[tested] = adjusted
    return out


def _step_up(rising: Array) -> Array:
    m = len(rising)
    return np.minimum.accumulate((rising * m / np.arange(1, m + 1))[::-1])[::-1]
