"""The comparison's figures for notebooks: plotly, from tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from headwatch.comparison.comparison import Comparison
from headwatch.comparison.distributions import WHOLE, Band, bands
from headwatch.comparison.marks import colour, dash, plotly_mark
from headwatch.comparison.record import RunRecord
from headwatch.comparison.trajectories import Array, at, union_grid
from headwatch.figures.palette import THETA_RED
from headwatch.figures.simplex import EDGES, MIDDLE, SOLID, THETA, VERTEX_WORDS, place
from headwatch.metrics import REGISTRY
from headwatch.snapshot import head_label

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["bands_figure", "layer_bands", "layers_figure", "simplex_figure"]


def simplex_figure(comparison: Comparison, *, frames: int = 24) -> Figure:
    """All heads of all runs in one simplex, with a slider over the shared axis.

    Args:
        comparison: what :func:`headwatch.compare` returned.
        frames: at most so many positions of the slider.
    """
    import plotly.graph_objects as go

    records, against = comparison.records, comparison.against
    axes = [record.trajectories.axis(against) for record in records]
    grid = union_grid(axes, frames)
    places = [_places(record, axis, grid) for record, axis in zip(records, axes, strict=True)]
    drawn = [
        [_heads_trace(record, points[g], i) for i, (record, points) in enumerate(zip(records, places, strict=True))]
        for g in range(len(grid))
    ]
    fixed = _frame_traces()
    names = [_position_words(x, against) for x in grid]
    moving = list(range(len(fixed), len(fixed) + len(records)))
    figure = go.Figure(
        data=[*fixed, *drawn[-1]],
        frames=[go.Frame(data=drawn[g], name=names[g], traces=moving) for g in range(len(grid))],
    )
    figure.update_layout(sliders=[_slider(names)], updatemenus=[_PLAY], scene=_SCENE, margin={"l": 0, "r": 0, "t": 30})
    return figure


def bands_figure(comparison: Comparison, metric: str = "stable_rank", layer: int = WHOLE) -> Figure:
    """Median over heads along the runs: per group the mean over its runs, and the range from run to run.

    Args:
        comparison: what :func:`headwatch.compare` returned.
        metric: one of ``headwatch.comparison.record.CURVES``.
        layer: a layer, or −1 for all together.
    """
    import plotly.graph_objects as go

    found = bands(comparison.records, comparison.group_names, metric, layer, comparison.against)
    sign = 1 if comparison.against == "step" else -1
    figure = go.Figure([trace for i, band in enumerate(found) for trace in _band_traces(band, sign * band.x, i)])
    figure.update_xaxes(title_text="step" if sign > 0 else "lowest training loss so far")
    if sign < 0:
        figure.update_xaxes(autorange="reversed")
    where = "all layers" if layer == WHOLE else f"L{layer:02d}"
    figure.update_yaxes(title_text=f"{REGISTRY[metric].title}, {where}")
    return figure


def layers_figure(comparison: Comparison, metric: str = "stable_rank") -> Figure:
    """Median over the heads of every layer at the end: per group the mean over its runs, and their range.

    Args:
        comparison: what :func:`headwatch.compare` returned.
        metric: one of ``headwatch.comparison.record.CURVES``.
    """
    import plotly.graph_objects as go

    found = layer_bands(comparison, metric)
    figure = go.Figure([trace for i, band in enumerate(found) for trace in _band_traces(band, band.x, i)])
    figure.update_xaxes(title_text="layer", dtick=1 if len(found[0].x) <= 16 else None)
    figure.update_yaxes(title_text=f"{REGISTRY[metric].title}, at the end")
    return figure


def layer_bands(comparison: Comparison, metric: str) -> list[Band]:
    """The last value of every layer's band, as one band over layers per group."""
    layers = sorted({int(layer) for r in comparison.records for layer in r.trajectories.layer})
    groups = list(dict.fromkeys(comparison.group_names))
    ends = {(band.group, layer): band for layer in layers for band in _last(comparison, metric, layer)}
    return [_over_layers(group, layers, [ends.get((group, layer)) for layer in layers]) for group in groups]


