"""``headwatch report``: everything that a run's store holds, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]

Runs = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory, or one that holds exactly one run.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The page to write; RUN/report.html by default.")]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("report", help="Write a run's report: one self-contained HTML page.")(_report)


def _report(run: Runs, output: Output = None) -> None:
    from headwatch.report import write_report
    from headwatch.run import load

    opened = load(run)
    path = write_report(opened, output)
    typer.echo(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    if opened.is_live:
        typer.echo("The run is still going: the page shows what was there now. `headwatch watch` follows it.")
