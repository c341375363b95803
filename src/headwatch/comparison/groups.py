"""Do groups of runs differ? A permutation test over runs, the unit that was randomised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import factorial, prod

import numpy as np

from headwatch.comparison.trajectories import Array

__all__ = ["GroupTest", "group_test", "labellings"]

EXACT_UP_TO = 20_000


@dataclass(frozen=True)
class GroupTest:
    """Differences between groups of runs.

    Attributes:
        groups: names of the groups, in order of first appearance.
        means: mean over a group's runs, shape ``(groups, T)``.
        p: permutation p-value of every statistic, shape ``(T,)``; NaN where there is none.
        smallest_p: what p can reach at best with this many runs.
        n_labellings: labellings that p is counted over.
        exact: every labelling was counted; otherwise they were drawn at random.
    """

    groups: tuple[str, ...]
    means: Array
    p: Array
    smallest_p: float
    n_labellings: int
    exact: bool


def group_test(values: Array, labels: Sequence[str], *, permutations: int = 9_999, seed: int = 0) -> GroupTest:
    """Permutation test of equal means over groups, by the sum of squares between groups (**ours**).

    The heads of a run are not independent, so runs are relabelled, never heads. For two groups the statistic orders
    labellings as the absolute difference of means does: the test is two-sided.

    Args:
        values: one row per run, one column per statistic, shape ``(R, T)``; a run with NaN is left out of that column.
        labels: group of every run.
        permutations: labellings drawn when there are too many to count.
        seed: of the draw.
    """
    groups = tuple(dict.fromkeys(labels))
    codes = np.array([groups.index(label) for label in labels])
    rows, exact = _labelling_rows(codes, permutations, seed)
    p = np.full(values.shape[1], np.nan)
    whole = ~np.isnan(values).any(0)
    p[whole] = _p_values(values[:, whole], codes, rows)
    for column in np.flatnonzero(~whole):
        p[column] = _p_with_gaps(values[:, column], codes, permutations, seed)
    means = np.stack([_mean(values[codes == g]) for g in range(len(groups))])
    return GroupTest(groups, means, p, _smallest(codes, rows, exact), len(rows), exact)


def labellings(codes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every distinct arrangement of the labels.

    >>> len(list(labellings([0, 0, 1, 1])))
    6
    """
    yield from _arrange(Counter(codes), len(codes))


def _arrange(left: Counter[int], length: int) -> Iterator[tuple[int, ...]]:
    if length == 0:
        yield ()
        return
    for code in [code for code, count in left.items() if count]:
        left[code] -= 1
        for rest in _arrange(left, length - 1):
            yield (code, *rest)
        left[code] += 1


def _labelling_rows(codes: Array, permutations: int, seed: int) -> tuple[Array, bool]:
    counts = Counter(codes.tolist())
    if len(codes) <= 20 and factorial(len(codes)) / prod(factorial(n) for n in counts.values()) <= EXACT_UP_TO:
        return np.array(list(labellings(codes.tolist()))), True
    rng = np.random.default_rng(seed)
    return np.stack([codes, *(rng.permutation(codes) for _ in range(permutations))]), False


def _p_values(values: Array, codes: Array, rows: Array) -> Array:
    """Share of labellings that separate the runs as far as the real one; the real one is among the rows either way."""
    if len(np.unique(codes)) < 2 or len(rows) < 2:
        return np.full(values.shape[1], np.nan)
    seen = _between(values, codes[None])[0]
    return np.asarray((_between(values, rows) >= seen - 1e-12 - 1e-9 * np.abs(seen)).mean(0))


def _between(values: Array, rows: Array) -> Array:
    """Sum of squares between groups for every labelling, shape ``(labellings, T)``."""
    centred = values - values.mean(0)
    out = np.zeros((len(rows), values.shape[1]))
    for code in np.unique(rows[0]):
        inside = (rows == code).astype(float)
        out += (inside @ centred) ** 2 / inside[0].sum()
    return out


def _p_with_gaps(column: Array, codes: Array, permutations: int, seed: int) -> float:
    known = ~np.isnan(column)
    if len(np.unique(codes[known])) < 2:
        return float("nan")
    rows, _ = _labelling_rows(codes[known], permutations, seed)
    return float(_p_values(column[known, None], codes[known], rows)[0])


def _mean(values: Array) -> Array:
    known = ~np.isnan(values)
    total, count = np.where(known, values, 0).sum(0), known.sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _smallest(codes: Array, rows: Array, exact: bool) -> float:
    """Groups of one size can swap names: such labellings always tie with the real one."""
    if not exact:
        return 1 / len(rows)
    sizes = Counter(Counter(codes.tolist()).values())
    return min(prod(factorial(n) for n in sizes.values()) / len(rows), 1.0)
