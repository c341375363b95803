"""The numbers that a reader wants first, each with what it does and does not mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np

from headwatch.figures.grid import HeadGrid
from headwatch.figures.notes import EMPTY_FLAGS, flag_words

__all__ = ["Tile", "glance", "tiles_html"]


@dataclass(frozen=True)
class Tile:
    """One number in large print: what it is, its value, and how to read it."""

    label: str
    value: str
    why: str


def glance(profile: HeadGrid | None, signature: HeadGrid | None) -> list[Tile]:
    """Tiles of a run, in reading order: what its last snapshot has, never what only an earlier one had."""
    tiles = [*_profile_tiles(profile)] if profile is not None else []
    tiles += [*_signature_tiles(signature)] if signature is not None else []
    return [*tiles, *_overhead(profile, signature)]


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
    yield from _without(grid, "a", "profile")
    yield _chance(grid)
    yield _from_to(grid, "stable_rank", "median stable rank", "falls to 1 when one direction takes over a head")
    yield _low_rank(grid)
    yield _from_to(grid, "theta_position", "median |position on Θ|", "0 at M; 1 at vertex c or d", absolute=True)
    yield _from_to(
        grid, "theta_distance", "median distance to Θ", "near 0 from the start, for M lies on Θ: says nothing alone"
    )
    yield _from_to(grid, "pairing", "median pairing score", "near 1 by chance; falls as the spectrum takes a sign")
    yield _furthest(grid)
    yield Tile(
        "parity flips", str(_flips(grid.matrix("parity"))), "times a head changed between the c side and the d side"
    )
    yield _change(grid, grid.per_step("loss"), "training loss", "the trainer's own, at the snapshots")


def _signature_tiles(grid: HeadGrid) -> Iterator[Tile]:
    yield from _without(grid, "n_eff", "signature")
    yield _from_to(grid, "n_eff", "median effective share of keys", "1 is uniform attention under the same mask")
    yield _from_to(grid, "row_entropy", "median row entropy", "towards 0: entropy collapse", unit=" nats")


def _without(grid: HeadGrid, key: str, noun: str) -> Iterator[Tile]:
    """Nothing where every head of the last snapshot has a value; else how many have none, and why."""
    known = np.isfinite(grid.matrix(key))
    if not known[-1].all():
        whole = np.flatnonzero(known.all(axis=1))
        last = f"all heads have one up to step {int(grid.steps[whole[-1]]):,}" if whole.size else "never of all heads"
        label = f"heads without a {noun} at the last snapshot"
        yield Tile(label, f"{int((~known[-1]).sum())} of {grid.shape[1]}", f"{_why_empty(grid, ~known[-1])}; {last}")


def _why_empty(grid: HeadGrid, empty: np.ndarray) -> str:
    texts = [text for text, is_empty in zip(grid.words_at("flags"), empty, strict=True) if is_empty]
    counts = Counter(flag for text in texts for flag in text.split(",") if flag in EMPTY_FLAGS)
    return ", ".join(f"{flag_words(flag)} ({count})" for flag, count in counts.most_common()) or "not measured"


def _chance(grid: HeadGrid) -> Tile:
    label = "heads beyond chance"
    if not grid.has("beyond_null"):
        return Tile(label, "–", "no null was simulated for this run")
    return _count(grid, grid.matrix("beyond_null")[-1] > 0, label, "outside what random weights of this shape give")


def _low_rank(grid: HeadGrid) -> Tile:
    low = grid.matrix("stable_rank")[-1] < 2
    return _count(grid, low, "heads of stable rank below 2", "close to rank one, whatever their place in the simplex")


def _count(grid: HeadGrid, counted: np.ndarray, label: str, why: str) -> Tile:
    """How many heads, of those that have a profile at the last snapshot."""
    known = np.isfinite(grid.matrix("a")[-1])
    if not known.any():
        return Tile(label, "–", f"no head has a profile at step {int(grid.steps[-1]):,}")
    return Tile(label, f"{int((counted & known).sum())} of {int(known.sum())}", why)


def _furthest(grid: HeadGrid) -> Tile:
    drift = grid.matrix("drift")[-1]
    if not np.isfinite(drift).any():
        return Tile("furthest head", "–", f"no drift is known at step {int(grid.steps[-1]):,}")
    at = int(np.nanargmax(drift))
    return Tile("furthest head", f"{grid.labels[at]} {_number(drift[at])}", "largest drift from its own first snapshot")


def _overhead(profile: HeadGrid | None, signature: HeadGrid | None) -> Iterator[Tile]:
    """The newest share; each row holds that of all monitors, and of one step the signature is measured last."""
    grids = [grid for grid in (signature, profile) if grid is not None]
    newest = max(grids, key=lambda grid: int(grid.steps[-1]), default=None)
    overhead = newest.per_step("overhead")[-1] if newest is not None else np.nan
    if np.isfinite(overhead):
        yield Tile("own overhead", f"{100 * overhead:.2g} %", "share of training time that headwatch blocked")


def _flips(parity: np.ndarray) -> int:
    """Changes of sign along each head's snapshots, zeros and gaps passed over."""
    signs = [column[np.isfinite(column) & (column != 0)] for column in parity.T]
    return sum(int((signed[1:] != signed[:-1]).sum()) for signed in signs)


def _from_to(grid: HeadGrid, key: str, label: str, why: str, *, absolute: bool = False, unit: str = "") -> Tile:
    values = np.abs(grid.matrix(key)) if absolute else grid.matrix(key)
    return _change(grid, np.array([_median(row) for row in values]), label, why, unit)


def _change(grid: HeadGrid, values: np.ndarray, label: str, why: str, unit: str = "") -> Tile:
    """From the first number there is to that of the last snapshot, which may have none."""
    known = np.flatnonzero(np.isfinite(values))
    if not known.size:
        return Tile(label, "–", why)
    first, last = _number(values[known[0]]), _number(values[known[-1]])
    if known[-1] == len(values) - 1:
        return Tile(label, f"{first} → {last}{unit}", why)
    gone = f"none at step {int(grid.steps[-1]):,}; {last}{unit} at step {int(grid.steps[known[-1]]):,}. "
    return Tile(label, f"{first} → none", gone + why[0].upper() + why[1:])


def _median(row: np.ndarray) -> float:
    known = row[np.isfinite(row)]
    return float(np.median(known)) if known.size else np.nan


def _number(value: float) -> str:
    """Two digits below 1, three above."""
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"
