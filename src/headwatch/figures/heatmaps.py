"""Layer × head heat maps drawn by matplotlib, with ranges that stay put while a run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, PowerNorm
from matplotlib.figure import Figure

from headwatch.figures.grid import HeadGrid
from headwatch.figures.ink import FAINT, Box, bare_axes, write
from headwatch.figures.palette import MISSING
from headwatch.metrics import REGISTRY

__all__ = ["PROFILE_MAPS", "SIGNATURE_MAPS", "MapSpec", "draw_map", "short_number"]


@dataclass(frozen=True)
class MapSpec:
    """How one metric is painted: its scale and its range (high None: from the run's first snapshot)."""

    key: str
    scale: Literal["linear", "root", "log", "signed"]
    low: float = 0.0
    high: float | None = None
    words: str = ""

    def norm(self, first: np.ndarray) -> Normalize:
        """The colour scale, given the metric in the run's first snapshot."""
        finite = first[np.isfinite(first)]
        high = self.high if self.high is not None else float(finite.max()) if finite.size else self.low + 1.0
        if self.scale == "log":
            return LogNorm(self.low, max(high, self.low * 1.5), clip=True)
        if self.scale == "root":
            return PowerNorm(0.5, self.low, high, clip=True)
        return Normalize(-high if self.scale == "signed" else self.low, high, clip=True)

    @property
    def colours(self) -> str:
        """Name of the colour map."""
        return "RdBu_r" if self.scale == "signed" else "cividis"


PROFILE_MAPS = (
    MapSpec("stable_rank", "log", low=1.0, words="1 = rank one"),
    MapSpec("theta_distance", "root", high=0.25, words="0 at the start as well"),
    MapSpec("theta_position", "signed", high=1.0, words="−: d, +: c"),
    MapSpec("pairing", "linear", high=1.0, words="near 1 by chance"),
)
SIGNATURE_MAPS = (
    MapSpec("n_eff", "linear", high=1.0, words="1 = uniform attention"),
    MapSpec("mutual_information", "linear", high=2.5, words="nats above uniform"),
)


def draw_map(figure: Figure, box: Box, grid: HeadGrid, first: HeadGrid, spec: MapSpec) -> None:
    """One heat map in the box, with title, scale and labels; cells carry their numbers when there are few."""
    cells = grid.layers_by_heads(grid.matrix(spec.key)[-1])
    norm = spec.norm(first.matrix(spec.key)[0])
    axes = bare_axes(figure, box, (-0.12, 1.13), (-0.09, 1.2))
    paint = colormaps[spec.colours].with_extremes(bad=MISSING)
    shades = paint(norm(np.ma.masked_invalid(cells)))
    axes.imshow(shades, extent=(0, 1, 0, 1), aspect="auto", interpolation="nearest")
    write(axes, -0.12, 1.125, REGISTRY[spec.key].title, fontsize=12, fontweight="bold")
    write(axes, -0.12, 1.04, f"median {_median(cells)}  ({spec.words})", fontsize=9.5, color=FAINT)
    _draw_scale(axes, norm, spec)
    _label_cells(axes, grid, cells.shape)
    if cells.size <= 36:
        _write_numbers(axes, cells, norm, spec)
    elif spec.scale == "signed" and cells.size <= 600:
        _mark_negative(axes, cells)


def _draw_scale(axes: Axes, norm: Normalize, spec: MapSpec) -> None:
    low, high = float(norm.vmin or 0.0), float(norm.vmax or 1.0)
    shades = norm.inverse(np.linspace(1, 0, 64))[:, None]
    axes.imshow(shades, norm=norm, cmap=spec.colours, extent=(1.02, 1.05, 0, 1), aspect="auto")
    for value in (low, float(norm.inverse(0.5)), high):
        write(axes, 1.06, float(norm(value)), short_number(value).removesuffix(".0"), va="center", fontsize=8)
    axes.set(xlim=(-0.12, 1.13), ylim=(-0.09, 1.2))


def _label_cells(axes: Axes, grid: HeadGrid, shape: tuple[int, ...]) -> None:
    layers, (rows, columns) = np.unique(grid.layer), shape
    for row in range(0, rows, -(-rows // 8)):
        write(axes, -0.01, 1 - (row + 0.5) / rows, f"L{layers[row]:02d}", ha="right", va="center", fontsize=8.5)
    for column in range(0, columns, -(-columns // 8)):
        write(axes, (column + 0.5) / columns, -0.015, f"H{column:02d}", ha="center", va="top", fontsize=8.5)


def _write_numbers(axes: Axes, cells: np.ndarray, norm: Normalize, spec: MapSpec) -> None:
    paint, (rows, columns) = colormaps[spec.colours], cells.shape
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            ink = "black" if _brightness(paint(norm(value))) > 0.5 else "white"
            place = ((column + 0.5) / columns, 1 - (row + 0.5) / rows)
            write(axes, *place, short_number(value), ha="center", va="center", fontsize=10, color=ink)


def _mark_negative(axes: Axes, cells: np.ndarray) -> None:
    """A dash in every negative cell, so that the sign is seen without colour."""
    row, column = np.nonzero(cells < -0.02)
    rows, columns = cells.shape
    size = 900 / cells.size
    axes.scatter((column + 0.5) / columns, 1 - (row + 0.5) / rows, s=size, marker="_", color="black", linewidth=1)


def _brightness(colour: tuple[float, float, float, float]) -> float:
    return 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2]


def short_number(value: float) -> str:
    """Two significant digits, without a leading zero.

    >>> short_number(0.0213), short_number(-0.5), short_number(11.24), short_number(0.0)
    ('.021', '−.50', '11', '0')
    """
    if value == 0:
        return "0"
    digits = 0 if abs(value) >= 10 else 1 if abs(value) >= 1 else 2 if abs(value) >= 0.1 else 3
    text = f"{abs(value):.{digits}f}"
    return ("−" if value < 0 else "") + (text.removeprefix("0") if abs(value) < 1 else text)


def _median(cells: np.ndarray) -> str:
    finite = cells[np.isfinite(cells)]
    return short_number(float(np.median(finite))) if finite.size else "missing"
