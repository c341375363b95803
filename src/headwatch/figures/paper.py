"""Static figures in a paper's layout (matplotlib): one column wide, small type, readable in grey.

Each returns a figure; ``figure.savefig("heads.pdf")`` writes PDF, SVG or PNG by the name's ending.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwatch.figures.grid import HeadGrid
from headwatch.figures.ink import INK, bare_axes, new_figure, printable, write
from headwatch.figures.palette import LAYER_MARKS, THETA_RED, TYPE_COLOURS, TYPE_MARKS, TYPE_WORDS, layer_colour
from headwatch.figures.panels import draw_trails
from headwatch.figures.simplex import EDGES, FLAT, FLAT_HIDDEN, MIDDLE, THETA, TRIANGLE, place
from headwatch.figures.source import Source, grid_of, kind_of
from headwatch.metrics import HEAD_TYPES, REGISTRY

__all__ = ["paper_tetrahedron", "paper_trajectories", "paper_triangle"]

_COLUMN = 3.35  # inches
_DASHES = ("-", "--", ":", "-.")


def paper_tetrahedron(source: Source, *, step: int | None = None, trails: bool = True) -> Figure:
    """All heads in the flat tetrahedron, Θ in red.

    Args:
        source: a run, or its profile table.
        step: the snapshot; the last one at or before it is drawn, by default the last of all.
        trails: draw the way from the first snapshot.
    """
    grid = grid_of(source, "profile")
    at = grid.at(step)
    figure = new_figure(_COLUMN, 2.9, dpi=300)
    axes = bare_axes(figure, (0, 0.12, 1, 0.87), (-0.98, 1.2), (-0.5, 1.5), equal=True)
    for edge in EDGES:
        axes.plot(*FLAT[list(edge)].T, color="#8a8a8a", lw=0.6, ls="--" if edge == FLAT_HIDDEN else "-")
    axes.plot(*place(THETA, FLAT).T, color=THETA_RED, lw=1.2)
    axes.plot(*place(MIDDLE, FLAT), marker="s", color=THETA_RED, ms=3)
    for name, point, shift in zip("abcd", FLAT, ((-0.14, -0.02), (0, -0.12), (0.15, -0.02), (0, 0.05)), strict=True):
        write(axes, point[0] + shift[0], point[1] + shift[1], f"{name} = 1", ha="center", fontsize=7)
    write(axes, -0.53, -0.12, "M", ha="right", fontsize=7, color=THETA_RED)
    points = place(grid.profiles(), FLAT)
    if trails:
        draw_trails(axes, list(points[: at + 1]))
    _marks(axes, points[at], grid.matrix("head_type")[at])
    _type_legend(figure)
    return figure


def paper_triangle(source: Source, *, step: int | None = None) -> Figure:
    """The symmetric profiles (b, c, d)/(1 − a) in their triangle; a head without a symmetric part is not drawn."""
    grid = grid_of(source, "profile")
    at = grid.at(step)
    figure = new_figure(_COLUMN, 3.0, dpi=300)
    axes = bare_axes(figure, (0, 0.1, 1, 0.9), (-0.16, 1.16), (-0.12, 0.98), equal=True)
    axes.fill(*TRIANGLE.T, facecolor="none", edgecolor="#8a8a8a", lw=0.8)
    places = ((0, 0.03), (-0.04, -0.08), (0.04, -0.08))
    for words, point, shift in zip(("b: hyperbolic", "c: positive", "d: negative"), TRIANGLE, places, strict=True):
        write(axes, point[0] + shift[0], point[1] + shift[1], words, ha="center", fontsize=7)
    shares = np.stack([grid.matrix(key)[at] for key in ("b_sym", "c_sym", "d_sym")], axis=-1)
    _marks(axes, place(shares, TRIANGLE), grid.matrix("head_type")[at])
    _type_legend(figure)
    return figure


def paper_trajectories(source: Source, metric: str = "stable_rank", *, layers: Sequence[int] | None = None) -> Figure:
    """One line per head over the steps; shade, dash and mark tell the layer."""
    grid = grid_of(source, kind_of(metric))
    figure = new_figure(_COLUMN, 2.4, dpi=300)
    axes = figure.add_axes((0.16, 0.2, 0.66, 0.75))
    values, all_layers = grid.matrix(metric), np.unique(grid.layer)
    for place_, layer in enumerate(all_layers):
        if layers is None or int(layer) in layers:
            _layer_lines(axes, grid, values, place_, len(all_layers))
    axes.set_xlabel("optimizer step", fontsize=7, color=INK)
    axes.set_ylabel(printable(REGISTRY[metric].title), fontsize=7, color=INK)
    axes.tick_params(labelsize=6, width=0.5, length=2)
    axes.spines[["top", "right"]].set_visible(False)
    if len(all_layers) <= 16:
        axes.legend(fontsize=6, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.02), handlelength=2.2)
    return figure


def _layer_lines(axes: Axes, grid: HeadGrid, values: np.ndarray, place_: int, n_layers: int) -> None:
    layer = np.unique(grid.layer)[place_]
    colour, dash = layer_colour(place_, n_layers), _DASHES[place_ % len(_DASHES)]
    mark = LAYER_MARKS[place_ % len(LAYER_MARKS)]
    for i, column in enumerate(np.flatnonzero(grid.layer == layer)):
        label = f"L{layer:02d}" if i == 0 else None
        axes.plot(grid.steps, values[:, column], color=colour, ls=dash, lw=0.7, marker=mark, ms=1.8, label=label)


def _marks(axes: Axes, points: np.ndarray, types: np.ndarray) -> None:
    size = float(np.clip(1200 / max(len(points), 1), 2, 16))
    for code in (2, 0, 1):
        of, name = types == code, HEAD_TYPES[code]
        axes.scatter(
            points[of, 0],
            points[of, 1],
            s=size,
            c=TYPE_COLOURS[name],
            marker=TYPE_MARKS[name],
            edgecolor="white",
            lw=0.2,
            zorder=5,
        )


def _type_legend(figure: Figure) -> None:
    axes = bare_axes(figure, (0, 0, 1, 0.1), (0, 3), (0, 1))
    for column, name in ((0.0, "I+"), (1.08, "II"), (1.86, "I-")):
        axes.scatter([column + 0.1], [0.55], s=12, c=TYPE_COLOURS[name], marker=TYPE_MARKS[name])
        write(axes, column + 0.17, 0.55, TYPE_WORDS[name], va="center", fontsize=5.6)
