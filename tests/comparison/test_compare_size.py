"""Fifty runs of 1,024 heads fit on a page of 15 MB."""

from __future__ import annotations

import numpy as np

from headwatch.comparison.comparison import Comparison
from headwatch.comparison.config import differences
from headwatch.comparison.distributions import layer_table
from headwatch.comparison.drift import COLUMNS, drift_table
from headwatch.comparison.matching import HeadMatch, Matching
from headwatch.comparison.page import page_html
from headwatch.comparison.record import CURVES, RunRecord, thin
from headwatch.comparison.signatures import SCHEMA
from headwatch.comparison.tables import drift_rows, match_rows, run_rows
from headwatch.comparison.trajectories import Trajectories
from headwatch.run import load
from synthetic import make_run

LAYERS, HEADS, SNAPSHOTS, RUNS = 32, 32, 24, 50


def noisy_run(rng):
    """Heads whose every digit is noise: nothing that packing could take out."""
    H = LAYERS * HEADS
    layer, head = (x.ravel() for x in np.meshgrid(np.arange(LAYERS), np.arange(HEADS), indexing="ij"))
    pi = rng.dirichlet([5, 5, 1, 1], (SNAPSHOTS, H))
    values = dict(zip("abcd", np.moveaxis(pi, -1, 0), strict=True))
    values |= {key: rng.lognormal(size=(SNAPSHOTS, H)) for key in (*COLUMNS, *CURVES) if key not in values}
    for key in ("parity", "beyond_null", "left_null_step"):
        values[key] = rng.integers(-1, 2, (SNAPSHOTS, H)).astype(float)
    steps = np.arange(SNAPSHOTS) * 100
    modules = tuple(f"model.layers.{i}.self_attn" for i in layer)
    return Trajectories(steps, 4 - np.log1p(steps), layer, head, modules, values)


def noisy_comparison(store):
    rng = np.random.default_rng(0)
    full = [noisy_run(rng) for _ in range(RUNS)]
    records = [
        RunRecord(
            f"run {i}", store, {"seed": str(i)}, str(i), "shape", thin(run, 48), drift_table(run), None, SNAPSHOTS, ""
        )
        for i, run in enumerate(full)
    ]
    matches = [
        HeadMatch(run, 0, h // HEADS, h, h, "assignment", *rng.uniform(size=5), "this layer", "match")
        for run in range(1, RUNS)
        for h in range(LAYERS * HEADS)
    ]
    matching = Matching(matches, 99, 0.05)
    names = [f"group {i % 2}" for i in range(RUNS)]
    return Comparison(
        runs=run_rows(records, names),
        left_out=(),
        config=differences([r.config for r in records], [r.label for r in records]),
        drift=drift_rows(records),
        matches=match_rows(records, matching),
        layers=layer_table(records[:2]),
        groups=None,
        signatures=SCHEMA.empty_table(),
        notes=(),
        against="step",
        records=records,
        group_names=names,
        matching=matching,
    )


def test_fifty_runs_of_a_thousand_heads_fit_on_a_page(tmp_path):
    page = page_html(noisy_comparison(load(make_run(tmp_path / "store", signatures=False))))
    assert len(page.encode()) < 15e6
    assert page.count('data-name="pi-') == RUNS
