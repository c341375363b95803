"""The documentation says what the code says: generated pages are up to date, code blocks run, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import headwatch
from headwatch.metrics import REGISTRY

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def script(name: str) -> ModuleType:
    """A script of the docs as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


WITH_CODE = [page for page in PAGES if python_blocks(page)]


@pytest.fixture
def stored_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory as the pages' examples suppose it: a run called RUN under runs/."""
    monkeypatch.chdir(tmp_path)
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True), num_layers=1)
    with headwatch.Monitor(model, dirpath="runs", run_id="RUN") as monitor:
        monitor.step(1)
    return tmp_path


def test_metrics_page_is_made_from_the_registry() -> None:
    assert (DOCS / "metrics.md").read_text(encoding="utf-8") == script("generate_metrics").page()


MISTAKES = script("generate_errors").MISTAKES


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title)
def test_a_mistake_is_answered_in_words(mistake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, text = script("generate_errors").said(mistake)
    assert len(text) > 40  # more than a bare fact: what was expected, or what to do
    assert "Traceback" not in text


def test_metrics_page_names_every_metric() -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert [key for key in REGISTRY if f"`{key}`" not in page] == []


def test_curves_speak_of_columns_that_exist() -> None:
    named = set(re.findall(r"`([a-z_0-9]+)`", (DOCS / "curves.md").read_text(encoding="utf-8")))
    others = {"max_overhead", "consistency", "dispersion", "drift", "flags"}
    assert named - others - set(REGISTRY) == set()


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_code_of_a_page_runs(page: Path, stored_run: Path) -> None:
    for package in ("duckdb", "pandas", "polars"):
        pytest.importorskip(package)
    for block in python_blocks(page):  # each alone, as a reader copies it
        exec(compile(block, page.name, "exec"), {})


def test_a_run_is_read_by_what_an_install_brings(stored_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = python_blocks(DOCS / "recipes.md")[1]
    assert "headwatch.load" in block
    for package in ("pandas", "polars", "duckdb"):
        monkeypatch.setitem(sys.modules, package, None)
    exec(compile(block, "recipes.md", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (DOCS / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_is_in_the_navigation(page: Path) -> None:
    assert f": {page.name}" in (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")


def test_pictures_can_be_drawn_again() -> None:
    pictures = script("make_pictures")
    for figure in (pictures.simplex_picture(), pictures.lobes_picture()):
        assert figure.axes
