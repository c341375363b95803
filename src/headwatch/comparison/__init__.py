"""Compare runs: which heads moved differently, where, when, and whether that is more than chance."""

from __future__ import annotations

from headwatch.comparison.assemble import compare
from headwatch.comparison.comparison import Comparison

__all__ = ["Comparison", "compare"]
