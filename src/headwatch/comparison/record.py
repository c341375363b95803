"""One run, reduced to what a comparison needs: a run of a thousand heads and snapshots must not stay in memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headwatch.comparison import drift
from headwatch.comparison.config import config_of, seed_of
from headwatch.comparison.resolve import read_profile, state_note
from headwatch.comparison.trajectories import Array, Trajectories, from_table
from headwatch.metrics import HEADLINE_KEYS, SIGNATURE_KEYS
from headwatch.run import Run, StoreError

__all__ = ["CURVES", "RunRecord", "record", "thin"]

CURVES = (*HEADLINE_KEYS, "path_length")
"""Metrics whose distributions are compared."""

SNAPSHOTS_KEPT = 48
_COLUMNS = tuple(dict.fromkeys((*drift.COLUMNS, *CURVES)))
_KEPT = tuple(dict.fromkeys(("a", "b", "c", "d", *CURVES)))


@dataclass(frozen=True)
class RunRecord:
    """A run to compare.

    Attributes:
        label: what the page calls it; unique.
        run: where it came from.
        config: dotted keys of its configuration and model.
        seed: its seed, None when it is not known.
        shape: what must be equal for heads to be comparable.
        trajectories: snapshots thinned to at most 48, first and last kept.
        drift: drift statistics over all snapshots, one row per head.
        signature: the last snapshot of the signatures (``metrics.SIGNATURE_KEYS``); None without.
        n_snapshots: snapshots in the store.
        note: what a reader must know of its state; empty for a run that finished.
    """

    label: str
    run: Run
    config: Mapping[str, str]
    seed: str | None
    shape: Hashable
    trajectories: Trajectories
    drift: pa.Table
    signature: Trajectories | None
    n_snapshots: int
    note: str


def record(run: Run, label: str) -> RunRecord:
    """Read a run and reduce it.

    Raises:
        StoreError: it has no profile with heads, or a part cannot be read.
    """
    full = from_table(read_profile(run), _COLUMNS)
    if not full.n_heads:
        raise StoreError(f"{run.path} holds profile snapshots without any head.")
    config = config_of(run.info)
    signature, trouble = _last_signature(run)
    return RunRecord(
        label=label,
        run=run,
        config=config,
        seed=seed_of(config),
        shape=_shape(run.info, full),
        trajectories=thin(full, SNAPSHOTS_KEPT),
        drift=drift.drift_table(full),
        signature=signature,
        n_snapshots=len(full.steps),
        note="; ".join(filter(None, [state_note(run), trouble, _gone(full)])),
    )


def thin(run: Trajectories, snapshots: int) -> Trajectories:
    """At most so many snapshots, evenly by count, in single precision."""
    n = len(run.steps)
    keep = np.unique(np.linspace(0, n - 1, min(n, snapshots)).round().astype(int))
    values = {key: run.values[key][keep].astype(np.float32) for key in _KEPT}
    return replace(run, steps=run.steps[keep], loss=_lowest(run.loss)[keep], values=values)


def _gone(run: Trajectories) -> str:
    """Heads that the last snapshot has no profile of, as when training diverged; empty where it has all."""
    gone = int(np.isnan(run.values["a"][-1]).sum())
    return f"{gone} of {run.n_heads} heads have no profile at its last snapshot" if gone else ""


def _lowest(loss: Array) -> Array:
    """The lowest loss so far: thinning must not lose it."""
    return np.asarray(np.fmin.accumulate(loss))


def _shape(info: Mapping[str, Any], run: Trajectories) -> Hashable:
    model = info.get("model") or {}
    size = tuple(str(model.get(key)) for key in ("d_model", "d_head"))
    return (*size, tuple(zip(run.layer.tolist(), run.head.tolist(), strict=True)))


def _last_signature(run: Run) -> tuple[Trajectories | None, str]:
    folder = next((name for name in run.monitors if name.startswith("signature")), None)
    if folder is None:
        return None, ""
    try:
        signature = from_table(run.table(folder), SIGNATURE_KEYS)
    except (StoreError, pa.ArrowException, OSError) as error:
        return None, f"its signatures cannot be read ({error})"
    last = {key: values[-1:] for key, values in signature.values.items()}
    return replace(signature, steps=signature.steps[-1:], loss=signature.loss[-1:], values=last), ""
