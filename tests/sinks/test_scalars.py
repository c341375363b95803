"""Keys and values of a row, against plain Python over the table's rows."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from headwatch.metrics import HEADLINE_KEYS, SIGNATURE_HEADLINE, SIGNATURE_KEYS
from headwatch.sinks.row import Row
from headwatch.sinks.scalars import notes, scalars
from headwatch.sinks.tracked import TRACKED
from headwatch.snapshot import Snapshot
from standin.rows import make_rows, set_column
from synthetic import make_profile_table, make_signature_table


def last_row(**options):
    return list(make_rows(**options))[-1]


def profile_row(table: pa.Table) -> Row:
    return Row(8, 7, 0, {"profile": Snapshot("profile", 8, table)})


def deciles(values):
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[0], statistics.median(values), cuts[-1]


def test_every_head_and_metric_has_its_key_and_value():
    row = last_row()
    values = scalars(row)
    for record in row.snapshots["profile"].heads.to_pylist():
        for key in HEADLINE_KEYS:
            assert values[f"heads/{key}/L{record['layer']:02}.H{record['head']:02}"] == record[key]
    for record in row.snapshots["signature"].heads.to_pylist():
        for key in SIGNATURE_HEADLINE:
            assert values[f"heads/{key}/L{record['layer']:02}.H{record['head']:02}"] == record[key]
    assert sum(key.startswith("heads/") for key in values) == 6 * (len(HEADLINE_KEYS) + len(SIGNATURE_HEADLINE))


@pytest.mark.parametrize(("monitor", "keys"), [("profile", HEADLINE_KEYS), ("signature", SIGNATURE_KEYS)])
def test_aggregates_of_model_and_layers(monitor, keys):
    row = last_row()
    values = scalars(row)
    records = row.snapshots[monitor].heads.to_pylist()
    for key in keys:
        p10, median, p90 = deciles([record[key] for record in records])
        assert values[f"headsum/{key}/p10"] == pytest.approx(p10, rel=1e-12)
        assert values[f"headsum/{key}/median"] == pytest.approx(median, rel=1e-12)
        assert values[f"headsum/{key}/p90"] == pytest.approx(p90, rel=1e-12)
        for layer in (0, 1):
            of_layer = [record[key] for record in records if record["layer"] == layer]
            assert values[f"headsum/{key}/L{layer:02}"] == statistics.median(of_layer)


def test_shares_and_extremes():
    table = make_profile_table(2, 3, (8,))
    table = set_column(table, "stable_rank", [1.2, 1.9, 2.0, 5.0, None, 7.0])
    table = set_column(table, "beyond_null", [True, False, True, True, None, None])
    table = set_column(table, "flags", ["", "qk_norm", "nan,rope", "", "zero_form", "averaged_weights: nan"])
    values = scalars(profile_row(table))
    assert values["headsum/rank_one/share"] == 2 / 5
    assert values["headsum/beyond_null/share"] == 3 / 4
    assert values["headsum/broken/share"] == 2 / 6
    assert values["headsum/stable_rank/min"] == 1.2
    assert values["headsum/abs_theta_position/median"] == statistics.median(
        abs(v) for v in table["theta_position"].to_pylist()
    )


def test_extremes_of_signatures_are_those_that_alarm():
    table = make_signature_table(2, 3, (8,))
    values = scalars(Row(8, 7, 0, {"signature": Snapshot("signature", 8, table)}))
    assert values["headsum/max_logit/max"] == max(table["max_logit"].to_pylist())
    assert values["headsum/row_entropy/min"] == min(table["row_entropy"].to_pylist())


def test_summary_of_signatures_and_numbers_of_the_run():
    row = last_row()
    values = scalars(row)
    assert values["headsum/n_eff/consistency"] == 0.5
    assert values["headsum/n_eff/dispersion"] == 0.2
    assert values["headsum/n_eff/drift"] == 0.1
    assert values["headsum/n_eff/noise_floor"] == 0.01
    assert values["headwatch/seconds"] == 0.004
    assert values["headwatch/overhead"] == 0.006
    assert values["headwatch/global_step"] == row.step
    assert values["trainer/global_step"] == row.x != row.step
    assert values["headwatch/loss"] == row.snapshots["profile"].heads["loss"][0].as_py()


def test_undefined_numbers_have_no_key():
    table = make_profile_table(1, 3, (8,))
    table = set_column(table, "drift", [None, math.nan, 0.5])
    table = set_column(table, "pairing", [math.inf, None, None])
    values = scalars(profile_row(table))
    assert "heads/drift/L00.H00" not in values
    assert "heads/drift/L00.H01" not in values
    assert values["headsum/drift/median"] == values["heads/drift/L00.H02"] == 0.5
    assert not [key for key in values if "/pairing/" in key]
    first = next(iter(make_rows()))
    assert "headwatch/loss" not in scalars(first)
    assert "headsum/n_eff/drift" not in scalars(first)


def test_all_values_are_plain_python_numbers():
    values = scalars(replace(last_row(), run_scalars={"headwatch/seconds": np.float64(1)}))
    assert {type(value) for value in values.values()} <= {float, int}


def test_rows_of_a_displacement_stay_out():
    at_rest = make_profile_table(2, 3, (8,))
    moved = set_column(at_rest, "displacement", [64] * 6)
    moved = set_column(moved, "theta_distance", [9.0] * 6)
    assert scalars(profile_row(pa.concat_tables([moved, at_rest]))) == scalars(profile_row(at_rest))


def test_a_named_monitor_puts_its_name_into_the_keys():
    table = make_profile_table(1, 2, (8,))
    both = {"profile": Snapshot("profile", 8, table), "profile-ema": Snapshot("profile", 8, table)}
    values = scalars(Row(8, 7, 0, both))
    assert values["heads-ema/drift/L00.H01"] == values["heads/drift/L00.H01"]
    assert values["headsum-ema/drift/median"] == values["headsum/drift/median"]


def test_metrics_of_a_mapping_and_of_a_sequence():
    row = last_row()
    only = scalars(row, metrics={"profile": ("norm",), "signature": ()})
    assert {key.split("/")[1] for key in only if key.startswith("heads/")} == {"norm"}
    assert "headsum/norm/L00" in only
    mixed = scalars(row, metrics=("norm",))
    named = {key.split("/")[1] for key in mixed if key.startswith("heads/")}
    assert named == {"norm", *SIGNATURE_HEADLINE}
    assert not [key for key in scalars(row, log_heads=False) if key.startswith("heads/")]


def test_a_large_model_gets_a_fixed_spread_of_heads_and_says_so():
    table = make_profile_table(32, 32, (8,))
    row = profile_row(table)
    values = scalars(row)
    names = sorted({key.rsplit("/")[-1] for key in values if key.startswith("heads/")})
    assert len(names) == TRACKED
    layers, heads = {name[:3] for name in names}, {name[4:] for name in names}
    assert len(layers) == 32
    assert len(heads) > 16
    assert sum(key.startswith("heads/") for key in values) <= 1500
    assert scalars(row).keys() == values.keys()
    (note,) = notes(row)
    assert "64 of 1024 heads" in note
    assert "metrics=" in note


@pytest.mark.parametrize(("n_heads", "all_heads"), [(250, True), (251, False)])
def test_the_limit_is_heads_times_metrics(n_heads, all_heads):
    row = profile_row(make_profile_table(1, n_heads, (8,)))
    assert (notes(row) == []) is all_heads
    assert (sum(key.startswith("heads/") for key in scalars(row)) == n_heads * 6) is all_heads


@pytest.mark.parametrize("size", [(12, 12), (16, 15), (1, 250), (24, 24)])
def test_both_monitors_together_stay_within_the_limit(size):
    row = last_row(n_layers=size[0], n_heads=size[1], steps=(0, 1))
    values = scalars(row)
    keys = {key for key in values if key.startswith("heads/")}
    assert len(keys) <= 1500
    alone = replace(row, snapshots={"signature": row.snapshots["signature"]})
    assert {key for key in scalars(alone) if key.startswith("heads/")} <= keys  # the same keys whoever is due


def test_tracked_heads_can_be_given():
    values = scalars(last_row(), tracked=["L01.H02"])
    assert {key.rsplit("/")[-1] for key in values if key.startswith("heads/")} == {"L01.H02"}
