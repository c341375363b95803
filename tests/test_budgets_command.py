"""``headwatch budgets``: files, table and picture."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from headwatch.budgets import Budgets, DocumentScores
from headwatch.cli import build_app
from headwatch.figures.budgets import budgets_figure

RNG = np.random.default_rng(0)


def made(layers=3, heads=2):
    scores = [RNG.random((layers, heads, 40)) * RNG.random((layers, heads, 1)) for _ in range(8)]
    documents = [DocumentScores(s, 1 - s, np.arange(40) == 0) for s in scores]
    return Budgets.from_documents(documents, {"model": "Tiny"})


def test_export_writes_files_a_table_and_a_picture(tmp_path):
    budgets = made()
    budgets.save(tmp_path / "run")
    result = CliRunner().invoke(build_app(), ["budgets", str(tmp_path / "run"), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "gap at 50 %" in result.output
    assert "L00.KV00" in result.output
    ratios = np.load(tmp_path / "out" / "prune_ratios.npy")
    np.testing.assert_allclose(ratios, budgets.prune_ratios(), rtol=1e-6)
    assert json.loads((tmp_path / "out" / "budgets.json").read_text())["model"] == "Tiny"
    assert (tmp_path / "out" / "budgets.png").read_bytes()[:4] == b"\x89PNG"


def test_floor_changes_the_export(tmp_path):
    made().save(tmp_path)
    result = CliRunner().invoke(build_app(), ["budgets", str(tmp_path), "--floor", "1"])
    assert result.exit_code == 0, result.output
    ratios = np.load(tmp_path / "prune_ratios.npy")
    np.testing.assert_allclose(ratios, np.broadcast_to(np.arange(1, 100)[:, None, None] / 100, ratios.shape), atol=1e-6)


@pytest.mark.parametrize(("layers", "heads"), [(2, 4), (40, 8)])
def test_the_picture_holds_every_head(layers, heads):
    figure = budgets_figure(made(layers, heads))
    images = [axes.images[0].get_array().shape[:2] for axes in figure.axes]
    assert images == [(layers, heads)] * 4
