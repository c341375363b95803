"""``headwatch budgets``: export a run's KV budgets as plain files, with a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headwatch.budgets import Budgets

__all__ = ["register"]

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory, or a directory of saved budgets.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Where to write; RUN/budgets by default.")]
Alpha = Annotated[
    float | None,
    typer.Option("--floor", min=0, max=1, help="Least share of the mean that a head keeps; 0.2, or 0.5 below 15 %."),
]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("budgets", help="Export KV-cache budgets: prune ratios [99, layers, KV heads], JSON and a picture.")(
        _budgets
    )


def _budgets(run: Run, output: Output = None, floor: Alpha = None) -> None:
    from headwatch.budgets import Budgets
    from headwatch.figures.budgets import export_budgets
    from headwatch.run import load

    source = run if (run / "kept.npy").is_file() else load(run).path / "budgets"
    budgets = Budgets.load(source)
    target = export_budgets(budgets, output or source, floor)
    _print(budgets, floor)
    typer.echo(f"{target}: prune_ratios.npy, budgets.json, budgets.png")


def _print(budgets: Budgets, floor: float | None) -> None:
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    kept, gap = 1 - budgets.prune_ratios(floor), budgets.gap(0.5)
    table = Table("head", *(f"{rate} % kept" for rate in (50, 25, 12)), "gap at 50 %", title="most and least kept")
    order = np.argsort(-gap, axis=None, kind="stable")
    shown = order if order.size <= 12 else np.concatenate((order[:6], order[-6:]))
    for place in shown:
        layer, head = np.unravel_index(place, gap.shape)
        shares = (f"{kept[100 - rate - 1, layer, head]:.2f}" for rate in (50, 25, 12))
        table.add_row(f"L{layer:02d}.KV{head:02d}", *shares, f"{gap[layer, head]:+.2f}")
    Console().print(table)
