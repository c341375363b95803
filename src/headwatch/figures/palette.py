"""Colours and marks that can be told apart by every eye, and in black and white."""

from __future__ import annotations

__all__ = ["LAYER_MARKS", "MISSING", "THETA_RED", "TYPE_COLOURS", "TYPE_MARKS", "TYPE_WORDS", "layer_colour"]

THETA_RED = "#d62728"
MISSING = "#d9d9d9"

TYPE_COLOURS = {"I+": "#1f77b4", "II": "#e07a00", "I-": "#5b5b5b"}
TYPE_MARKS = {"I+": "^", "II": "o", "I-": "v"}
TYPE_WORDS = {"I+": "I+ attends to the like", "II": "II balanced", "I-": "I− attends to the unlike"}

LAYER_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")

_VIRIDIS = ((68, 1, 84), (65, 68, 135), (42, 120, 142), (34, 168, 132), (122, 209, 81), (229, 200, 32))


def layer_colour(layer: int, n_layers: int) -> str:
    """A colour from dark to light with depth, as ``#rrggbb``.

    >>> layer_colour(0, 12), layer_colour(11, 12)
    ('#440154', '#e5c820')
    """
    at = (len(_VIRIDIS) - 1) * layer / max(n_layers - 1, 1)
    low = min(int(at), len(_VIRIDIS) - 2)
    mixed = (round(x + (y - x) * (at - low)) for x, y in zip(_VIRIDIS[low], _VIRIDIS[low + 1], strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)
