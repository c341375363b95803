"""What heads are matched on: their way through the simplex and their stable rank, on one scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwatch.comparison.trajectories import Array

__all__ = ["trajectory_features"]


def trajectory_features(profiles: Sequence[Array], stable_ranks: Sequence[Array]) -> list[Array]:
    """π and log₂ stable rank over a shared grid, each divided by its spread over the heads of all runs (**ours**).

    The spread is the root mean square distance from the mean of all heads at the same grid point, so 1 is a typical
    distance of a head from the middle of the crowd and neither part outweighs the other.

    Args:
        profiles: per run, shape ``(G, H, 4)``.
        stable_ranks: per run, shape ``(G, H)``.

    Returns:
        Per run, shape ``(H, G, 5)``; NaN where a head has a gap.
    """
    ranks = [np.log2(rank)[..., None] for rank in stable_ranks]
    return [np.concatenate(parts, -1).swapaxes(0, 1) for parts in zip(_scaled(profiles), _scaled(ranks), strict=True)]


def _scaled(runs: Sequence[Array]) -> list[Array]:
    heads = np.concatenate(runs, axis=1)
    present = heads[:, ~np.isnan(heads).any((0, 2))]
    if not present.size:
        return [run * 1.0 for run in runs]
    spread = np.sqrt(((present - present.mean(1, keepdims=True)) ** 2).sum(-1).mean())
    return [run / (spread or 1.0) for run in runs]
