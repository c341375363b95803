"""Budgets for KV-cache eviction: how much of its keys each head should keep, from how later queries look back.

The most stable signature is not the right budget: budgets made from ordinary reading attention starve the heads that
retrieve. These come from the queries of the second half of a document looking back at the keys of the first, by the
largest weight that any of them gives a key, cut once over all heads of the model. The procedure is ours; the idea of
fixed per-head budgets from marginal attention is that of Maiorca, Nelson and Locatello, arXiv:2610.03109.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["COMPRESSION", "WANTED_DOCUMENTS", "Array", "Budgets", "DocumentScores", "floored", "kept_fractions"]

Array = NDArray[np.float64]
COMPRESSION: Array = np.arange(1, 100) / 100  # share of keys that is dropped; index i ↔ (i + 1)/100
WANTED_DOCUMENTS = 40  # with fewer, the budgets are those of the documents more than those of the model
_SMALLEST = 1e-9


@dataclass(frozen=True)
class DocumentScores:
    """What the keys of one document are worth.

    Attributes:
        look_back: largest weight that later queries of the document give a key, over the query heads of its
            key-value head, shape (layers, key-value heads, keys).
        reading: mean weight that the queries of the context itself give it, same shape.
        sinks: keys that are always kept, bool, shape (keys,).
    """

    look_back: Array
    reading: Array
    sinks: NDArray[np.bool_]


def kept_fractions(
    scores: Sequence[ArrayLike], sinks: Sequence[ArrayLike] | None = None, compression: ArrayLike = COMPRESSION
) -> Array:
    """Share of its keys that each head keeps under one cut per document over all heads, mean over documents.

    For each document the (layer, head, key) of highest score are kept, as many as the rate allows; sinks come first.

    Args:
        scores: per document, shape (layers, key-value heads, keys).
        sinks: per document keys that are always kept, bool, shape (keys,).
        compression: shares of keys to drop, shape (rates,).

    Returns:
        Shape (rates, layers, key-value heads), each in [0, 1], of mean 1 − compression up to rounding.

    Raises:
        ValueError: no documents, or documents of different models.

    >>> one = np.array([[[0.9, 0.8, 0.7, 0.6], [0.1, 0.2, 0.3, 0.4]]])  # one layer, two heads
    >>> kept_fractions([one], compression=[0.5, 0.25])
    array([[[1. , 0. ]],
    <BLANKLINE>
           [[1. , 0.5]]])
    """
    arrays = [np.asarray(score, np.float64) for score in scores]
    shapes = sorted({array.shape[:2] for array in arrays})
    if len(shapes) != 1:
        raise ValueError(
            f"scores: expected documents of one model, shape (layers, key-value heads, keys), found {shapes or 'none'}"
        )
    masks = [None] * len(arrays) if sinks is None else [np.asarray(sink, bool) for sink in sinks]
    rates = np.asarray(compression, np.float64)
    cuts = [_one_cut(array, mask, rates) for array, mask in zip(arrays, masks, strict=True)]
    mean: Array = np.mean(cuts, axis=0)
    return mean


def floored(kept: ArrayLike, compression: ArrayLike = COMPRESSION, alpha: float | None = None) -> Array:
    """Fractions with a floor for every head, filled up or cut down to the mean that the rate asks for.

    f ← max(f, α · r), f ≤ 1, mean f = r = 1 − compression, by one factor on all heads between floor and 1.

    Args:
        kept: shape (rates, layers, key-value heads).
        compression: shares of keys to drop, shape (rates,).
        alpha: floor as a share of the mean; by default 0.2, and 0.5 where less than 15 % is kept.
    """
    kept, rates = np.asarray(kept, np.float64), 1 - np.asarray(compression, np.float64)
    floors = np.where(rates < 0.15, 0.5, 0.2) if alpha is None else np.full_like(rates, alpha)
    return np.stack([_filled(f, r, a * r) for f, r, a in zip(kept, rates, floors, strict=True)])


@dataclass(frozen=True)
class Budgets:
    """Budgets of one model.

    Attributes:
        kept: share of keys that each head keeps, before the floor, shape (99, layers, key-value heads); index i ↔
            compression (i + 1)/100.
        reading: the same from ordinary reading attention.
        metadata: what a reader of the files must know.
    """

    kept: Array
    reading: Array
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_documents(cls, documents: Sequence[DocumentScores], metadata: Mapping[str, Any] | None = None) -> Budgets:
        """Budgets from the scores of documents; 40 at least are wanted, the paper takes 200."""
        sinks = [document.sinks for document in documents]
        kept = kept_fractions([document.look_back for document in documents], sinks)
        reading = kept_fractions([document.reading for document in documents], sinks)
        return cls(kept, reading, {**(metadata or {}), "n_documents": len(documents)})

    def prune_ratios(self, alpha: float | None = None) -> Array:
        """1 − f with floor, shape (99, layers, key-value heads): share of its keys that each head drops."""
        return 1 - floored(self.kept, alpha=alpha)

    def gap(self, compression: float = 0.75) -> Array:
        """Look-back budget minus reading budget per head; a large gap marks a head that retrieves."""
        place = int(np.abs(COMPRESSION - compression).argmin())
        gap: Array = self.kept[place] - self.reading[place]
        return gap

    def save(self, directory: str | Path, alpha: float | None = None) -> Path:
        """Write ``prune_ratios.npy`` [99, n_layers, n_kv_heads], ``kept.npy``, ``reading.npy`` and ``budgets.json``."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        np.save(directory / "prune_ratios.npy", self.prune_ratios(alpha).astype(np.float32))
        np.save(directory / "kept.npy", self.kept)
        np.save(directory / "reading.npy", self.reading)
        _, layers, heads = self.kept.shape
        described = {
            "n_layers": layers,
            "n_kv_heads": heads,
            "axes": ["compression (i + 1)/100", "layer", "key-value head"],
            "value": "share of its keys that the head drops; mean over heads = compression",
            "floor": alpha if alpha is not None else {"default": 0.2, "where less than 15 % is kept": 0.5},
            "scores": "look-back queries, maximum over queries and query heads of the group, one global cut",
            **self.metadata,
        }
        (directory / "budgets.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        return directory

    @classmethod
    def load(cls, directory: str | Path) -> Budgets:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: there are no budgets, with how to make them.
        """
        directory = Path(directory)
        if not (directory / "kept.npy").is_file():
            raise FileNotFoundError(
                f"no budgets in {directory}; expected kept.npy and budgets.json. Budgets need the model: train with "
                "MarginalAttentionMonitor(budgets=True), or call headwatch.probe.lookback.measure_budgets(model, ...)."
            )
        kept, reading = (np.load(directory / name, allow_pickle=False) for name in ("kept.npy", "reading.npy"))
        return cls(kept, reading, json.loads((directory / "budgets.json").read_text(encoding="utf-8")))


def _one_cut(scores: Array, sinks: NDArray[np.bool_] | None, compression: Array) -> Array:
    layers, heads, keys = scores.shape
    values = scores if sinks is None else np.where(sinks, np.inf, scores)
    head_of = np.repeat(np.arange(layers * heads), keys)
    order = head_of[np.argsort(-values.ravel(), kind="stable")]
    counts = np.rint((1 - compression) * order.size).astype(np.int64)
    kept = np.stack([np.bincount(order[:count], minlength=layers * heads) for count in counts])
    shares: Array = kept.reshape(-1, layers, heads) / keys
    return shares


def _filled(kept: Array, rate: float, floor: float) -> Array:
    """clip(λ · kept, floor, 1) with the λ that gives mean ``rate``."""
    kept = np.maximum(kept, _SMALLEST)
    low, high = 0.0, 1 / _SMALLEST
    for _ in range(200):
        middle = np.sqrt(low * high) if low else high / 2**20
        if np.clip(middle * kept, floor, 1).mean() < rate:
            low = middle
        else:
            high = middle
    return np.clip(high * kept, floor, 1)
