"""Panels drawn by matplotlib: the flat simplex, and position on Θ against stable rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from headwatch.figures.grid import HeadGrid
from headwatch.figures.ink import FAINT, Box, bare_axes, write
from headwatch.figures.palette import THETA_RED, TYPE_COLOURS, TYPE_MARKS, TYPE_WORDS
from headwatch.figures.simplex import EDGES, FLAT, FLAT_HIDDEN, MIDDLE, THETA, VERTEX_WORDS, place
from headwatch.metrics import HEAD_TYPES

__all__ = ["draw_flat_simplex", "draw_legend", "draw_near_middle", "draw_trails", "draw_two_drifts", "scatter_by_type"]

_LABELS = ((-0.03, 0.03, "right"), (0.03, -0.1, "center"), (0.03, -0.05, "left"), (0.0, 0.04, "center"))
_WORDS = (*VERTEX_WORDS[:2], "c: positive\nsemidefinite", VERTEX_WORDS[3])
_NEAR = ((-0.12, 0.42), (-0.12, 0.42))
_DRAWN = (2, 0, 1)  # types from back to front


def draw_flat_simplex(figure: Figure, box: Box, grid: HeadGrid, past: Sequence[HeadGrid] = ()) -> Axes:
    """All heads in the flat tetrahedron, with Θ and the trails of earlier snapshots."""
    axes = bare_axes(figure, box, (-1.42, 1.46), (-0.46, 1.44), equal=True)
    _draw_frame(axes)
    write(axes, -0.53, -0.13, "M: chance", ha="right", fontsize=11, color=THETA_RED)
    for words, point, (dx, dy, ha) in zip(_WORDS, FLAT, _LABELS, strict=True):
        write(axes, point[0] + dx, point[1] + dy, words, ha=ha, fontsize=11)
    _draw_heads(axes, grid, past)
    return axes


def draw_near_middle(figure: Figure, box: Box, grid: HeadGrid, past: Sequence[HeadGrid] = ()) -> Axes:
    """The same drawing about M, larger: that is where heads are while they are young."""
    middle = place(MIDDLE, FLAT)
    (left, right), (low, high) = (middle[0] + np.array(_NEAR[0]), middle[1] + np.array(_NEAR[1]))
    axes = bare_axes(figure, box, (left, right), (low, high))
    for scene, width in ((figure.axes[0], 0.8), (axes, 1.6)):
        scene.plot(
            [left, right, right, left, left], [low, low, high, high, low], color="#9a9a9a", lw=width, ls=":", zorder=6
        )
    _draw_frame(axes)
    _draw_heads(axes, grid, past)
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    write(axes, right - 0.02, low + 0.02, "near M, enlarged", ha="right", fontsize=9.5, color=FAINT, bbox=paper)
    return axes


def draw_legend(figure: Figure, box: Box, grid: HeadGrid) -> None:
    """What the marks mean, with the number of heads of each type."""
    axes = bare_axes(figure, box, (0, 1), (-0.5, 3.5))
    types = grid.matrix("head_type")[-1]
    axes.plot([0.0, 0.08], [3, 3], color=THETA_RED, lw=2.4)
    write(axes, 0.12, 3, "Θ: rank-one forms", va="center", fontsize=10.5)
    for row, code in enumerate((2, 0, 1)):
        name = HEAD_TYPES[code]
        axes.scatter([0.04], [row], s=60, marker=TYPE_MARKS[name], color=TYPE_COLOURS[name])
        write(axes, 0.12, row, f"{TYPE_WORDS[name]}: {int((types == code).sum())}", va="center", fontsize=10.5)


def draw_two_drifts(figure: Figure, box: Box, grid: HeadGrid, past: Sequence[HeadGrid] = ()) -> Axes:
    """Position on Θ against stable rank: sideways a head takes a sign, downwards it becomes rank-one."""
    first = past[0] if past else grid
    top = np.log(1.25 * max(_largest(first.matrix("stable_rank")), 2.0))
    axes = bare_axes(figure, box, (-1.03, 1.03), (-0.12, top))
    _draw_scales(axes, top)
    draw_trails(axes, [_drift_points(g) for g in _aligned(grid, past)])
    points = _drift_points(grid)
    scatter_by_type(axes, points[:, 0], points[:, 1], grid.matrix("head_type")[-1])
    write(axes, -1.03, top * 1.06, "Two drifts: sideways along Θ, down to rank one", fontsize=12, fontweight="bold")
    return axes


def scatter_by_type(axes: Axes, x: np.ndarray, y: np.ndarray, types: np.ndarray) -> None:
    """Heads as marks whose colour and shape tell their type; missing ones are not drawn."""
    size = float(np.clip(3000 / max(len(x), 1), 10, 80))
    for code in _DRAWN:
        of = types == code
        mark, colour = TYPE_MARKS[HEAD_TYPES[code]], TYPE_COLOURS[HEAD_TYPES[code]]
        axes.scatter(x[of], y[of], s=size, c=colour, marker=mark, edgecolor="white", linewidth=0.5, alpha=0.9, zorder=5)


def draw_trails(axes: Axes, points: Sequence[np.ndarray]) -> None:
    """One thin line per head through its earlier places; ``points`` holds an array ``[H, 2]`` per snapshot."""
    if len(points) > 1:
        lines = np.stack(points, axis=1)
        lines = lines[np.isfinite(lines).all(axis=(1, 2))]
        alpha = float(np.clip(6 / max(len(lines), 1) ** 0.5, 0.12, 0.6))
        axes.add_collection(LineCollection(list(lines), colors="#7c8aa5", linewidths=0.7, alpha=alpha, zorder=4))


def _draw_frame(axes: Axes) -> None:
    for edge in EDGES:
        axes.plot(*FLAT[list(edge)].T, color="#9a9a9a", lw=1, ls="--" if edge == FLAT_HIDDEN else "-", zorder=1)
    axes.plot(*place(THETA, FLAT).T, color=THETA_RED, lw=2.4, zorder=2)
    axes.plot(*place(MIDDLE, FLAT), marker="s", color=THETA_RED, ms=7, zorder=3)


def _draw_heads(axes: Axes, grid: HeadGrid, past: Sequence[HeadGrid]) -> None:
    draw_trails(axes, [place(g.profiles()[-1], FLAT) for g in _aligned(grid, past)])
    points = place(grid.profiles()[-1], FLAT)
    scatter_by_type(axes, points[:, 0], points[:, 1], grid.matrix("head_type")[-1])


def _draw_scales(axes: Axes, top: float) -> None:
    for rank in (1, 2, 5, 10, 20, 50, 100, 200):
        if np.log(rank) < top:
            axes.axhline(np.log(rank), color="#e3e3e3", lw=0.8, zorder=0)
            write(axes, -1.06, np.log(rank), f"{rank}", ha="right", va="center", fontsize=9.5)
    for position, words in ((-1, "−1 (d)"), (-0.5, "−0.5"), (0, "0 (M)"), (0.5, "0.5"), (1, "1 (c)")):
        axes.axvline(position, color=THETA_RED if position == 0 else "#e3e3e3", lw=0.8, zorder=0)
        write(axes, position, -0.16, words, ha="center", va="top", fontsize=9.5)
    write(axes, 0, -0.34 - 0.06 * top, "position on Θ", ha="center", va="top", fontsize=10.5, color=FAINT)
    write(
        axes,
        -1.2,
        top / 2,
        "stable rank (1 = rank one)",
        ha="center",
        va="center",
        rotation=90,
        fontsize=10.5,
        color=FAINT,
    )


def _aligned(grid: HeadGrid, past: Sequence[HeadGrid]) -> Iterator[HeadGrid]:
    same = [g for g in past if g.labels == grid.labels]
    yield from (*same, grid)


def _drift_points(grid: HeadGrid) -> np.ndarray:
    return np.stack([grid.matrix("theta_position")[-1], np.log(grid.matrix("stable_rank")[-1])], axis=-1)


def _largest(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else 1.0
