"""Agreement of token signals: which tokens a text's attention falls on, whatever the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["swapped_token_agreement", "token_agreement"]

Vector = NDArray[np.float64]


def token_agreement(
    x: ArrayLike, y: ArrayLike, *, kept: ArrayLike | None = None, drop_first: int = 4, drop_last: int = 16
) -> float:
    """Spearman correlation of two token signals of one text, with position removed.

    Ranks of both signals are freed of a cubic in position and of log position by least squares, and correlated: keys
    near the start and the end get more attention in any model. NaN if fewer than eight keys are left.

    Args:
        x, y: signals of the same tokens, shape (S,); NaN for padding.
        kept: the keys to use (C, without sinks and special tokens), bool, shape (S,); all by default.
        drop_first, drop_last: keys that are dropped at the ends of the valid tokens.
    """
    signals = np.asarray(x, np.float64), np.asarray(y, np.float64)
    place = _places(*signals, kept, drop_first, drop_last)
    if len(place) < 8:
        return float("nan")
    position = _position(place)
    a, b = (_free_of(position, _ranks(signal[place])) for signal in signals)
    size = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / size) if size > 1e-9 * len(place) ** 3 else float("nan")


def swapped_token_agreement(x: ArrayLike, y: ArrayLike, **options: int) -> float:
    """Mean agreement on the same documents minus mean agreement on swapped documents.

    What two signals share through position alone is shared by different documents too, and drops out.

    Args:
        x, y: signals of two models on the same documents of equal length, shape (documents, S).
        options: ``drop_first``, ``drop_last`` of :func:`token_agreement`.
    """
    rows_x, rows_y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    table = np.array([[token_agreement(a, b, kept=None, **options) for b in rows_y] for a in rows_x])
    same = np.eye(len(table), dtype=bool)
    return float(np.nanmean(table[same]) - np.nanmean(table[~same]))


def _places(x: Vector, y: Vector, kept: ArrayLike | None, first: int, last: int) -> NDArray[np.int64]:
    valid = np.isfinite(x) & np.isfinite(y)
    place = np.flatnonzero(valid)[first:]
    place = place[: len(place) - last] if last else place
    return place if kept is None else place[np.asarray(kept, bool)[place]]


def _position(place: NDArray[np.int64]) -> NDArray[np.float64]:
    p = (place + 1) / (place[-1] + 1)
    return np.stack((np.ones_like(p), p, p**2, p**3, np.log(p)), 1)


def _free_of(position: NDArray[np.float64], signal: Vector) -> Vector:
    return signal - position @ np.linalg.lstsq(position, signal, rcond=None)[0]


def _ranks(values: Vector) -> Vector:
    """Ranks from 1; equal values share their mean rank.

    >>> _ranks(np.array([3.0, 1.0, 3.0]))
    array([2.5, 1. , 2.5])
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]
