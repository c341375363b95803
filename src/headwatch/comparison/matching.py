"""Heads of different runs, matched within each layer, and whether the match is more than chance."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from headwatch.comparison.assignment import Assignment, assign, distances
from headwatch.comparison.scopes import Outcome, Scope, Tests, choose_scope
from headwatch.comparison.trajectories import Array

__all__ = ["LEVEL", "Candidate", "HeadMatch", "Matching", "match_runs"]

LEVEL = 0.05


@dataclass(frozen=True)
class Candidate:
    """A run to be matched.

    Attributes:
        shape: equal for runs of one model shape.
        seed: the run's seed; None when it is not known.
        layers: indices of the heads of every layer.
        features: shape ``(H, G, F)``, see ``trajectory_features``.
    """

    shape: Hashable
    seed: str | None
    layers: Mapping[int, Array]
    features: Array


@dataclass(frozen=True)
class HeadMatch:
    """One head of a run and its partner in the reference run of the same shape; heads by place in the run's arrays.

    Attributes:
        by: "index" (same seed: the same head began there) or "assignment".
        cost: root-mean-square distance of the two trajectories, 1 = a typical spread of heads.
        margin: how much dearer the layer's best assignment is without this pair; NaN by index.
        chance: mean distance of a pair when the heads are dealt to the runs at random; NaN by index.
        p, p_adjusted: of the test named by ``scope``; NaN when there is none.
        verdict: "match", "no match" or "too few heads to tell"; "same seed" by index.
    """

    run: int
    reference: int
    layer: int
    head: int
    partner: int
    by: str
    cost: float
    margin: float = np.nan
    chance: float = np.nan
    p: float = np.nan
    p_adjusted: float = np.nan
    scope: str = ""
    verdict: str = "same seed"


@dataclass(frozen=True)
class Matching:
    """All matches, and how chance was judged.

    Attributes:
        matches: one entry per head of every run that has a reference.
        permutations: random deals per test.
        level: level of the corrected tests.
        alone: runs whose shape no other run has; they are compared by distributions only.
        tests: number of distinct tests that the correction is over.
    """

    matches: list[HeadMatch]
    permutations: int
    level: float
    alone: list[int] = field(default_factory=list)
    tests: int = 0

    @cached_property
    def by_run(self) -> dict[int, list[HeadMatch]]:
        """The matches of every run that has a reference."""
        found: dict[int, list[HeadMatch]] = {}
        for match in self.matches:
            found.setdefault(match.run, []).append(match)
        return found

    def partners(self, run: int, n_heads: int) -> Array:
        """For each head of the reference the head of ``run`` that goes with it, −1 for none; shape ``(n_heads,)``."""
        out = np.full(n_heads, -1)
        for match in self.by_run.get(run, []):
            if match.partner >= 0:
                out[match.partner] = match.head
        return out


def match_runs(
    runs: Sequence[Candidate], *, level: float = LEVEL, permutations: int | None = None, seed: int = 0
) -> Matching:
    """Match every run to the first one of its shape.

    Runs with the seed of the reference match by index. Others by optimal assignment within each layer, tested against
    random deals of the pooled heads (``headwatch.comparison.exchange``), Benjamini–Hochberg over all tests.

    Args:
        runs: two or more; features on one grid per shape.
        level: false discovery rate.
        permutations: random deals per test; by default 999, fewer when there are very many tests.
        seed: of the random deals.
    """
    groups: dict[Hashable, list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(run.shape, []).append(place)
    tests = Tests(level, permutations, seed)
    found = [match for members in groups.values() if len(members) > 1 for match in _match_group(runs, members, tests)]
    results = tests.run()
    matches = [match for pending in found for match in pending.settle(results, level)]
    alone = [members[0] for members in groups.values() if len(members) == 1]
    return Matching(matches, tests.permutations, level, alone, len(results))


@dataclass(frozen=True)
class _Layer:
    """One layer of one run, assigned and waiting for its test."""

    run: int
    reference: int
    layer: int
    heads: Array
    partners: Array
    assignment: Assignment
    scope: Scope | None
    by: str

    def settle(self, outcomes: Mapping[Scope, Outcome], level: float) -> list[HeadMatch]:
        outcome = outcomes[self.scope] if self.scope else Outcome(np.nan, np.nan, {self.layer: np.nan})
        return [self._row(i, outcome, level) for i in range(len(self.heads))]

    def _row(self, i: int, outcome: Outcome, level: float) -> HeadMatch:
        j, cost = int(self.assignment.partner[i]), float(self.assignment.cost[i])
        chance = outcome.chance[self.layer]
        return HeadMatch(
            run=self.run,
            reference=self.reference,
            layer=self.layer,
            head=int(self.heads[i]),
            partner=int(self.partners[j]) if j >= 0 else -1,
            by=self.by,
            cost=cost,
            margin=float(self.assignment.margin[i]),
            chance=chance,
            p=outcome.p,
            p_adjusted=outcome.p_adjusted,
            scope=self.scope.words if self.scope else "",
            verdict=self._verdict(cost, outcome.p_adjusted, chance, level),
        )

    def _verdict(self, cost: float, adjusted: float, chance: float, level: float) -> str:
        if self.by == "index":
            return "same seed"
        if self.scope is None:
            return "too few heads to tell"
        return "match" if adjusted <= level and cost < chance else "no match"


def _match_group(runs: Sequence[Candidate], members: list[int], tests: Tests) -> list[_Layer]:
    reference, *others = members
    same = [r for r in others if runs[r].seed is not None and runs[r].seed == runs[reference].seed]
    free = [r for r in others if r not in same]
    rows = [_by_index(runs, r, reference, layer) for r in same for layer in runs[r].layers]
    sizes = {layer: len(heads) for layer, heads in runs[reference].layers.items()}
    pools = {layer: _pool(runs, [reference, *free], layer) for layer in sizes}
    for r in free:
        for layer in runs[r].layers:
            scope = choose_scope(reference, r, _one_per_seed(runs, free, r), layer, sizes, tests.level)
            if scope:
                tests.ask(scope, pools)
            rows.append(_by_assignment(runs, r, reference, layer, scope))
    return rows


def _one_per_seed(runs: Sequence[Candidate], free: Sequence[int], run: int) -> list[int]:
    """Runs that chance may deal among, ``run`` with them: two runs of one seed are no two draws."""
    seen = {runs[run].seed} - {None}
    chosen = [run]
    for other in free:
        if other != run and runs[other].seed not in seen:
            chosen.append(other)
            seen |= {runs[other].seed} - {None}
    return sorted(chosen)


def _by_index(runs: Sequence[Candidate], run: int, reference: int, layer: int) -> _Layer:
    heads, partners = runs[run].layers[layer], runs[reference].layers[layer]
    cost = np.diag(distances(runs[run].features[heads], runs[reference].features[partners]))
    same = Assignment(np.arange(len(heads)), cost, np.full(len(heads), np.nan))
    return _Layer(run, reference, layer, heads, partners, same, None, "index")


def _by_assignment(runs: Sequence[Candidate], run: int, reference: int, layer: int, scope: Scope | None) -> _Layer:
    heads, partners = runs[run].layers[layer], runs[reference].layers[layer]
    best = assign(distances(runs[run].features[heads], runs[reference].features[partners]))
    return _Layer(run, reference, layer, heads, partners, best, scope, "assignment")


def _pool(runs: Sequence[Candidate], members: list[int], layer: int) -> dict[int, Array]:
    """Features of the layer's heads in every run, heads with gaps left out."""
    features = {r: runs[r].features[runs[r].layers[layer]] for r in members}
    return {r: values[~np.isnan(values).any((1, 2))] for r, values in features.items()}
