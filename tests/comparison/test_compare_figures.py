"""Figures of a comparison: traces hold the tables' numbers, static files are of their kind."""

import numpy as np
import pytest

from headwatch.comparison import compare
from headwatch.comparison.figures import bands_figure, layers_figure, simplex_figure
from headwatch.comparison.marks import colour, dash, mpl_mark, plotly_mark
from headwatch.comparison.paper import COLUMN, paper_bands, paper_layers, paper_simplex, save
from synthetic import make_run


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    root = tmp_path_factory.mktemp("figures")
    lr = [1e-3, 1e-3, 1e-4]
    paths = [make_run(root / f"r{i}", seed=i, name=f"<b>r{i}</b>$", config={"lr": lr[i], "seed": i}) for i in range(3)]
    return compare(paths)


def test_bands_are_means_and_ranges_of_the_runs_medians(comparison):
    figure = bands_figure(comparison, "stable_rank", layer=1)
    band, curve = figure.data[:2]
    layers = comparison.layers.to_pandas().query("layer == 1 and metric == 'stable_rank'")
    medians = layers.pivot(index="step", columns="run", values="median").iloc[:, :2]
    np.testing.assert_allclose(curve.y, medians.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(band.y[: len(medians)], medians.max(axis=1), rtol=1e-6)
    np.testing.assert_allclose(band.y[len(medians) :][::-1], medians.min(axis=1), rtol=1e-6)


def test_layers_are_the_bands_ends(comparison):
    curve = layers_figure(comparison, "drift").data[1]
    assert list(curve.x) == [0, 1, 2, 3]
    assert curve.y[2] == pytest.approx(bands_figure(comparison, "drift", layer=2).data[1].y[-1])


def test_simplex_has_a_trace_per_run_and_a_frame_per_step(comparison):
    figure = simplex_figure(comparison)
    heads = [trace for trace in figure.data if trace.mode == "markers" and len(trace.x) == 16]
    assert len(heads) == 3
    assert len(figure.frames) == 11
    assert heads[0].name == "&lt;b&gt;r0&lt;/b&gt;$"
    first = np.array([figure.frames[0].data[0][axis] for axis in "xyz"])
    np.testing.assert_allclose(first, np.array([[1.0], [0], [0]]) * np.ones(16), atol=3e-3)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_static_files(comparison, tmp_path, ending):
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    figures = [
        paper_simplex(comparison, position=50),
        paper_bands(comparison, ["drift"], width=COLUMN),
        paper_layers(comparison),
    ]
    for i, figure in enumerate(figures):
        path = save(figure, tmp_path / f"{i}.{ending}")
        assert path.read_bytes().startswith(starts)
        assert path.stat().st_size > 2000


def test_text_of_an_svg_stays_text_and_names_are_not_read_as_formulas(comparison, tmp_path):
    text = save(paper_simplex(comparison), tmp_path / "a.svg").read_text()
    assert "&lt;b&gt;r0&lt;/b&gt;$" in text


def test_other_endings_are_refused(comparison, tmp_path):
    with pytest.raises(ValueError, match=r"expected a name that ends in \.png, \.svg or \.pdf"):
        save(paper_simplex(comparison), tmp_path / "a.gif")


def test_fifty_runs_can_be_told_apart():
    assert len({(colour(i), plotly_mark(i)) for i in range(50)}) == 50
    assert len({(colour(i), mpl_mark(i)) for i in range(50)}) == 50
    assert len({(colour(i), dash(i)) for i in range(48)}) == 48
