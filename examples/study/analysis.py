"""What the study asks of a run, and how sure the answers are: pure functions of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
M = np.array([0.5, 0.5, 0.0, 0.0])
SETTLED = 0.9  # correlation over heads with the end of training


@dataclass(frozen=True)
class Trajectories:
    """One run.

    Attributes:
        steps: of the snapshots, shape (S,).
        profile: π = (a, b, c, d), shape (S, H, 4).
        position: signed position on Θ, ±√τ, shape (S, H).
        distance: distance to Θ, shape (S, H).
        stable_rank: shape (S, H).
        beyond: beyond the null, bool, shape (S, H).
        left: step at which a head left the null, NaN where it did not, shape (H,).
        loss: training loss, shape (S,).
        signatures: by name, each of shape (S, H), at ``signature_steps``.
        signature_steps: shape (S,).
    """

    steps: Array
    profile: Array
    position: Array
    distance: Array
    stable_rank: Array
    beyond: NDArray[np.bool_]
    left: Array
    loss: Array
    signatures: dict[str, Array]
    signature_steps: Array


def along_and_off(profile: Array, position: Array) -> tuple[Array, Array]:
    """How far each head came along Θ, and off it, from the first snapshot to the last, each of shape (H,).

    With the nearest point p = M + τ(v − M), v the vertex c = 1 or d = 1, τ = position²: along is the length of Θ
    between the two p, √1.5 · |±τ − ±τ'|; off is ‖(π − p) − (π' − p')‖.

    >>> profile = np.array([[[0.5, 0.5, 0.0, 0.0]], [[0.25, 0.25, 0.5, 0.0]]])  # M, then half-way to c = 1
    >>> [x.round(4).tolist() for x in along_and_off(profile, np.array([[0.0], [np.sqrt(0.5)]]))]
    [[0.6124], [0.0]]
    """
    tau = np.sign(position) * position**2
    off = profile - _nearest(tau)
    return np.sqrt(1.5) * np.abs(tau[-1] - tau[0]), np.linalg.norm(off[-1] - off[0], axis=-1)


def _nearest(tau: Array) -> Array:
    c, d = np.clip(tau, 0, None), np.clip(-tau, 0, None)
    rest = (1 - c - d) / 2
    return np.stack([rest, rest, c, d], axis=-1)


def half_way(steps: Array, moved: Array) -> Array:
    """First step at which a quantity has done half of the way from its first to its last value.

    Args:
        steps: shape (S,).
        moved: distance to the first value, shape (S, H) or (S,).

    >>> half_way(np.array([0, 10, 20, 30]), np.array([0.0, 1.0, 3.0, 4.0])).item()
    20.0
    """
    return steps[(moved >= moved[-1] / 2).argmax(axis=0)].astype(float)


def settled(steps: Array, values: Array) -> float:
    """First step from which the correlation over heads with the last snapshot stays above 0.9.

    Args:
        steps: shape (S,).
        values: shape (S, H), or (S, H, 4) for profiles, whose coordinates are centred one by one.

    >>> settled(np.array([0, 10, 20]), np.array([[0.0, 1.0, 0.0], [0.0, 0.9, 2.1], [0.0, 1.0, 2.0]]))
    10.0
    """
    centred = values - values.mean(axis=1, keepdims=True)
    flat = centred.reshape(len(values), -1)
    norms = np.linalg.norm(flat, axis=1) * np.linalg.norm(flat[-1])
    r = np.divide(flat @ flat[-1], norms, out=np.zeros(len(flat)), where=norms > 0)
    below = np.flatnonzero(r < SETTLED)
    return float(steps[below[-1] + 1] if len(below) else steps[0])


def answers(run: Trajectories) -> dict[str, float]:
    """One number per question; medians are over the heads of the run."""
    along, off = along_and_off(run.profile, run.position)
    drift = np.linalg.norm(run.profile - run.profile[0], axis=-1)
    rank_half = half_way(run.steps, np.abs(run.stable_rank - run.stable_rank[0]))
    drift_half = half_way(run.steps, drift)
    left = run.left[~np.isnan(run.left)]
    found = {
        "heads beyond the null at the end": run.beyond[-1].mean(),
        "step at which a head left it": np.median(left) if len(left) else np.nan,
        "way along Θ": np.median(along),
        "way off Θ": np.median(off),
        "heads that went further along than off": (along > off).mean(),
        "distance to Θ at the end": np.median(run.distance[-1]),
        "distance from M along Θ at the end": np.median(np.sqrt(1.5) * run.position[-1] ** 2),
        "stable rank at the end": np.median(run.stable_rank[-1]),
        "half of the change of stable rank": np.median(rank_half),
        "half of the drift": np.median(drift_half),
        "stable rank is ahead by": np.median(drift_half - rank_half),
        "heads whose stable rank is first": (rank_half < drift_half).mean(),
        "heads whose drift is first": (drift_half < rank_half).mean(),
        "half of the fall of the loss": float(half_way(run.steps, np.abs(run.loss - run.loss[0]))),
        "profiles settle": settled(run.steps, run.profile),
        "stable ranks settle": settled(run.steps, run.stable_rank),
    }
    settle = {name: settled(run.signature_steps, values) for name, values in run.signatures.items()}
    found |= {f"`{name}` settles": step for name, step in settle.items()}
    found |= {f"`{name}` settles before profiles by": found["profiles settle"] - step for name, step in settle.items()}
    return {key: float(value) for key, value in found.items()}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds and half width of its 95 % interval (Student's t).

    >>> mean, half = interval([1.0, 2.0, 3.0])
    >>> round(mean, 3), round(half, 3)
    (2.0, 2.484)
    """
    known = np.array([value for value in values if np.isfinite(value)])
    if len(known) < 2:
        return float(known.mean()) if len(known) else np.nan, np.nan
    half = stats.t.ppf(0.975, len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known))
    return float(known.mean()), float(half)


def exchange_test(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p-value of a difference of means: share of all ways to deal the runs to two groups that differ as much.

    >>> round(exchange_test([1, 2, 3], [11, 12, 13]), 3)  # 2 of 20 ways
    0.1
    """
    values = np.array([*first, *second], dtype=float)
    if not np.isfinite(values).all() or not first or not second:
        return np.nan
    n = len(first)

    def difference(chosen: tuple[int, ...]) -> float:
        inside = np.isin(np.arange(len(values)), chosen)
        return abs(values[inside].mean() - values[~inside].mean())

    seen = difference(tuple(range(n)))
    return float(np.mean([difference(c) >= seen - 1e-12 for c in combinations(range(len(values)), n)]))
