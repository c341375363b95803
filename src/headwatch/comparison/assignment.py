"""Optimal assignment of the heads of one layer in two runs, and how clear it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from headwatch.comparison.trajectories import Array

__all__ = ["Assignment", "assign", "distances"]


@dataclass(frozen=True)
class Assignment:
    """Who goes with whom.

    Attributes:
        partner: for each row the matched column, −1 for none, shape ``(R,)``.
        cost: distance of each matched pair, NaN for none, shape ``(R,)``.
        margin: how much dearer the whole assignment becomes when the pair is forbidden, shape ``(R,)``; 0 is a tie;
            NaN when there is no other assignment.
    """

    partner: Array
    cost: Array
    margin: Array


def distances(features_a: Array, features_b: Array) -> Array:
    """Root-mean-square distance of every two trajectories over the grid.

    Args:
        features_a: shape ``(A, G, F)``: heads, grid, features.
        features_b: shape ``(B, G, F)``.

    Returns:
        √(mean over the grid of ‖difference‖²), shape ``(A, B)``; NaN where a head has a gap.

    >>> distances(np.zeros((1, 2, 1)), np.array([[[3.0], [3.0]]])).tolist()
    [[3.0]]
    """
    grid = features_a.shape[1]
    a, b = features_a.reshape(len(features_a), -1), features_b.reshape(len(features_b), -1)
    squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return np.asarray(np.sqrt(np.maximum(squared, 0) / grid))


def assign(cost: Array) -> Assignment:
    """Cheapest pairing of rows with columns (scipy's ``linear_sum_assignment``) with margins.

    Args:
        cost: shape ``(A, B)``; rows and columns that hold only NaN are left unmatched.

    >>> assign(np.array([[1.0, 2.0], [1.0, 3.0]])).partner.tolist()
    [1, 0]
    """
    rows, columns = np.flatnonzero(~np.isnan(cost).all(1)), np.flatnonzero(~np.isnan(cost).all(0))
    out = Assignment(np.full(len(cost), -1), np.full(len(cost), np.nan), np.full(len(cost), np.nan))
    if len(rows) == 0 or len(columns) == 0:
        return out
    small = cost[np.ix_(rows, columns)]
    i, j = linear_sum_assignment(small)
    out.partner[rows[i]] = columns[j]
    out.cost[rows[i]] = small[i, j]
    out.margin[rows[i]] = _margins(small, i, j)
    return out


def _margins(cost: Array, i: Array, j: Array) -> Array:
    if max(cost.shape) < 2:
        return np.full(len(i), np.nan)
    total = cost[i, j].sum()
    forbidden = 1 + 2 * cost.sum()
    return np.array([_without(cost, row, column, forbidden) - total for row, column in zip(i, j, strict=True)])


def _without(cost: Array, row: int, column: int, forbidden: float) -> float:
    other = cost.copy()
    other[row, column] = forbidden
    i, j = linear_sum_assignment(other)
    return float(other[i, j].sum())
