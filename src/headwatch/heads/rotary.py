"""Fit rotary positions to measured angles."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Literal

import numpy as np

from headwatch.heads.headmap import Rope
from headwatch.heads.rotation import pairs
from headwatch.heads.selection import Rotation

__all__ = ["fit_rope", "turns_alike"]


def fit_rope(rotation: Rotation, length: int, tolerance: float) -> Rope | None:
    """Pairing, extent and frequencies, if the angles grow linearly with the position; else None.

    Args:
        rotation: measured angles; token = document · length + position.
        length: tokens per document.
        tolerance: largest error of an angle in radians.
    """
    extent = _pairing(rotation.pairs, rotation.width)
    if extent is None:
        return None
    table = _table(rotation, length)
    frequencies = _frequencies(table)
    if not np.isfinite(frequencies).all() or not _linear(table, frequencies, tolerance):
        return None
    pairing, start, stop = extent
    by_pair = dict(zip(rotation.pairs, frequencies.tolist(), strict=True))
    still = Rope(pairing, start, stop, (0.0,) * ((stop - start) // 2))
    every = zip(*pairs(still), strict=True)
    return replace(still, frequencies=tuple(by_pair.get(pair, 0.0) for pair in every))


def turns_alike(rotation: Rotation, rope: Rope, length: int, tolerance: float) -> bool:
    """Whether measured angles are those of ``rope``, up to a common start of each document."""
    frequency = dict(zip(zip(*pairs(rope), strict=True), rope.frequencies, strict=True))
    if any(frequency.get(pair) is None for pair in rotation.pairs):
        return False
    return _linear(_table(rotation, length), np.array([frequency[pair] for pair in rotation.pairs]), tolerance)


def _table(rotation: Rotation, length: int) -> np.ndarray:
    """Angles, shape (documents, length, pairs); NaN where none was measured."""
    token, pair, angle = (np.array(column) for column in zip(*rotation.angles, strict=True))
    document, position = np.divmod(token.astype(np.int64), length)
    table = np.full((int(document.max()) + 1, length, len(rotation.pairs)), np.nan)
    table[document, position, pair.astype(np.int64)] = angle
    return table


def _frequencies(table: np.ndarray) -> np.ndarray:
    """Radians per position of every pair: rough from neighbours, refined over spans that double."""
    frequencies = _median(_wrapped(table[:, 1:] - table[:, :-1]))
    span = 2
    while span < table.shape[1]:
        step = _median(_wrapped(table[:, span:] - table[:, :-span] - frequencies * span)) / span
        frequencies = frequencies + np.nan_to_num(step)
        span *= 2
    return frequencies


def _median(turns: np.ndarray) -> np.ndarray:
    """Median over documents and positions of what was measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a pair that was never measured is NaN
        median: np.ndarray = np.nanmedian(turns.reshape(-1, turns.shape[-1]), axis=0)
    return median


def _linear(table: np.ndarray, frequencies: np.ndarray, tolerance: float) -> bool:
    """Whether angles are frequency × position plus a start of the document's own."""
    positions = np.arange(table.shape[1])
    rest = _wrapped(table - positions[None, :, None] * frequencies)
    for document in rest:
        known = ~np.isnan(document)
        first = np.array(
            [column[mask][0] if mask.any() else np.nan for column, mask in zip(document.T, known.T, strict=True)]
        )
        if np.nanmax(np.abs(_wrapped(document - first)), initial=0.0) > tolerance:
            return False
    return True


def _pairing(turned: list[tuple[int, int]], width: int) -> tuple[Literal["half", "interleaved"], int, int] | None:
    """(pairing, start, stop) of rotated coordinates; pairs of a whole head that stand still may be left out.

    >>> _pairing([(0, 2), (1, 3)], 8), _pairing([(2, 3), (4, 5)], 8), _pairing([(0, 4)], 8)
    (('half', 0, 4), ('interleaved', 2, 6), ('half', 0, 8))
    """
    start, count = turned[0][0], len(turned)
    if count > 1 and turned == [(start + i, start + count + i) for i in range(count)]:
        return "half", start, start + 2 * count
    if turned == [(start + 2 * i, start + 2 * i + 1) for i in range(count)]:
        return "interleaved", start, start + 2 * count
    if all(2 * (y - x) == width for x, y in turned):
        return "half", 0, width
    return None


def _wrapped(angle: np.ndarray) -> np.ndarray:
    """
    >>> float(_wrapped(np.array([2 * np.pi + 0.5]))[0])
    0.5
    """
    return (angle + np.pi) % (2 * np.pi) - np.pi
