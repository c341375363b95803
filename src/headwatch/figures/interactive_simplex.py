"""The simplex of profiles in three dimensions, as a plotly figure with a step slider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from headwatch.figures.grid import HeadGrid
from headwatch.figures.palette import THETA_RED, TYPE_COLOURS, TYPE_WORDS, layer_colour
from headwatch.figures.simplex import EDGES, MIDDLE, SOLID, THETA, VERTEX_WORDS, place
from headwatch.figures.source import Source, grid_of
from headwatch.metrics import HEAD_TYPES

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter3d

__all__ = ["simplex_3d"]

_SYMBOLS = {"I+": "diamond", "II": "circle", "I-": "square"}  # of those that plotly has in three dimensions
_EYE, _UP = (-0.06, 1.5, 0.5), (-0.63, -0.27, 0.73)  # near the flat view of the papers: Θ spread open


def simplex_3d(source: Source, *, colour_by: Literal["type", "layer"] = "type", size: int = 5) -> Figure:
    """All heads in the simplex of profiles, with a step slider and a play button.

    A head near Θ has not thereby learned anything: M, where chance puts it, lies on Θ.

    Args:
        source: a run, or its profile table.
        colour_by: "type" or "layer".
        size: diameter of the marks, px.
    """
    from plotly import graph_objects as go

    if colour_by not in ("type", "layer"):
        raise ValueError(f"colour_by: expected 'type' or 'layer', found {colour_by!r}")
    grid = grid_of(source, "profile")
    drawn = [_heads_3d(grid, s, colour_by, size) for s in range(len(grid.steps))]
    frame = _frame_3d()
    moving = list(range(len(frame), len(frame) + len(drawn[-1])))
    frames = [
        go.Frame(name=str(step), data=heads, traces=moving) for step, heads in zip(grid.steps, drawn, strict=True)
    ]
    figure = go.Figure(data=[*frame, *drawn[-1]], frames=frames)
    axis = {"visible": False, "range": [-1.25, 1.25]}
    camera = {"eye": dict(zip("xyz", _EYE, strict=True)), "up": dict(zip("xyz", _UP, strict=True))}
    scene = {"xaxis": axis, "yaxis": axis, "zaxis": axis, "aspectmode": "cube", "camera": camera}
    return figure.update_layout(scene=scene, margin={"l": 0, "r": 0, "t": 30, "b": 0}, height=640, **_player(grid))


def _heads_3d(grid: HeadGrid, s: int, colour_by: str, size: int) -> list[Scatter3d]:
    points, types = place(grid.profiles()[s], SOLID), grid.matrix("head_type")[s]
    if colour_by == "type":
        return [
            _points_3d(grid, points, np.flatnonzero(types == code), TYPE_WORDS[name], TYPE_COLOURS[name], name, size)
            for code, name in enumerate(HEAD_TYPES)
        ]
    layers = np.unique(grid.layer)
    return [
        _points_3d(
            grid, points, np.flatnonzero(grid.layer == layer), f"L{layer:02d}", layer_colour(i, len(layers)), "II", size
        )
        for i, layer in enumerate(layers)
    ]


def _points_3d(
    grid: HeadGrid, points: np.ndarray, of: np.ndarray, name: str, colour: str, mark: str, size: int
) -> Scatter3d:
    from plotly import graph_objects as go

    return go.Scatter3d(
        **dict(zip("xyz", points[of].T, strict=True)),
        mode="markers",
        name=name,
        text=[grid.labels[i] for i in of],
        hovertemplate="%{text}<extra></extra>",
        marker={"size": size, "color": colour, "symbol": _SYMBOLS[mark], "line": {"color": "white", "width": 1}},
    )


def _frame_3d() -> list[Scatter3d]:
    from plotly import graph_objects as go

    lines = np.concatenate([[*SOLID[list(edge)], [np.nan] * 3] for edge in EDGES])
    theta, middle = place(THETA, SOLID), place(MIDDLE, SOLID)
    still = {"hoverinfo": "skip", "showlegend": False}
    return [
        go.Scatter3d(**_xyz(lines), mode="lines", line={"color": "#9a9a9a", "width": 2}, **still),
        go.Scatter3d(**_xyz(theta), mode="lines", line={"color": THETA_RED, "width": 7}, name="Θ: rank-one forms"),
        go.Scatter3d(**_xyz(SOLID * 1.15), mode="text", text=list(VERTEX_WORDS), **still),
        go.Scatter3d(
            **_xyz(1.2 * middle[None]), mode="text", text=["M: chance"], textfont={"color": THETA_RED}, **still
        ),
    ]


def _xyz(points: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip("xyz", np.asarray(points, dtype=float).T, strict=True))


def _player(grid: HeadGrid) -> dict[str, object]:
    def jump(name: str | None, duration: int) -> list[object]:
        how = {"frame": {"duration": duration, "redraw": True}, "transition": {"duration": 0}, "fromcurrent": True}
        return [[name] if name else None, {**how, "mode": "immediate"}]

    steps = [{"args": jump(str(s), 0), "label": str(s), "method": "animate"} for s in grid.steps]
    play = {"args": jump(None, 350), "label": "play", "method": "animate"}
    pause = {"args": [[None], {"mode": "immediate", "frame": {"duration": 0}}], "label": "pause", "method": "animate"}
    slider = {"steps": steps, "active": len(steps) - 1, "currentvalue": {"prefix": "step "}, "x": 0.14, "len": 0.84}
    buttons = {"type": "buttons", "buttons": [play, pause], "direction": "left", "x": 0.12, "y": 0, "xanchor": "right"}
    return {"sliders": [slider], "updatemenus": [{**buttons, "yanchor": "top", "pad": {"t": 30}}]}
