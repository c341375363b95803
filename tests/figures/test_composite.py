"""The picture of a snapshot: what it says, that it stays put from step to step, and that it is light."""

import io
import warnings
from concurrent.futures import ThreadPoolExecutor

import matplotlib
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from headwatch.figures import composite_figure, composite_png
from headwatch.figures.ink import INK
from headwatch.figures.palette import THETA_RED
from headwatch.figures.simplex import FLAT
from synthetic import make_profile_table, make_signature_table


def parts(table: pa.Table) -> list[pa.Table]:
    steps = table["step"].to_numpy()
    return [table.filter(pa.array(steps == step)) for step in np.unique(steps)]


def texts(figure) -> str:
    written = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    return "\n".join(text.get_text() for text in written)


def replaced(table: pa.Table, column: str, values: list) -> pa.Table:
    place = table.schema.get_field_index(column)
    return table.set_column(place, table.schema.field(column), pa.array(values, table.schema.field(column).type))


@pytest.fixture(scope="module")
def snapshots() -> list[pa.Table]:
    return parts(make_profile_table(flags="qk_norm"))


def test_png_has_its_size_and_is_light():
    large = parts(make_profile_table(32, 32, steps=(0, 10, 20, 30)))
    picture = composite_png(large[-1], large[:-1], title="large")
    assert Image.open(io.BytesIO(picture)).size == (1400, 800)
    assert len(picture) < 400_000


def test_it_names_step_run_loss_and_what_flags_mean(snapshots):
    words = texts(composite_figure(snapshots[-1], snapshots[:-1], title="nano", notes=["bias off"]))
    for expected in (
        "nano",
        "step 300",
        "16 heads",
        "training loss",
        "QK-norm",
        "bias off",
        "M: chance",
        "rank-one forms",
    ):
        assert expected in words
    assert "Distance to Θ starts near 0" in words


def test_structural_heads_are_counted(snapshots):
    table = replaced(snapshots[-1], "status", ["structural"] * 3 + ["proven"] * 13)
    assert "3 of 16 heads structural" in texts(composite_figure(table))


def test_a_run_measured_at_another_displacement_alone_is_drawn_and_said(snapshots):
    table = replaced(snapshots[-1], "displacement", [8] * 16)
    assert "rotary displacement 8" in texts(composite_figure(table))


def test_heads_lie_where_the_flat_tetrahedron_puts_them(snapshots):
    table = snapshots[-1]
    simplex = composite_figure(table).axes[0]
    drawn = np.concatenate([c.get_offsets() for c in simplex.collections if len(c.get_offsets())])
    expected = np.stack([table[key].to_numpy() for key in "abcd"], -1) @ FLAT
    np.testing.assert_allclose(np.sort(drawn, axis=0), np.sort(expected, axis=0))


def test_axes_stay_fixed_from_step_to_step(snapshots):
    first, last = composite_figure(snapshots[0]), composite_figure(snapshots[-1], snapshots[:-1])
    for one, other in zip(first.axes, last.axes, strict=True):
        assert (one.get_xlim(), one.get_ylim()) == (other.get_xlim(), other.get_ylim())
    ranges = [[image.norm.vmax for axes in figure.axes for image in axes.images[1:]] for figure in (first, last)]
    assert ranges[0] == ranges[1]


def test_missing_heads_are_said_and_do_not_break_the_picture(snapshots):
    table = snapshots[-1]
    for key in ("a", "b", "c", "d", "stable_rank", "theta_position", "head_type"):
        values = table[key].to_pylist()
        table = replaced(table, key, [None, *values[1:]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "1 heads without a profile" in texts(composite_figure(table, snapshots[:2]))


def test_a_snapshot_of_missing_numbers_alone_can_be_drawn(snapshots):
    table = snapshots[0]
    for field in table.schema:
        if pa.types.is_floating(field.type):
            table = replaced(table, field.name, [None] * table.num_rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        composite_png(table)
        assert f"{table.num_rows} heads without a profile" in texts(composite_figure(table))


def test_signatures_add_their_maps(snapshots):
    signature = parts(make_signature_table())[-1]
    assert "effective share of keys" in texts(composite_figure(snapshots[-1], signature=signature))


def test_hostile_names_and_user_styles_do_not_matter(snapshots):
    hostile = r"$\frac{ </script><img src=x onerror=alert(1)> %s \\ "
    with warnings.catch_warnings(), matplotlib.rc_context({"text.color": "white", "text.usetex": True}):
        warnings.simplefilter("error")
        figure = composite_figure(snapshots[-1], title=hostile)
        figure.canvas.draw()
        assert "</script><img src=x" in texts(figure)
        assert {text.get_color() for text in figure.axes[0].texts} == {INK, THETA_RED}


def test_threads_draw_the_same_picture(snapshots):
    with ThreadPoolExecutor(2) as pool:
        pictures = list(pool.map(lambda _: composite_png(snapshots[-1]), range(4)))
    assert len(set(pictures)) == 1


def test_drawing_leaves_pyplot_alone(snapshots):
    import matplotlib.pyplot as plt

    composite_png(snapshots[-1])
    assert plt.get_fignums() == []
