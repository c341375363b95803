"""Plotly figures of a run, for notebooks: each takes a run (or its tables) and returns a ``plotly`` figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headwatch.figures.grid import HeadGrid
from headwatch.figures.interactive_simplex import simplex_3d
from headwatch.figures.palette import TYPE_COLOURS, TYPE_WORDS, layer_colour
from headwatch.figures.source import Source, grid_of, kind_of
from headwatch.metrics import HEAD_TYPES, REGISTRY, check_metrics

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

__all__ = ["drift_against_loss", "heat_map", "profile_against_signature", "simplex_3d", "trajectories"]

_SYMBOLS = {"I+": "triangle-up", "II": "circle", "I-": "triangle-down"}
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def trajectories(source: Source, metric: str = "stable_rank", *, layers: Sequence[int] | None = None) -> Figure:
    """One line per head over the steps; colour and dash tell the layer.

    Args:
        source: a run, or a profile or signature table.
        metric: a column of the registry.
        layers: only these.
    """
    from plotly import graph_objects as go

    grid = grid_of(source, kind_of(metric))
    values = grid.matrix(metric)
    lines = [_line(grid, i, values[:, i]) for i in _heads_of(grid, layers)]
    seen: set[str] = set()
    for line in lines:
        line.showlegend = line.legendgroup not in seen
        seen.add(line.legendgroup)
    return go.Figure(lines).update_layout(**_axes("optimizer step", REGISTRY[metric].title))


def heat_map(source: Source, metric: str = "stable_rank", *, step: int | None = None) -> Figure:
    """A metric as layer × head at one snapshot: the last one at or before ``step``, or the last of all."""
    from plotly import graph_objects as go

    check_metrics([metric], kind_of(metric))
    grid = grid_of(source, kind_of(metric))
    at = grid.at(step)
    cells = grid.layers_by_heads(grid.matrix(metric)[at])
    signed = bool(np.nanmin(cells, initial=0.0) < 0 < np.nanmax(cells, initial=0.0))
    reach = float(np.nanmax(np.abs(cells), initial=1e-12))
    figure = go.Figure(
        go.Heatmap(
            z=cells,
            x=[f"H{head:02d}" for head in range(cells.shape[1])],
            y=[f"L{layer:02d}" for layer in np.unique(grid.layer)],
            colorscale="RdBu_r" if signed else "Cividis",
            zmin=-reach if signed else None,
            zmax=reach if signed else None,
            hoverongaps=False,
            hovertemplate="%{y}.%{x}: %{z:.4g}<extra></extra>",
        )
    )
    title = f"{REGISTRY[metric].title}, step {int(grid.steps[at])}"
    return figure.update_layout(title=title, template="plotly_white", yaxis_autorange="reversed")


def drift_against_loss(source: Source, metric: str = "drift") -> Figure:
    """Median and 10–90 % band over heads of a metric, against the trainer's own loss at the snapshot."""
    from plotly import graph_objects as go

    grid = grid_of(source, kind_of(metric))
    loss, values = grid.per_step("loss"), grid.matrix(metric)
    known = np.isfinite(loss) & np.isfinite(values).any(axis=1)
    low, middle, high = (np.nanquantile(values[known], q, axis=1) for q in (0.1, 0.5, 0.9))
    spread = {"type": "data", "symmetric": False, "array": high - middle, "arrayminus": middle - low, "width": 0}
    line = go.Scatter(
        x=loss[known],
        y=middle,
        error_y={**spread, "thickness": 0.8},
        customdata=grid.steps[known],
        mode="lines+markers",
        hovertemplate="step %{customdata}<br>loss %{x:.4g}<br>median %{y:.4g}<extra></extra>",
    )
    figure = go.Figure(line).update_layout(**_axes("training loss (falling to the right)", REGISTRY[metric].title))
    return figure.update_xaxes(autorange="reversed")


def profile_against_signature(
    profile: Source,
    signature: Source | None = None,
    *,
    y: str = "stable_rank",
    x: str = "n_eff",
    step: int | None = None,
) -> Figure:
    """One mark per head: does it become rank-one when it becomes peaked?

    Args:
        profile: a run, or its profile table.
        signature: a signature table; the run's own where ``profile`` is a run.
        y, x: metrics of the profile and of the signature.
        step: the snapshot, the last of both by default.
    """
    from plotly import graph_objects as go

    one, other = grid_of(profile, "profile"), grid_of(profile if signature is None else signature, "signature")
    at, beside = one.at(step), other.at(step)
    column = {label: i for i, label in enumerate(other.labels)}
    both = [i for i, label in enumerate(one.labels) if label in column]
    across = other.matrix(x)[beside, [column[one.labels[i]] for i in both]]
    up, types = one.matrix(y)[at, both], one.matrix("head_type")[at, both]
    names = np.array(one.labels)[both]
    marks = [_cloud(across[types == c], up[types == c], names[types == c], name) for c, name in enumerate(HEAD_TYPES)]
    return go.Figure(marks).update_layout(**_axes(REGISTRY[x].title, REGISTRY[y].title))


def _line(grid: HeadGrid, i: int, values: np.ndarray) -> Scatter:
    from plotly import graph_objects as go

    layers = np.unique(grid.layer)
    place_ = int(np.searchsorted(layers, grid.layer[i]))
    return go.Scatter(
        x=grid.steps,
        y=values,
        mode="lines+markers",
        name=f"L{grid.layer[i]:02d}",
        legendgroup=str(place_),
        text=[grid.labels[i]] * len(values),
        line={"color": layer_colour(place_, len(layers)), "dash": _DASHES[place_ % len(_DASHES)], "width": 1.4},
        marker={"size": 3},
        hovertemplate="%{text}<br>step %{x}: %{y:.4g}<extra></extra>",
    )


def _cloud(x: np.ndarray, y: np.ndarray, names: np.ndarray, type_: str) -> Scatter:
    from plotly import graph_objects as go

    marker = {"color": TYPE_COLOURS[type_], "symbol": _SYMBOLS[type_], "size": 10}
    shown = {"mode": "markers", "name": TYPE_WORDS[type_], "marker": marker, "text": names}
    return go.Scatter(x=x, y=y, **shown, hovertemplate="%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>")


def _heads_of(grid: HeadGrid, layers: Sequence[int] | None) -> list[int]:
    return [i for i, layer in enumerate(grid.layer) if layers is None or int(layer) in layers]


def _axes(x: str, y: str) -> dict[str, object]:
    return {"template": "plotly_white", "xaxis_title": x, "yaxis_title": y, "height": 460}
