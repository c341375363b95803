"""The comparison's figures for papers: matplotlib, column widths, PNG, SVG or PDF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headwatch.comparison.comparison import Comparison
from headwatch.comparison.distributions import WHOLE, Band, bands
from headwatch.comparison.figures import layer_bands
from headwatch.comparison.marks import colour, mpl_dash, mpl_mark
from headwatch.comparison.trajectories import Array, at
from headwatch.figures.ink import new_figure, printable, write
from headwatch.figures.palette import THETA_RED
from headwatch.figures.simplex import EDGES, FLAT, FLAT_HIDDEN, MIDDLE, THETA, place
from headwatch.metrics import REGISTRY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLUMN", "PAGE", "paper_bands", "paper_layers", "paper_simplex", "save"]

COLUMN, PAGE = 3.35, 6.9
"""Widths in inches of one column and of the page, as conferences have them."""


def paper_simplex(comparison: Comparison, *, width: float = PAGE, position: float | None = None) -> Figure:
    """All heads in the flat tetrahedron, one mark and colour per run.

    Args:
        comparison: what :func:`headwatch.compare` returned.
        width: inches.
        position: step (or loss, where the comparison is against loss); each run's end by default.
    """
    figure = new_figure(width, 0.72 * width, dpi=200)
    axes = figure.add_axes((0.0, 0.0, 0.76, 1.0))
    axes.axis("off")
    axes.set(xlim=(-1.2, 1.25), ylim=(-0.55, 1.5), aspect="equal")
    _draw_frame(axes)
    size = float(np.clip(2500 / sum(r.trajectories.n_heads for r in comparison.records), 2, 24))
    for i, record in enumerate(comparison.records):
        points = place(_profiles(comparison, i, position), FLAT)
        axes.scatter(
            points[:, 0],
            points[:, 1],
            s=size,
            c=colour(i),
            marker=mpl_mark(i),
            lw=0.3,
            edgecolor="white",
            label=printable(record.label),
        )
    _legend(axes, (1.0, 0.5))
    return figure


def paper_bands(
    comparison: Comparison,
    metrics: Sequence[str] = ("stable_rank", "theta_position"),
    *,
    layer: int = WHOLE,
    width: float = PAGE,
) -> Figure:
    """Median over heads along the runs, a panel per metric; per group the mean over its runs and their range."""
    sign = 1 if comparison.against == "step" else -1
    found = [bands(comparison.records, comparison.group_names, metric, layer, comparison.against) for metric in metrics]
    curves = [[(band, sign * band.x) for band in of] for of in found]
    return _panels(curves, metrics, "step" if sign > 0 else "training loss", width, falling=sign < 0)


def paper_layers(
    comparison: Comparison, metrics: Sequence[str] = ("stable_rank", "theta_position"), *, width: float = PAGE
) -> Figure:
    """Median over the heads of every layer at the end, a panel per metric."""
    curves = [[(band, band.x) for band in layer_bands(comparison, metric)] for metric in metrics]
    return _panels(curves, metrics, "layer", width)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the ending says how: ``.png``, ``.svg`` or ``.pdf``. Text stays text in SVG and PDF.

    Raises:
        ValueError: another ending.
    """
    import matplotlib

    path = Path(path)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"{path}: expected a name that ends in .png, .svg or .pdf.")
    with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(path, dpi=300, bbox_inches="tight", pad_inches=0.03)
    return path


def _profiles(comparison: Comparison, i: int, position: float | None) -> Array:
    run = comparison.records[i].trajectories
    if position is None:
        return np.asarray(run.pi()[-1])
    x = position if comparison.against == "step" else -position
    return np.asarray(at(run.axis(comparison.against), run.pi(), np.array([x]))[0])


def _draw_frame(axes: Axes) -> None:
    for edge in EDGES:
        axes.plot(*FLAT[list(edge)].T, color="#9a9a9a", lw=0.7, ls="--" if edge == FLAT_HIDDEN else "-", zorder=0)
    axes.plot(*place(THETA, FLAT).T, color=THETA_RED, lw=1.6, zorder=1)
    axes.plot(*place(MIDDLE, FLAT), marker="s", color=THETA_RED, ms=4, zorder=2)
    for name, point, (dx, dy) in zip("abcd", FLAT, ((-0.07, 0), (0, -0.1), (0.07, 0), (0, 0.07)), strict=True):
        write(axes, point[0] + dx, point[1] + dy, name, ha="center", va="center", fontsize=9, fontstyle="italic")


def _panels(
    curves: Sequence[Sequence[tuple[Band, Array]]],
    metrics: Sequence[str],
    xlabel: str,
    width: float,
    *,
    falling: bool = False,
) -> Figure:
    figure = new_figure(width, 0.42 * width if len(metrics) > 1 else 0.7 * width, dpi=200)
    for number, (metric, of) in enumerate(zip(metrics, curves, strict=True), start=1):
        axes = figure.add_subplot(1, len(metrics), number)
        for i, (band, x) in enumerate(of):
            _draw_band(axes, band, x, i)
        axes.set_xlabel(xlabel, fontsize=8)
        axes.set_ylabel(printable(REGISTRY[metric].title), fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        if falling:
            axes.invert_xaxis()
    _legend(axes, (1.02, 0.5))
    figure.subplots_adjust(wspace=0.38, bottom=0.2, right=0.8)
    return figure


def _draw_band(axes: Axes, band: Band, x: Array, i: int) -> None:
    if band.n > 1:
        axes.fill_between(x, band.low, band.high, color=colour(i), alpha=0.2, lw=0)
    label = printable(f"{band.group} ({band.n})")
    every = max(1, len(x) // 8)
    axes.plot(
        x, band.middle, color=colour(i), ls=mpl_dash(i), lw=1.3, marker=mpl_mark(i), ms=3, markevery=every, label=label
    )


def _legend(axes: Axes, anchor: tuple[float, float]) -> None:
    legend = axes.legend(loc="center left", bbox_to_anchor=anchor, fontsize=7, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
