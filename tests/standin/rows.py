"""Rows as the recorder hands them to sinks, made from the made-up runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headwatch.metrics import SIGNATURE_KEYS
from headwatch.sinks.row import Row
from headwatch.snapshot import Snapshot
from synthetic import make_profile_table, make_signature_table

STEPS = (0, 1, 2, 4, 8, 16)


def make_rows(
    n_layers: int = 2, n_heads: int = 3, steps: Sequence[int] = STEPS, seed: int = 0, *, signatures: bool = True
) -> Iterator[Row]:
    """One row per step with both monitors; x lags the step by one, as Lightning's does within training."""
    profile = make_profile_table(n_layers, n_heads, steps, seed)
    signature = make_signature_table(n_layers, n_heads, steps, seed)
    for step in steps:
        snapshots = {"profile": Snapshot("profile", step, at_step(profile, step))}
        if signatures:
            snapshots["signature"] = Snapshot("signature", step, at_step(signature, step), summary(step))
        run_scalars = {"headwatch/seconds": 0.004, "headwatch/overhead": 0.006}
        yield Row(step, max(step - 1, 0), 0, snapshots, run_scalars, final=step == steps[-1])


def at_step(table: pa.Table, step: int) -> pa.Table:
    return table.filter(pa.array(table["step"].to_numpy() == step))


def summary(step: int) -> dict[str, float]:
    values = {f"{key}_{part}": 0.5 + 0.01 * i for i, key in enumerate(SIGNATURE_KEYS) for part in ("consistency",)}
    return values | {"n_eff_dispersion": 0.2, "n_eff_drift": 0.1 if step else float("nan"), "n_eff_noise_floor": 0.01}


def set_column(table: pa.Table, name: str, values: Sequence[object] | np.ndarray) -> pa.Table:
    place = table.schema.get_field_index(name)
    field = table.schema.field(place)
    return table.set_column(place, field, pa.array(list(values), type=field.type))
