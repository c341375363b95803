"""Marginal attention: column statistics, signatures of heads, token signals, and how to compare them."""

from __future__ import annotations

from headwatch.marginal.columns import Marginals, column_statistics, from_scores, from_weights
from headwatch.marginal.geometry import Geometry, geometry
from headwatch.marginal.masks import Mask
from headwatch.marginal.signatures import ignored_keys, signatures, token_signal

__all__ = [
    "Geometry",
    "Marginals",
    "Mask",
    "column_statistics",
    "from_scores",
    "from_weights",
    "geometry",
    "ignored_keys",
    "signatures",
    "token_signal",
]
