"""How runs and groups are told apart: colour (Okabe and Ito) and shape together, so that either alone will do."""

from __future__ import annotations

__all__ = ["colour", "dash", "mpl_dash", "mpl_mark", "plotly_mark"]

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#b8a800")
_PLOTLY = ("circle", "square", "triangle-up", "diamond", "triangle-down", "pentagon", "cross", "star")
_SOLID = ("circle", "square", "diamond", "cross", "x", "circle-open", "square-open", "diamond-open")
_MPL = ("o", "s", "^", "D", "v", "p", "P", "*")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MPL_DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 2, 2, 2)))


def _shift(i: int) -> int:
    """Shapes move on by one with every round of the colours: 64 pairs before one comes twice."""
    return i % len(_COLOURS) + i // len(_COLOURS)


def colour(i: int) -> str:
    """Colour of the i-th run or group."""
    return _COLOURS[i % len(_COLOURS)]


def plotly_mark(i: int, *, solid: bool = False) -> str:
    """Plotly's name of the i-th mark; ``solid``: in three dimensions, where it has fewer."""
    marks = _SOLID if solid else _PLOTLY
    return marks[_shift(i) % len(marks)]


def mpl_mark(i: int) -> str:
    """Matplotlib's name of the i-th mark."""
    return _MPL[_shift(i) % len(_MPL)]


def dash(i: int) -> str:
    """Plotly's name of the i-th dash."""
    return _DASHES[_shift(i) % len(_DASHES)]


def mpl_dash(i: int) -> str | tuple[int, tuple[int, ...]]:
    """Matplotlib's i-th dash."""
    return _MPL_DASHES[_shift(i) % len(_MPL_DASHES)]