def _last(comparison: Comparison, metric: str, layer: int) -> list[Band]:
    return bands(comparison.records, comparison.group_names, metric, layer, comparison.against)


def _over_layers(group: str, layers: Sequence[int], ends: Sequence[Band | None]) -> Band:
    known = [(layer, band) for layer, band in zip(layers, ends, strict=True) if band is not None]
    low, middle, high = (np.array([getattr(b, name)[-1] for _, b in known]) for name in ("low", "middle", "high"))
    return Band(
        group, np.array([layer for layer, _ in known]), low, middle, high, max((b.n for _, b in known), default=0)
    )


def _places(record: RunRecord, axis: Array, grid: Array) -> Array:
    return place(at(axis, record.trajectories.pi(), grid), SOLID)


def _position_words(x: float, against: str) -> str:
    return f"step {x:g}" if against == "step" else f"loss {-x:.3g}"


def _heads_trace(record: RunRecord, points: Array, i: int) -> Any:
    import plotly.graph_objects as go

    run = record.trajectories
    words = [
        f"{escape(record.label)}<br>{head_label(int(la), int(h))}" for la, h in zip(run.layer, run.head, strict=True)
    ]
    mark = {"size": 4, "color": colour(i), "symbol": plotly_mark(i, solid=True)}
    x, y, z = points.T
    return go.Scatter3d(
        x=x, y=y, z=z, mode="markers", name=escape(record.label), text=words, hoverinfo="text", marker=mark
    )


def _frame_traces() -> list[Any]:
    import plotly.graph_objects as go

    def line(points: Array, **style: Any) -> Any:
        x, y, z = points.T
        return go.Scatter3d(x=x, y=y, z=z, mode="lines", hoverinfo="skip", line=style, showlegend=False)

    edges = [line(SOLID[list(edge)], color="#999999", width=2) for edge in EDGES]
    x, y, z = (1.1 * SOLID).T
    words = go.Scatter3d(x=x, y=y, z=z, mode="text", text=VERTEX_WORDS, hoverinfo="skip", showlegend=False)
    x, y, z = place(MIDDLE, SOLID)[:, None]
    middle = go.Scatter3d(
        x=x, y=y, z=z, mode="markers", name="M: chance", marker={"color": THETA_RED, "symbol": "square", "size": 5}
    )
    return [*edges, line(place(THETA, SOLID), color=THETA_RED, width=6), words, middle]


_HIDDEN = {"visible": False}
_CAMERA = {"eye": {"x": -1.15, "y": -0.75, "z": 0.55}}
_SCENE = {"xaxis": _HIDDEN, "yaxis": _HIDDEN, "zaxis": _HIDDEN, "aspectmode": "data", "camera": _CAMERA}


_PLAY = {
    "type": "buttons",
    "showactive": False,
    "buttons": [{"label": "▶ play", "method": "animate", "args": [None, {"frame": {"duration": 350}}]}],
}


def _slider(names: Sequence[str]) -> dict[str, Any]:
    options = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    steps = [{"method": "animate", "label": name, "args": [[name], options]} for name in names]
    return {"active": len(names) - 1, "steps": steps, "pad": {"t": 10}}


def _band_traces(band: Band, x: Array, i: int) -> list[Any]:
    import plotly.graph_objects as go

    name = f"{escape(band.group)} ({band.n} run{'s' if band.n > 1 else ''})"
    known = ~np.isnan(band.middle)
    x, low, middle, high = x[known], band.low[known], band.middle[known], band.high[known]
    line = {"color": colour(i), "dash": dash(i), "width": 2.5}
    curve = go.Scatter(
        x=x,
        y=middle,
        mode="lines+markers",
        name=name,
        line=line,
        marker={"symbol": plotly_mark(i), "size": 6},
        legendgroup=i,
    )
    if band.n < 2:
        return [curve]
    around = go.Scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        mode="lines",
        fill="toself",
        fillcolor=f"rgba({','.join(str(int(colour(i)[k : k + 2], 16)) for k in (1, 3, 5))},0.2)",
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        legendgroup=i,
    )
    return [around, curve]
