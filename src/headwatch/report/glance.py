"""The numbers that a reader wants first, each with what it does and does not mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np

from headwatch.figures.grid import HeadGrid

__all__ = ["Tile", "glance", "tiles_html"]


@dataclass(frozen=True)
class Tile:
    """One number in large print: what it is, its value, and how to read it."""

    label: str
    value: str
    why: str


def glance(profile: HeadGrid | None, signature: HeadGrid | None) -> list[Tile]:
    """Tiles of a run, in reading order."""
    tiles = [*_profile_tiles(profile)] if profile is not None else []
    return tiles + ([*_signature_tiles(signature)] if signature is not None else [])


def tiles_html(tiles: list[Tile]) -> str:
    """The tiles as HTML, escaped."""
    return '<div class="tiles">' + "".join(map(_tile_html, tiles)) + "</div>"


def _tile_html(tile: Tile) -> str:
    parts = (("label", tile.label), ("value", tile.value), ("why", tile.why))
    return (
        '<div class="tile">' + "".join(f'<div class="{name}">{escape(text)}</div>' for name, text in parts) + "</div>"
    )


def _profile_tiles(grid: HeadGrid) -> Iterator[Tile]:
    first, last = int(grid.steps[0]), int(grid.steps[-1])
    yield Tile("heads", f"{grid.shape[1]:,}", f"in {len(np.unique(grid.layer))} layers; steps {first:,} to {last:,}")
    yield _chance(grid)
    yield Tile("median stable rank", _from_to(grid, "stable_rank"), "falls to 1 when one direction takes over a head")
    rank = grid.matrix("stable_rank")[-1]
    low = f"{int((rank < 2).sum())} of {len(rank)}"
    yield Tile("heads of stable rank below 2", low, "close to rank one, whatever their place in the simplex")
    yield Tile("median |position on Θ|", _from_to(grid, "theta_position", absolute=True), "0 at M; 1 at vertex c or d")
    yield Tile(
        "median distance to Θ",
        _from_to(grid, "theta_distance"),
        "near 0 from the start, for M lies on Θ: says nothing alone",
    )
    yield Tile(
        "median pairing score", _from_to(grid, "pairing"), "near 1 by chance; falls as the spectrum takes a sign"
    )
    yield _furthest(grid)
    yield Tile(
        "parity flips", str(_flips(grid.matrix("parity"))), "times a head changed between the c side and the d side"
    )
    yield Tile("training loss", _change(grid.per_step("loss")), "the trainer's own, at the snapshots")
    overhead = grid.per_step("overhead")[-1]
    if np.isfinite(overhead):
        yield Tile("own overhead", f"{100 * overhead:.2g} %", "share of training time that headwatch blocked")


def _signature_tiles(grid: HeadGrid) -> Iterator[Tile]:
    yield Tile("median effective share of keys", _from_to(grid, "n_eff"), "1 is uniform attention under the same mask")
    yield Tile("median row entropy", f"{_from_to(grid, 'row_entropy')} nats", "towards 0: entropy collapse")


def _chance(grid: HeadGrid) -> Tile:
    if not grid.has("beyond_null"):
        return Tile("heads beyond chance", "–", "no null was simulated for this run")
    beyond = int(np.nansum(grid.matrix("beyond_null")[-1]))
    return Tile("heads beyond chance", f"{beyond} of {grid.shape[1]}", "outside what random weights of this shape give")


def _furthest(grid: HeadGrid) -> Tile:
    drift = grid.matrix("drift")[-1]
    if not np.isfinite(drift).any():
        return Tile("furthest head", "–", "drift is not known")
    at = int(np.nanargmax(drift))
    return Tile("furthest head", f"{grid.labels[at]} {_number(drift[at])}", "largest drift from its own first snapshot")


def _flips(parity: np.ndarray) -> int:
    """Changes of sign along each head's snapshots, zeros and gaps passed over."""
    signs = [column[np.isfinite(column) & (column != 0)] for column in parity.T]
    return sum(int((signed[1:] != signed[:-1]).sum()) for signed in signs)


def _from_to(grid: HeadGrid, key: str, *, absolute: bool = False) -> str:
    values = np.abs(grid.matrix(key)) if absolute else grid.matrix(key)
    return _change(np.array([_median(row) for row in values]))


def _change(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    return f"{_number(known[0])} → {_number(known[-1])}" if known.size else "–"


def _median(row: np.ndarray) -> float:
    known = row[np.isfinite(row)]
    return float(np.median(known)) if known.size else np.nan


def _number(value: float) -> str:
    """Two digits below 1, three above."""
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"
