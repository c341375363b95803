"""Marginal attention: column statistics, signatures of heads, token signals, and how to compare them."""

from __future__ import annotations

from headwatch.marginal.agreement import (
    Agreement,
    compare_signatures,
    consistency,
    dispersion,
    drift,
    drift_noise_floor,
    pearson,
    permuted_consistency,
)
from headwatch.marginal.columns import column_statistics, from_scores, from_weights
from headwatch.marginal.geometry import Geometry, geometry
from headwatch.marginal.masks import Mask
from headwatch.marginal.record import Marginals
from headwatch.marginal.signatures import ignored_keys, signatures, token_signal
from headwatch.marginal.tokens import swapped_token_agreement, token_agreement

__all__ = [
    "Agreement",
    "Geometry",
    "Marginals",
    "Mask",
    "column_statistics",
    "compare_signatures",
    "consistency",
    "dispersion",
    "drift",
    "drift_noise_floor",
    "from_scores",
    "from_weights",
    "geometry",
    "ignored_keys",
    "pearson",
    "permuted_consistency",
    "signatures",
    "swapped_token_agreement",
    "token_agreement",
    "token_signal",
]
