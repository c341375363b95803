"""``headwatch compare``: several runs on one page and in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["register"]

Runs = Annotated[
    list[str],
    typer.Argument(help="Run directories, directories that hold runs, or wandb:entity/project/run; two to fifty runs."),
]
GroupBy = Annotated[str | None, typer.Option("--group-by", help="Dotted key of the configuration, e.g. optimizer.lr.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")]
AgainstOption = Annotated[str, typer.Option("--against", help="Shared axis: step or loss.")]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(
        "compare", help="Compare runs: which heads moved differently, where, when, and is it more than chance."
    )(_compare)


def _compare(
    runs: Runs,
    group_by: GroupBy = None,
    output: Output = Path("headwatch-compare.html"),
    against: AgainstOption = "step",
) -> None:
    from rich.console import Console

    from headwatch.comparison import compare
    from headwatch.comparison.terminal import print_comparison

    axis = _axis(against)
    with Console(stderr=True).status("comparing runs: fifty of a thousand heads take a minute or two"):
        comparison = compare(runs, group_by=group_by, output=output, against=axis)
    print_comparison(comparison)


def _axis(against: str) -> Literal["step", "loss"]:
    if against == "step":
        return "step"
    if against == "loss":
        return "loss"
    raise ValueError(f"--against: expected step or loss, found {against!r}.")
