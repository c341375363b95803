"""The workspace is saved to a stand-in server, with the layers of the runs that it holds."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headwatch.cli import build_app
from headwatch.dashboard import sections_for
from headwatch.sinks.wandb import WandbSink
from standin.rows import make_rows
from standin.server import ENTITY

pytest.importorskip("wandb_workspaces")
pytestmark = pytest.mark.timeout(90)


def test_saved_with_the_layers_of_the_newest_runs(server, start):
    run = start()
    WandbSink(run, picture=False).log(next(iter(make_rows(n_layers=3))))
    run.finish()
    done = CliRunner().invoke(build_app(), ["dashboard", f"{ENTITY}/p"])
    assert done.exit_code == 0, done.output
    assert server.url in done.output
    (view,) = server.views.values()
    saved = json.loads(view["spec"])["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in saved] == [section.name for section in sections_for(3)]
    assert "L02" in view["spec"]
    assert "L03" not in view["spec"]


def test_a_project_that_is_not_there_is_said_with_the_remedy(server):
    done = CliRunner().invoke(build_app(), ["dashboard", f"{ENTITY}/elsewhere"])
    assert "--layers N" in str(done.exception)
