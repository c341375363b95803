"""How well two signatures, or a signature on several documents, agree.

Signatures are positive numbers that differ little between heads, so a cosine of raw values is near 1 for any two
models. Everything here correlates deviations from the mean over heads, and drops heads that are NaN on either side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Agreement",
    "compare_signatures",
    "consistency",
    "dispersion",
    "drift",
    "drift_noise_floor",
    "mean_over_documents",
    "pearson",
    "permuted_consistency",
]

_ROUNDING = 1e-6  # variation relative to the values below which a correlation is float noise
Vector = NDArray[np.float64]


def pearson(x: ArrayLike, y: ArrayLike, layer: ArrayLike | None = None) -> float:
    """Correlation over heads after removing the mean across heads, or across the heads of each layer.

    NaN if fewer than three heads are left, or if one side does not vary beyond rounding.

    Args:
        x, y: one value per head, shape (heads,).
        layer: layer of every head; with it the mean of each layer is removed.

    >>> round(pearson([1.0, 2.0, 4.0], [10.0, 20.0, 40.0]), 6)
    1.0
    >>> round(pearson([1, 2, 11, 12], [2, 1, 12, 11]), 2)
    0.98
    >>> round(pearson([1, 2, 11, 12], [2, 1, 12, 11], layer=[0, 0, 1, 1]), 2)
    -1.0
    """
    a, b = _array(x), _array(y)
    kept = np.isfinite(a) & np.isfinite(b)
    groups = None if layer is None else np.asarray(layer)[kept]
    return _correlation(_deviation(a[kept], groups), _deviation(b[kept], groups))


def consistency(values: ArrayLike, layer: ArrayLike | None = None) -> float:
    """Mean correlation of the signature between all pairs of documents; NaN for fewer than two documents.

    A fixed random network is "consistent" too: read it beside :func:`dispersion`.

    Args:
        values: shape (documents, heads).
        layer: layer of every head, for the version within layers.

    >>> round(consistency([[1, 2, 3], [2, 3, 4], [3, 2, 1]]), 3)  # pairs: 1, −1, −1
    -0.333
    """
    rows = _array(values)
    if np.isfinite(rows).all():
        groups = None if layer is None else np.asarray(layer)
        return _mean(_correlations(np.array([_deviation(row, groups) for row in rows])))
    return _mean([pearson(rows[i], rows[j], layer) for i in range(len(rows)) for j in range(i)])


def permuted_consistency(values: ArrayLike, *, seed: int = 0, repeats: int = 20) -> float:
    """The null of :func:`consistency`: the heads of every document permuted on their own; near 0.

    Args:
        values: shape (documents, heads).
    """
    rng = np.random.default_rng(seed)
    rows = _array(values)
    return _mean([consistency(rng.permuted(rows, axis=1)) for _ in range(repeats)])


def dispersion(signature: ArrayLike) -> float:
    """Standard deviation over heads divided by |mean|: whether there is anything to be consistent about.

    >>> dispersion([1.0, 3.0])
    0.5
    """
    values = _array(signature)
    values = values[np.isfinite(values)]
    if not len(values) or not values.mean():
        return float("nan")
    return float(values.std() / abs(values.mean()))


def drift(signature: ArrayLike, previous: ArrayLike, layer: ArrayLike | None = None) -> float:
    """1 − correlation with an earlier signature of the same heads, in [0, 2]; :func:`drift_noise_floor` is its zero."""
    return 1 - pearson(signature, previous, layer)


def drift_noise_floor(n_documents: int, consistency: float) -> float:
    """Drift that two independent samples of documents show without any change of the model: 1 − Dr/(1 + (D−1)r).

    Spearman–Brown reliability of a mean over D documents whose signatures correlate pairwise with r.

    >>> round(drift_noise_floor(48, 0.9), 4)
    0.0023
    """
    D, r = n_documents, max(consistency, 0.0)
    return 1 - D * r / (1 + (D - 1) * r)


@dataclass(frozen=True)
class Agreement:
    """Two signatures of models of the same shape side by side.

    Attributes:
        pearson: correlation over heads.
        within_layer: the same with the mean of each layer removed.
        dispersion: of either signature; a correlation of signatures without dispersion means nothing.
        noise_floor: 1 − ``pearson`` expected from the choice of documents alone; NaN without documents.
    """

    pearson: float
    within_layer: float
    dispersion: tuple[float, float]
    noise_floor: float


def compare_signatures(a: ArrayLike, b: ArrayLike, layer: ArrayLike) -> Agreement:
    """Compare the signatures of two checkpoints or two runs, head by head.

    Args:
        a, b: shape (documents, heads), or (heads,) for averages; the same heads in the same order.
        layer: layer of every head, shape (heads,).

    Raises:
        ValueError: the two do not have the same heads.
    """
    rows_a, rows_b, layers = np.atleast_2d(_array(a)), np.atleast_2d(_array(b)), np.asarray(layer)
    if not rows_a.shape[1] == rows_b.shape[1] == len(layers):
        raise ValueError(
            f"signatures: expected the same heads on both sides and in layer, found {rows_a.shape[1]}, "
            f"{rows_b.shape[1]} and {len(layers)}; compare models of the same shape"
        )
    mean_a, mean_b = mean_over_documents(rows_a), mean_over_documents(rows_b)
    floors = [drift_noise_floor(len(rows), consistency(rows)) for rows in (rows_a, rows_b) if len(rows) > 1]
    return Agreement(
        pearson(mean_a, mean_b),
        pearson(mean_a, mean_b, layers),
        (dispersion(mean_a), dispersion(mean_b)),
        max(floors, default=float("nan")),
    )


def mean_over_documents(values: Vector) -> Vector:
    """Mean of what is finite in each column; NaN where nothing is.

    >>> mean_over_documents(np.array([[1.0, np.nan], [3.0, np.nan]])).tolist()
    [2.0, nan]
    """
    known = np.isfinite(values)
    total = np.where(known, values, 0).sum(0)
    return np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan)


def _array(values: ArrayLike) -> Vector:
    return np.asarray(values, np.float64)


def _deviation(x: Vector, groups: NDArray | None) -> Vector:
    if groups is None:
        groups = np.zeros(len(x), np.int64)
    _, place = np.unique(groups, return_inverse=True)
    means = np.bincount(place, x) / np.maximum(np.bincount(place), 1)
    rest = x - means[place] if len(x) else x
    varies = np.linalg.norm(rest) > _ROUNDING * np.linalg.norm(x)
    return rest if varies else np.full_like(rest, np.nan)


def _correlation(x: Vector, y: Vector) -> float:
    if len(x) < 3:
        return float("nan")
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def _correlations(rows: Vector) -> Vector:
    """Correlations of all pairs of centred rows."""
    if rows.ndim < 2 or rows.shape[1] < 3:
        return np.full(1, np.nan)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows @ rows.T)[np.triu_indices(len(rows), 1)]


def _mean(values: ArrayLike) -> float:
    finite = _array(values)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if len(finite) else float("nan")
