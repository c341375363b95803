"""Static figures: where heads lie, and that every format can be written."""

import io

import numpy as np
import pytest

from headwatch.figures import paper_tetrahedron, paper_trajectories, paper_triangle
from headwatch.figures.simplex import FLAT
from synthetic import make_profile_table


@pytest.fixture(scope="module")
def table():
    return make_profile_table(2, 3, steps=(0, 10, 20))


def drawn(figure) -> np.ndarray:
    offsets = [c.get_offsets() for c in figure.axes[0].collections if len(c.get_offsets())]
    return np.sort(np.concatenate([o for o in offsets if len(o)]), axis=0)


@pytest.mark.parametrize("format_", ["png", "svg", "pdf"])
@pytest.mark.parametrize("draw", [paper_tetrahedron, paper_triangle, paper_trajectories])
def test_every_format_can_be_written(table, draw, format_):
    buffer = io.BytesIO()
    draw(table).savefig(buffer, format=format_)
    assert len(buffer.getvalue()) > 2000


def test_tetrahedron_at_a_step(table):
    profiles = np.stack([table[key].to_numpy() for key in "abcd"], -1)[6:12]
    np.testing.assert_allclose(drawn(paper_tetrahedron(table, step=15, trails=False)), np.sort(profiles @ FLAT, axis=0))


def test_triangle_holds_the_symmetric_profiles(table):
    a, b, d = (table[key].to_numpy()[12:] for key in "abd")
    x, y = (b / 2 + d) / (1 - a), b * np.sqrt(3) / 2 / (1 - a)
    np.testing.assert_allclose(drawn(paper_triangle(table)), np.sort(np.stack([x, y], -1), axis=0))


def test_trajectories_of_one_layer(table):
    lines = paper_trajectories(table, "pairing", layers=[0]).axes[0].lines
    expected = table["pairing"].to_numpy().reshape(3, 6)[:, :3].T
    np.testing.assert_array_equal([line.get_ydata() for line in lines], expected)
