"""Figures over tables: one picture per snapshot, plotly figures for notebooks, static ones for papers.

Names are loaded on first use: matplotlib beside training, plotly in notebooks and pages only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwatch.figures.composite import composite_figure, composite_png
    from headwatch.figures.interactive import (
        drift_against_loss,
        heat_map,
        profile_against_signature,
        simplex_3d,
        trajectories,
    )
    from headwatch.figures.paper import paper_tetrahedron, paper_trajectories, paper_triangle

__all__ = [
    "composite_figure",
    "composite_png",
    "drift_against_loss",
    "heat_map",
    "paper_tetrahedron",
    "paper_trajectories",
    "paper_triangle",
    "profile_against_signature",
    "simplex_3d",
    "trajectories",
]

_HOMES = {
    **dict.fromkeys(("composite_figure", "composite_png"), "composite"),
    **dict.fromkeys(("paper_tetrahedron", "paper_trajectories", "paper_triangle"), "paper"),
    **dict.fromkeys(
        ("drift_against_loss", "heat_map", "profile_against_signature", "simplex_3d", "trajectories"), "interactive"
    ),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
