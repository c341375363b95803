"""The study: its arithmetic on cases that are known by hand, and its one command at a small size."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

STUDY = Path(__file__).resolve().parent.parent / "examples" / "study"


@pytest.fixture
def analysis(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDY))
    return importlib.import_module("analysis")


def test_the_examples_in_its_docstrings(analysis: ModuleType) -> None:
    result = doctest.testmod(analysis)
    assert result.attempted >= 5
    assert result.failed == 0


def test_a_head_that_crosses_to_the_other_side_comes_along_both_segments(analysis: ModuleType) -> None:
    third = np.array([1 / 3, 1 / 3, 1 / 3, 0])
    profile = np.array([[third], [third[[0, 1, 3, 2]]]])  # τ = 1/3 on the c-segment, then on the d-segment
    along, off = analysis.along_and_off(profile, np.array([[np.sqrt(1 / 3)], [-np.sqrt(1 / 3)]]))
    np.testing.assert_allclose(along, 2 * np.linalg.norm(third - analysis.M))
    np.testing.assert_allclose(off, 0, atol=1e-12)


def test_a_head_that_leaves_at_a_right_angle_comes_off_only(analysis: ModuleType) -> None:
    profile = np.array([[[0.5, 0.5, 0, 0]], [[0.6, 0.4, 0, 0]]])  # across the plane a = b
    along, off = analysis.along_and_off(profile, np.zeros((2, 1)))
    np.testing.assert_allclose((along, off), ([0], [np.sqrt(0.02)]), atol=1e-12)


def test_what_wanders_off_again_has_not_settled(analysis: ModuleType) -> None:
    end = np.array([0.0, 1.0, 2.0])
    values = np.stack([end, -end, end, end])
    assert analysis.settled(np.array([0, 5, 10, 15]), values) == 10


def test_the_interval_is_students(analysis: ModuleType) -> None:
    from scipy import stats

    values = [0.3, 0.7, 0.4, 0.9, 0.1]
    mean, half = analysis.interval(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    np.testing.assert_allclose((mean - half, mean + half), expected)


def test_one_command_makes_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import runpy

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(STUDY))
    monkeypatch.setattr(sys, "argv", ["main.py", "--fast"])
    runpy.run_path(str(STUDY / "main.py"), run_name="__main__")
    page = (tmp_path / "study" / "study.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) > 15
    assert all(line.count("|") == 5 for line in rows)
    assert (tmp_path / "study" / "study.png").read_bytes().startswith(b"\x89PNG")
    assert "</html>" in (tmp_path / "study" / "comparison.html").read_text(encoding="utf-8")
