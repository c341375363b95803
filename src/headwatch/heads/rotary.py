"""Fit rotary positions to measured angles."""

from __future__ import annotations

import numpy as np

from headwatch.heads.headmap import Rope
from headwatch.heads.selection import Rotation

__all__ = ["fit_rope"]


def fit_rope(rotation: Rotation, length: int, tolerance: float) -> Rope | None:
    """Pairing, extent and frequencies, if the angles grow linearly with the position; else None.

    Args:
        rotation: measured angles; token = document · length + position.
        length: tokens per document.
        tolerance: largest error of an angle in radians.
    """
    extent = _pairing(rotation.pairs)
    if extent is None:
        return None
    table = np.array(rotation.angles, dtype=np.float64)
    frequencies = [_frequency(table[table[:, 1] == pair], length, tolerance) for pair in range(len(rotation.pairs))]
    if any(frequency is None for frequency in frequencies):
        return None
    pairing, start, stop = extent
    return Rope(pairing, start, stop, tuple(f for f in frequencies if f is not None))  # type: ignore[arg-type]


def _pairing(pairs: list[tuple[int, int]]) -> tuple[str, int, int] | None:
    """(pairing, start, stop) of contiguous rotated coordinates.

    >>> _pairing([(0, 2), (1, 3)]), _pairing([(2, 3), (4, 5)])
    (('half', 0, 4), ('interleaved', 2, 6))
    """
    start, count = pairs[0][0], len(pairs)
    half = [(start + i, start + count + i) for i in range(count)]
    near = [(start + 2 * i, start + 2 * i + 1) for i in range(count)]
    name = "half" if pairs == half else "interleaved" if pairs == near else None
    return None if name is None else (name, start, start + 2 * count)


def _frequency(table: np.ndarray, length: int, tolerance: float) -> float | None:
    """Radians per position of one pair, from rows (token, pair, angle): rough from neighbours, refined over longer spans."""
    document, position = np.divmod(table[:, 0].astype(np.int64), length)
    spans, turns = [], []
    for each in np.unique(document):
        here = document == each
        order = np.argsort(position[here], kind="stable")
        t, angle = position[here][order], table[here, 2][order]
        first, second = np.triu_indices(len(t), 1)
        spans.append(t[second] - t[first])
        turns.append(angle[second] - angle[first])
    span, turn = np.concatenate(spans), np.concatenate(turns)
    span, turn = span[span > 0], turn[span > 0]
    if not len(span) or span.min() > 1:
        return None
    frequency = float(np.median(_wrapped(turn[span == 1])))
    for reach in np.unique(span):
        now = span == reach
        frequency += float(np.median(_wrapped(turn[now] - frequency * reach))) / reach
    return frequency if np.abs(_wrapped(turn - frequency * span)).max() <= tolerance else None


def _wrapped(angle: np.ndarray) -> np.ndarray:
    """
    >>> float(_wrapped(np.array([2 * np.pi + 0.5]))[0])
    0.5
    """
    return (angle + np.pi) % (2 * np.pi) - np.pi
