"""The picture of KV budgets: how much of its keys each head keeps, at three rates."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from headwatch.budgets import COMPRESSION, Array, Budgets, floored
from headwatch.figures.heatmaps import short_number
from headwatch.figures.ink import FAINT, Box, bare_axes, new_figure, write

__all__ = ["budgets_figure", "budgets_png", "export_budgets"]

_RATES = (0.5, 0.25, 0.12)
_X, _Y = (-0.16, 1.04), (-0.12, 1.22)


def budgets_figure(budgets: Budgets, alpha: float | None = None, title: str = "") -> Figure:
    """Kept share per head at 50, 25 and 12 %, and the gap to reading attention, as layer × head maps."""
    figure = new_figure(15, 4.2)
    kept = floored(budgets.kept, alpha=alpha)
    width = 1 / (len(_RATES) + 1)
    for i, rate in enumerate(_RATES):
        cells = kept[int(np.abs(COMPRESSION - (1 - rate)).argmin())]
        words = "share of its keys that a head keeps; the mean is the rate"
        _map(figure, (i * width, 0, width, 0.92), cells, "cividis", (0, 1), f"{100 * rate:g} % kept", words)
    box = (len(_RATES) * width, 0, width, 0.92)
    _map(figure, box, budgets.gap(0.5), "RdBu_r", (-1, 1), "gap at 50 %", "look-back minus reading; high: it retrieves")
    write(figure, 0.01, 0.95, title or "KV budgets from look-back attention", fontsize=13, fontweight="bold")
    return figure


def budgets_png(budgets: Budgets, alpha: float | None = None, title: str = "") -> bytes:
    """The picture as PNG."""
    buffer = io.BytesIO()
    budgets_figure(budgets, alpha, title).savefig(buffer, format="png")
    return buffer.getvalue()


def export_budgets(budgets: Budgets, directory: Path, alpha: float | None = None) -> Path:
    """Write the files of :meth:`Budgets.save` and ``budgets.png``."""
    directory = budgets.save(directory, alpha)
    (directory / "budgets.png").write_bytes(budgets_png(budgets, alpha, str(budgets.metadata.get("model", ""))))
    return directory


def _map(
    figure: Figure, box: Box, cells: Array, colours: str, limits: tuple[float, float], title: str, words: str
) -> None:
    axes = bare_axes(figure, box, _X, _Y)
    scaled = np.clip((cells - limits[0]) / (limits[1] - limits[0]), 0, 1)
    shades = colormaps[colours](scaled)
    axes.imshow(shades, extent=(0, 1, 0, 1), aspect="auto", interpolation="nearest")
    axes.set(xlim=_X, ylim=_Y)
    write(axes, 0, 1.12, title, fontsize=12, fontweight="bold")
    write(axes, 0, 1.035, words, fontsize=8.5, color=FAINT)
    layers, heads = cells.shape
    for layer in range(0, layers, -(-layers // 8)):
        write(axes, -0.015, 1 - (layer + 0.5) / layers, f"L{layer:02d}", ha="right", va="center", fontsize=8.5)
    for head in range(0, heads, -(-heads // 8)):
        write(axes, (head + 0.5) / heads, -0.02, f"KV{head:02d}", ha="center", va="top", fontsize=8.5)
    if cells.size <= 64:
        for (layer, head), value in np.ndenumerate(cells):
            ink = "black" if shades[layer, head, :3] @ (0.3, 0.59, 0.11) > 0.5 else "white"
            place = ((head + 0.5) / heads, 1 - (layer + 0.5) / layers)
            write(axes, *place, short_number(float(value)), ha="center", va="center", fontsize=9.5, color=ink)
