"""Is an assignment better than chance? Heads of all runs pooled, dealt out anew, matched again.

Any two sets of heads have a best assignment, and it beats every other pairing of the same sets: shuffling partners
would call everything a match. Chance here means that the heads of a layer are exchangeable draws, whichever run they
are in: every deal of the pooled heads to the runs is then as likely as the one seen, so the test is exact (**ours**).
Runs that differ as a whole lie further apart than their mixtures, which makes a match harder to show, never easier.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import comb, factorial, prod

import numpy as np
from scipy.optimize import linear_sum_assignment

from headwatch.comparison.trajectories import Array

__all__ = ["Deal", "deals", "p_value", "smallest_p"]


class Deal:
    """Pooled heads of one layer: their distances, and which run each comes from.

    Args:
        distance: distances of all pooled heads, shape ``(P, P)``.
        sizes: how many heads each run has, in the order of the pool; the first run is the one others are matched to.
    """

    def __init__(self, distance: Array, sizes: Sequence[int]) -> None:
        off_diagonal = distance[~np.eye(len(distance), dtype=bool)]
        scale = off_diagonal.mean() if len(off_diagonal) else 1.0
        self.distance = distance / scale if scale > 0 else distance
        self.sizes = tuple(sizes)
        self.scale = float(scale)
        ends = np.cumsum(self.sizes).tolist()
        self._others = list(pairwise(ends))

    def cost(self, order: Array) -> float:
        """Cost of matching the first run to each of the others when the heads are dealt out in this order."""
        first = order[: self.sizes[0]]
        return sum(self._pair(first, order[start:stop]) for start, stop in self._others)

    def _pair(self, first: Array, second: Array) -> float:
        block = self.distance[first[:, None], second]
        i, j = linear_sum_assignment(block)
        return float(block[i, j].sum())


def deals(layers: Sequence[Deal], permutations: int, rng: np.random.Generator) -> Array:
    """Total cost over layers in random deals, shape ``(permutations,)``."""
    return np.array(
        [sum(deal.cost(rng.permutation(len(deal.distance))) for deal in layers) for _ in range(permutations)]
    )


def p_value(layers: Sequence[Deal], permutations: int, rng: np.random.Generator) -> tuple[float, float]:
    """Chance that heads dealt out at random match as well as seen.

    Returns:
        (1 + #{random ≤ seen}) / (1 + permutations), and the mean distance of a pair in random deals, in units of the
        mean distance of two heads of its layer.
    """
    seen = sum(deal.cost(np.arange(len(deal.distance))) for deal in layers)
    random = deals(layers, permutations, rng)
    pairs = sum(min(deal.sizes[0], size) for deal in layers for size in deal.sizes[1:])
    as_good = int((random <= seen * (1 + 1e-9)).sum())
    return (1 + as_good) / (1 + permutations), float(random.mean() / max(pairs, 1))


def smallest_p(heads: Sequence[int], runs: int = 2) -> float:
    """The p-value that perfect twins would get: deals that keep one twin in every run look the same.

    (R!)^H (H!)^R / (HR)! per layer, multiplied over layers.

    Args:
        heads: heads per run in every layer tested together.
        runs: number of runs.

    >>> round(smallest_p([4]), 3), round(smallest_p([4, 4]), 3), round(smallest_p([12]), 4)
    (0.229, 0.052, 0.0015)
    """
    return prod(_twins(H, runs) for H in heads)


def _twins(heads: int, runs: int) -> float:
    if runs == 2:
        return 2.0**heads / comb(2 * heads, heads)
    if heads * runs > 150:
        return 0.0
    return float(factorial(runs) ** heads * factorial(heads) ** runs / factorial(heads * runs))
