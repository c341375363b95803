"""Alerts over made snapshots: what fires, when, and how often."""

from __future__ import annotations

import math

import pytest

from headwatch.alerts import ALERT_KINDS, DEFAULT_ALERTS, Alerts
from headwatch.snapshot import Snapshot, heads_table


def snapshot(step, kind="profile", displacement=0, **columns):
    (length,) = {len(values) for values in columns.values()}
    identity = {"layer": [0] * length, "head": range(length), "displacement": [displacement] * length}
    return Snapshot(kind, step, heads_table(kind, {**identity, **columns}))


def run(alerts, *snapshots):
    return [(alert.kind, alert.step, alert.heads) for s in snapshots for alert in alerts.check(s)]


def test_rank_one_needs_a_fall():
    steps = [[5.0, 1.2, 1.9], [1.6, 1.2, 1.4], [1.4, 1.2, 2.0], [1.3, 1.2, 1.49]]
    found = run(
        Alerts(("rank_one", "entropy", "logits")), *(snapshot(i, stable_rank=ranks) for i, ranks in enumerate(steps))
    )
    assert found == [("rank_one", 2, ("L00.H00",)), ("rank_one", 3, ("L00.H02",))]


def test_once_per_head_and_kind():
    falling = [snapshot(i, stable_rank=[rank]) for i, rank in enumerate([5.0, 1.2, 5.0, 1.2, 1.1])]
    assert run(Alerts(("rank_one", "entropy", "logits")), *falling) == [("rank_one", 1, ("L00.H00",))]


def test_signatures():
    calm = snapshot(1, "signature", row_entropy=[3.0, 0.02], max_logit=[10.0, 900.0])
    wild = snapshot(2, "signature", row_entropy=[0.04, 0.01], max_logit=[10.0, 1001.0])
    assert run(Alerts(("rank_one", "entropy", "logits")), calm, wild) == [
        ("entropy", 2, ("L00.H00",)),
        ("logits", 2, ("L00.H01",)),
    ]


def test_what_is_noisy_is_off_by_default():
    left = [snapshot(1, left_null_step=[None, None]), snapshot(2, left_null_step=[1, None])]
    assert set(DEFAULT_ALERTS) == {"entropy", "logits"}
    assert run(Alerts(("rank_one", "entropy", "logits")), *left) == []
    assert run(Alerts(ALERT_KINDS), *left, left[1]) == [("left_null", 2, ("L00.H00",))]


def test_undefined_numbers_and_displaced_rows_are_silent():
    quiet = [snapshot(0, stable_rank=[5.0, 5.0]), snapshot(1, stable_rank=[math.nan, None])]
    moved = snapshot(2, displacement=64, stable_rank=[1.0, 1.0])
    assert run(Alerts(("rank_one", "entropy", "logits")), *quiet, moved) == []


def test_many_heads_make_one_alert():
    high, low = snapshot(0, stable_rank=[5.0] * 12), snapshot(400, stable_rank=[1.1] * 12)
    alerts = Alerts(("rank_one", "entropy", "logits"))
    alerts.check(high)
    (alert,) = alerts.check(low)
    assert len(alert.heads) == 12
    assert alert.title == "12 heads: rank-one collapse (step 400)"
    assert "L00.H00" in alert.text
    assert "and 4 more" in alert.text


@pytest.mark.parametrize("kind", ALERT_KINDS)
@pytest.mark.parametrize("heads", [1, 1024])
def test_titles_fit_w_and_b(kind, heads):
    columns = {
        "rank_one": "stable_rank",
        "entropy": "row_entropy",
        "logits": "max_logit",
        "left_null": "left_null_step",
    }
    record = "signature" if kind in ("entropy", "logits") else "profile"
    first, then = {"rank_one": (5, 1), "entropy": (5, 0), "logits": (1, 1e6), "left_null": (None, 7)}[kind]
    alerts = Alerts([kind])
    alerts.check(snapshot(0, record, **{columns[kind]: [first] * heads}))
    (alert,) = alerts.check(snapshot(12_345_678, record, **{columns[kind]: [then] * heads}))
    assert len(alert.title) < 64
    assert alert.heads[0] in alert.text


def test_state_survives_a_resume():
    alerts = Alerts(("rank_one", "entropy", "logits"))
    alerts.check(snapshot(0, stable_rank=[5.0, 5.0]))
    alerts.check(snapshot(1, stable_rank=[1.2, 5.0]))
    resumed = Alerts(("rank_one", "entropy", "logits"), state=alerts.state())
    assert run(resumed, snapshot(2, stable_rank=[1.2, 1.2])) == [("rank_one", 2, ("L00.H01",))]


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"unknown kind 'rank_two'; expected some of: rank_one, entropy"):
        Alerts(["rank_two"])
