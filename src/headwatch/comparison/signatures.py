"""Signatures of runs, compared head by head where heads correspond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pyarrow as pa

from headwatch.comparison.matching import Matching
from headwatch.comparison.record import RunRecord
from headwatch.comparison.trajectories import Array
from headwatch.marginal import compare_signatures
from headwatch.metrics import SIGNATURE_KEYS

__all__ = ["SCHEMA", "signature_table"]

SCHEMA = pa.schema(
    [
        ("run_a", pa.string()),
        ("run_b", pa.string()),
        ("signature", pa.string()),
        ("aligned", pa.string()),
        ("n_heads", pa.int32()),
        ("pearson", pa.float64()),
        ("pearson_within_layer", pa.float64()),
        ("dispersion_a", pa.float64()),
        ("dispersion_b", pa.float64()),
    ]
)


def signature_table(records: Sequence[RunRecord], matching: Matching) -> pa.Table:
    """Similarity of the last signatures of every two runs of one shape.

    ``pearson`` is over heads, after removing the mean over heads; ``pearson_within_layer`` after removing each layer's
    mean. ``dispersion`` is the standard deviation over heads by |mean|: where it is near 0 a correlation says little.
    ``aligned`` says how heads were paired: "index" (same seed), "match", or "no match" where the pairing is no better
    than chance in every layer.
    """
    orders = _orders(records, matching)
    vectors = [_vectors(record) for record in records]
    rows = [
        row
        for a, b in combinations(range(len(records)), 2)
        if records[a].shape == records[b].shape
        for row in _pair(records, vectors, orders, a, b)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


_Order = tuple[Array, str]


def _orders(records: Sequence[RunRecord], matching: Matching) -> dict[int, _Order]:
    """For every run its heads in the order of its reference, and how that order came about."""
    orders: dict[int, _Order] = {}
    for place, record in enumerate(records):
        n = record.trajectories.n_heads
        verdicts = {m.verdict for m in matching.by_run.get(place, [])}
        if not verdicts:  # the reference itself
            orders[place] = (np.arange(n), "same seed")
            continue
        how = next((v for v in ("same seed", "match") if v in verdicts), "no match")
        orders[place] = (matching.partners(place, n), how)
    return orders


def _pair(
    records: Sequence[RunRecord], vectors: Sequence[Array | None], orders: Mapping[int, _Order], a: int, b: int
) -> list[dict[str, object]]:
    ours, theirs = vectors[a], vectors[b]
    if ours is None or theirs is None:
        return []
    how = _together(orders[a][1], orders[b][1])
    first, second = orders[a][0], orders[b][0]
    if records[a].seed is not None and records[a].seed == records[b].seed:
        how, first, second = "index", np.arange(len(first)), np.arange(len(second))
    known = (first >= 0) & (second >= 0)
    first, second = first[known], second[known]
    layer = records[a].trajectories.layer[first]
    names = {"run_a": records[a].label, "run_b": records[b].label, "aligned": how}
    pairs = zip(SIGNATURE_KEYS, ours[:, first], theirs[:, second], strict=True)
    return [names | {"signature": key} | _numbers(x, y, layer) for key, x, y in pairs]


def _together(a: str, b: str) -> str:
    if "no match" in (a, b):
        return "no match"
    return "index" if a == b == "same seed" else "match"


def _vectors(record: RunRecord) -> Array | None:
    """The last signatures of the heads in the profile's order, shape ``(signatures, H)``; NaN where a head has none."""
    signature, run = record.signature, record.trajectories
    if signature is None:
        return None
    place = {key: i for i, key in enumerate(zip(signature.layer.tolist(), signature.head.tolist(), strict=True))}
    wanted = [place.get(key, -1) for key in zip(run.layer.tolist(), run.head.tolist(), strict=True)]
    return np.stack([np.append(signature.values[key][0], np.nan)[wanted] for key in SIGNATURE_KEYS])


def _numbers(x: Array, y: Array, layer: Array) -> dict[str, object]:
    agreement = compare_signatures(x, y, layer)
    return {
        "n_heads": int((np.isfinite(x) & np.isfinite(y)).sum()),
        "pearson": _or_none(agreement.pearson),
        "pearson_within_layer": _or_none(agreement.within_layer),
        "dispersion_a": _or_none(agreement.dispersion[0]),
        "dispersion_b": _or_none(agreement.dispersion[1]),
    }


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None
