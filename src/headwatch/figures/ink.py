"""Plain drawing on a matplotlib figure: the same in every style that a user may have set, and cheap.

Ticks and colour bars of matplotlib cost milliseconds each; beside training, labels are written as bare text instead.
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

__all__ = ["FAINT", "INK", "Box", "bare_axes", "new_figure", "printable", "write"]

INK = "#1a1a1a"
FAINT = "#555555"

Box = tuple[float, float, float, float]


def new_figure(width: float, height: float, dpi: int = 100) -> Figure:
    """A white figure (inches) that no pyplot knows of."""
    figure = Figure(figsize=(width, height), dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def bare_axes(figure: Figure, box: Box, x: tuple[float, float], y: tuple[float, float], *, equal: bool = False) -> Axes:
    """Axes without frame and ticks, with fixed limits."""
    axes = figure.add_axes(box)
    axes.axis("off")
    axes.set(xlim=x, ylim=y, autoscale_on=False, aspect="equal" if equal else "auto")
    return axes


def write(where: Axes | Figure, x: float, y: float, text: str, **style: Any) -> Text:
    """Text that is printed as it stands (no mathtext, no TeX), in ink unless told otherwise."""
    defaults: dict[str, Any] = {"color": INK, "fontfamily": "DejaVu Sans", "parse_math": False, "usetex": False}
    return where.text(x, y, printable(text), **(defaults | style))


def printable(text: str) -> str:
    """Text with the signs that the font lacks replaced.

    >>> printable("pairing score 𝒫")
    'pairing score P'
    """
    return text.replace("𝒫", "P")
