"""Figures over tables: one picture per snapshot, plotly figures for notebooks, static ones for papers.

Names are loaded on first use: matplotlib beside training, plotly in notebooks and pages only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwatch.figures.composite import composite_figure, composite_png

__all__ = ["composite_figure", "composite_png"]

_HOMES = {"composite_figure": "composite", "composite_png": "composite"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
