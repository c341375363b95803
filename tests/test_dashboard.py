"""The dashboard names what is really logged, in reading order, and never a misleading chart alone."""

from __future__ import annotations

import json
import re
import sys

import pytest
from typer.testing import CliRunner

from headwatch import dashboard
from headwatch import dashboard_workspace as workspace
from headwatch.cli import build_app
from headwatch.dashboard import Chart, Text, sections_for
from headwatch.metrics import HEADLINE_KEYS, REGISTRY, SIGNATURE_HEADLINE, SIGNATURE_KEYS
from headwatch.sinks.pictures import PICTURE_KEY
from headwatch.sinks.scalars import SUMMARY_PARTS, scalars
from standin.rows import make_rows, summary
from synthetic import make_run

LAYERS, HEADS = 3, 4


@pytest.fixture(scope="module")
def logged():
    """Every key of a run with both monitors."""
    row = list(make_rows(LAYERS, HEADS))[-1]
    whole = {f"{key}_{part}": 0.5 for key in SIGNATURE_KEYS for part in SUMMARY_PARTS}
    row.snapshots["signature"].summary.update(summary(row.step) | whole)
    return {*scalars(row), PICTURE_KEY}


def test_every_key_that_it_names_is_logged(logged):
    assert dashboard.keys_named(sections_for(LAYERS)) <= logged


def test_every_pattern_that_it_names_matches_what_is_logged(logged):
    for pattern in dashboard.patterns_named(sections_for(LAYERS)):
        found = [key for key in logged if re.search(pattern, key)]
        assert len(found) == (HEADS if pattern.startswith("^heads/") else LAYERS), pattern


def test_no_pattern_captures_groups():
    assert all(re.compile(pattern).groups == 0 for pattern in dashboard.patterns_named(sections_for(LAYERS)))


def test_there_is_a_panel_per_layer_and_metric_with_a_line_per_head(logged):
    patterns = dashboard.patterns_named(sections_for(LAYERS))
    lines = [
        {key for key in logged if re.search(pattern, key)} for pattern in patterns if pattern.startswith("^heads/")
    ]
    assert len(lines) == LAYERS * (len(HEADLINE_KEYS) + len(SIGNATURE_HEADLINE))
    assert set().union(*lines) == {key for key in logged if key.startswith("heads/")}


def test_the_first_section_answers_in_order():
    first = sections_for(12)[0]
    assert len(first.charts) <= 12
    questions = ["Wrong?", "Leaving chance", "Along Θ", "Off Θ", "Rank-one", "Which layers"]
    places = [next(i for i, chart in enumerate(first.charts) if chart.title.startswith(q)) for q in questions]
    assert places == sorted(places)
    assert first.open


def test_sections_come_in_reading_order():
    names = [section.name for section in sections_for(2)]
    assert [int(name.split()[0]) for name in names] == list(range(1, len(names) + 1))
    words = ["glance", "simplex", "Heads", "Signatures", "Budgets", "Cost"]
    places = [next(i for i, name in enumerate(names) if word in name) for word in words]
    assert places == sorted(places)


def columns_of(panel):
    return {name.split("/")[1].removeprefix("abs_") for name in (*panel.keys, panel.pattern) if "/" in name}


def test_distance_to_theta_never_stands_alone():
    for section in sections_for(3):
        with_distance = [i for i, panel in enumerate(section.panels) if _shows(panel, "theta_distance")]
        for place in with_distance:
            neighbours = section.panels[max(place - 1, 0) : place + 2]
            assert any(_shows(panel, "theta_position") for panel in neighbours), section.name
        if with_distance:
            assert any("does not measure learning by itself" in text for text in _texts(section))


def _shows(panel, column):
    return isinstance(panel, Chart) and column in columns_of(panel)


def _texts(section):
    return [panel.markdown for panel in section.panels if isinstance(panel, Text)]


def test_consistency_never_stands_alone():
    for section in sections_for(2):
        alone = [c for c in section.charts if any(key.endswith("/consistency") for key in c.keys)]
        assert all(any(key.endswith("/dispersion") for key in chart.keys) for chart in alone)
        if alone:
            assert any("does not mean that heads differ" in text for text in _texts(section))
        drift = [c for c in section.charts if any(re.fullmatch(r"headsum/n_eff/drift", key) for key in c.keys)]
        assert all("headsum/n_eff/noise_floor" in chart.keys for chart in drift)


def test_texts_come_from_the_registry():
    words = "\n".join(text for section in sections_for(1) for text in _texts(section))
    for key in (*HEADLINE_KEYS, *SIGNATURE_KEYS):
        assert REGISTRY[key].meaning in words
        assert REGISTRY[key].change in words


def test_budgets_and_cost_say_what_they_are_not():
    words = {section.name: "\n".join(_texts(section)) for section in sections_for(1)}
    assert "no budgets" in words["9 Budgets"]
    assert any("blocked training" in text for name, text in words.items() if "Cost" in name)


def test_a_model_without_layers_is_refused():
    with pytest.raises(ValueError, match="expected 1 layer or more, found 0"):
        sections_for(0)


def test_layers_are_read_from_keys():
    assert dashboard.layers_in(["headsum/drift/L00", "headsum/drift/L11", "heads/drift/L30.H00", "loss"]) == 12
    assert dashboard.layers_in(["loss"]) == 0


def test_it_is_serialised_offline_with_every_key_and_pattern():
    pytest.importorskip("wandb_workspaces")
    sections = sections_for(12)
    text = workspace.specification(workspace.build_workspace("me", "p", sections))
    spec = json.loads(text)
    assert len(text) < 400_000
    bank = spec["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in bank] == [section.name for section in sections]
    configs = [panel["config"] for section in bank for panel in section["panels"]]
    lines = [config for config in configs if "metrics" in config or "metricRegex" in config]
    named = {key for config in configs for key in (*config.get("metrics", ()), *config.get("mediaKeys", ()))}
    assert named == dashboard.keys_named(sections)
    assert {config["metricRegex"] for config in configs if config.get("metricRegex")} == dashboard.patterns_named(
        sections
    )
    assert {config["xAxis"] for config in lines} == {"trainer/global_step"}
    columns = spec["section"]["runSets"][0]["runFeed"]["columnPinned"]
    assert "summary:headwatch/median_drift" in columns


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    with pytest.raises(ImportError, match=r"headwatch\[dashboard\]"):
        workspace.build_workspace("me", "p", sections_for(1))


@pytest.mark.parametrize("address", ["me", "me/p/run", "/", "me/"])
def test_an_address_of_another_form_is_refused(address):
    with pytest.raises(ValueError, match="expected ENTITY/PROJECT"):
        workspace.split_address(address)


def run_command(*arguments):
    return CliRunner().invoke(build_app(), ["dashboard", *map(str, arguments)])


def test_a_dry_run_prints_the_specification_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = run_command("me/p", "--dry-run", "--layers", 2)
    assert done.exit_code == 0, done.output
    for section in sections_for(2):
        assert section.name in done.output
        assert all(chart.title in done.output for chart in section.charts)
    assert "L01" in done.output
    assert "L02" not in done.output


def test_a_dry_run_takes_the_layers_of_a_store(tmp_path):
    done = run_command("me/p", "--dry-run", "--run", make_run(tmp_path / "run", n_layers=5, steps=(0, 1)))
    assert "L04" in done.output
    assert "L05" not in done.output


def test_a_dry_run_prints_json():
    pytest.importorskip("wandb_workspaces")
    done = run_command("me/p", "--dry-run", "--json", "--layers", 1)
    assert "panelBankConfig" in json.loads(done.output)["section"]
