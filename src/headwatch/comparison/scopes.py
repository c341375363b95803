"""Which test speaks for a layer of a run: the most local one that could show a match at all.

Two runs with four heads per layer cannot: perfect twins would get p = .23. Such layers are tested together with the
same layer of other runs, or with the other layers. The choice looks at counts only, never at the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headwatch.comparison.assignment import distances
from headwatch.comparison.exchange import Deal, p_value, smallest_p
from headwatch.comparison.testing import benjamini_hochberg
from headwatch.comparison.trajectories import Array

__all__ = ["Outcome", "Scope", "Tests", "choose_scope"]

_DEALS = 100_000  # layer assignments over all tests: some ten seconds
Pools = Mapping[int, Mapping[int, Array]]


@dataclass(frozen=True)
class Scope:
    """A test: these runs (the reference first), these layers together."""

    runs: tuple[int, ...]
    layers: tuple[int, ...]

    @property
    def words(self) -> str:
        """What was tested, for the reader."""
        layers = "this layer" if len(self.layers) == 1 else f"all {len(self.layers)} layers together"
        return layers if len(self.runs) == 2 else f"{layers}, {len(self.runs)} runs together"


def choose_scope(
    reference: int, run: int, free: Sequence[int], layer: int, heads: Mapping[int, int], level: float
) -> Scope | None:
    """The most local test whose smallest p-value is within ``level``; None when even all layers and runs are too few.

    Args:
        free: runs of seeds other than the reference's, one per seed, ``run`` among them.
        heads: heads per layer.
    """
    pair, everyone = (reference, run), (reference, *free)
    for runs, layers in ((pair, (layer,)), (everyone, (layer,)), (pair, tuple(heads)), (everyone, tuple(heads))):
        if smallest_p([heads[i] for i in layers], len(runs)) <= level:
            return Scope(runs, layers)
    return None


@dataclass(frozen=True)
class Outcome:
    """What a test said: its p, adjusted p, and per layer the mean distance of a pair under chance."""

    p: float
    p_adjusted: float
    chance: Mapping[int, float]


class Tests:
    """Tests that were asked for, run once each.

    Args:
        level: level of the tests.
        permutations: random deals per test; None: 999, or fewer when there are very many tests.
        seed: of the random deals.
    """

    def __init__(self, level: float, permutations: int | None, seed: int) -> None:
        self.level = level
        self._wanted = permutations
        self._seed = seed
        self._asked: dict[Scope, Pools] = {}

    def ask(self, scope: Scope, pools: Pools) -> None:
        """Put a test on the list; ``pools`` holds the features by layer and run."""
        self._asked[scope] = pools

    @property
    def permutations(self) -> int:
        """Random deals per test."""
        work = sum((len(scope.runs) - 1) * len(scope.layers) for scope in self._asked)
        return self._wanted or int(np.clip(_DEALS // max(work, 1), 99, 999))

    def run(self) -> dict[Scope, Outcome]:
        """Run every test; p-values are adjusted by Benjamini–Hochberg over all of them."""
        permutations, rng = self.permutations, np.random.default_rng(self._seed)
        raw = [_test(scope, pools, permutations, rng) for scope, pools in self._asked.items()]
        adjusted = benjamini_hochberg(np.array([p for p, _ in raw]))
        return {
            scope: Outcome(p, float(q), chance)
            for scope, (p, chance), q in zip(self._asked, raw, adjusted, strict=True)
        }


def _test(scope: Scope, pools: Pools, permutations: int, rng: np.random.Generator) -> tuple[float, dict[int, float]]:
    layers = [_deal([pools[layer][run] for run in scope.runs]) for layer in scope.layers]
    p, mean = p_value(layers, permutations, rng)
    return p, {layer: mean * deal.scale for layer, deal in zip(scope.layers, layers, strict=True)}


def _deal(features: Sequence[Array]) -> Deal:
    pooled = np.concatenate(features)
    return Deal(distances(pooled, pooled), [len(f) for f in features])
