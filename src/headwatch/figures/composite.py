"""The picture of one snapshot: the simplex with all heads, and layer × head heat maps.

Drawn beside training on a worker thread, so without pyplot and its global state. Axes and colour ranges are fixed by
the run's first snapshot, so that a step slider plays smoothly.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from headwatch.figures.grid import HeadGrid
from headwatch.figures.heatmaps import PROFILE_MAPS, SIGNATURE_MAPS, draw_map
from headwatch.figures.ink import FAINT, new_figure, write
from headwatch.figures.notes import table_notes
from headwatch.figures.panels import draw_flat_simplex, draw_legend, draw_near_middle, draw_two_drifts

__all__ = ["composite_figure", "composite_png"]

_FOOT = (
    "Distance to Θ starts near 0: a random head sits at M, which lies on Θ. "
    "Read it with the position on Θ and the stable rank.  Light grey: missing."
)


def composite_figure(
    table: pa.Table,
    trails: Sequence[pa.Table] = (),
    *,
    title: str = "",
    notes: Sequence[str] = (),
    signature: pa.Table | None = None,
) -> Figure:
    """The composite figure (1400 × 800 px at 100 dpi).

    Args:
        table: profile rows of one snapshot.
        trails: earlier snapshots, oldest first; the first should be the run's first, it fixes the ranges.
        title: name of the run.
        notes: more words for the reader, beside those that the flags give.
        signature: signature rows of the same step; adds their heat maps.
    """
    grid = HeadGrid.of(table)
    past = [HeadGrid.of(trail) for trail in trails]
    figure = new_figure(14, 8)
    _write_heading(figure, grid, title, [*table_notes(grid.table), *notes])
    draw_flat_simplex(figure, (0.012, 0.40, 0.43, 0.48), grid, past)
    draw_near_middle(figure, (0.298, 0.63, 0.147, 0.257), grid, past)
    draw_legend(figure, (0.015, 0.735, 0.16, 0.15), grid)
    draw_two_drifts(figure, (0.06, 0.095, 0.365, 0.26), grid, past)
    _draw_maps(figure, grid, past, signature)
    write(figure, 0.015, 0.013, _FOOT, fontsize=9.5, color=FAINT)
    return figure


def composite_png(
    table: pa.Table,
    trails: Sequence[pa.Table] = (),
    *,
    title: str = "",
    notes: Sequence[str] = (),
    signature: pa.Table | None = None,
) -> bytes:
    """The composite figure as PNG; arguments as of ``composite_figure``."""
    figure = composite_figure(table, trails, title=title, notes=notes, signature=signature)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", pil_kwargs={"compress_level": 4})
    return buffer.getvalue()


def _write_heading(figure: Figure, grid: HeadGrid, title: str, notes: Sequence[str]) -> None:
    loss = grid.per_step("loss")[-1]
    parts = [_shortened(title, 48), f"step {int(grid.steps[-1]):,}", f"{grid.shape[1]:,} heads"]
    parts += [f"training loss {loss:.3g}"] if np.isfinite(loss) else []
    if grid.has("beyond_null"):
        parts.append(f"{int(np.nansum(grid.matrix('beyond_null')[-1]))} beyond chance")
    missing = int(np.isnan(grid.matrix("a")[-1]).sum())
    notes = [*notes, f"{missing} heads without a profile"] if missing else notes
    write(figure, 0.015, 0.95, "  ·  ".join(part for part in parts if part), fontsize=18, fontweight="bold")
    write(figure, 0.015, 0.913, _shortened("  ·  ".join(notes), 190), fontsize=10.5, color="#9a3b00")


def _draw_maps(figure: Figure, grid: HeadGrid, past: Sequence[HeadGrid], signature: pa.Table | None) -> None:
    first = past[0] if past else grid
    maps = [(grid, first, spec) for spec in PROFILE_MAPS]
    if signature is not None:
        other = HeadGrid.of(signature)
        maps += [(other, other, spec) for spec in SIGNATURE_MAPS]
    columns = (len(maps) + 1) // 2
    width = 0.54 / columns
    for i, (source, reference, spec) in enumerate(maps):
        row, column = divmod(i, columns)
        draw_map(figure, (0.46 + column * width, 0.475 - row * 0.43, width - 0.006, 0.41), source, reference, spec)


def _shortened(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
