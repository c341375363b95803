"""``headwatch replay``: a trajectory from the checkpoints of a run that was trained before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from headwatch.commands.profile import (
    Biases,
    Exclude,
    Heads,
    Include,
    Keep,
    KeyHeads,
    Null,
    Report,
    Root,
    print_places,
    reading_of,
    run_name,
)

__all__ = ["register"]

Checkpoints = Annotated[
    list[Path], typer.Argument(metavar="CKPT...", help="Checkpoints of one model, or a directory that holds them.")
]
Name = Annotated[str, typer.Option("--name", help="Name of the run; that of the checkpoints' directory by default.")]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Processes.")]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("replay", help="Profile a series of checkpoints into one trajectory; goes on where it was ended.")(
        _replay
    )


def _replay(
    checkpoints: Checkpoints,
    jobs: Jobs = 1,
    n_heads: Heads = None,
    n_kv_heads: KeyHeads = None,
    directory: Root = Path("."),
    name: Name = "",
    include: Include = None,
    exclude: Exclude = None,
    biases: Biases = False,
    null: Null = True,
    report: Report = True,
    save_weights: Keep = False,
) -> None:
    from headwatch.replay import items_of, replay

    reading = reading_of(n_heads, n_kv_heads, include, exclude, biases, null, save_weights)
    items = items_of(checkpoints)
    name = name or run_name(items[0].path.parent)
    run_directory = directory / "headwatch" / name
    with _bar(len(items)) as progress:
        replay(items, run_directory, reading, name=name, jobs=jobs, progress=progress)
    first, last = items[0].step, items[-1].step
    typer.echo(
        f"{len(items)} checkpoints, steps {first} to {last}" if len(items) > 1 else f"1 checkpoint, step {first}"
    )
    print_places(run_directory, report)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int, int], None]]:
    """A progress bar; yields what moves it to (done, of how many)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("checkpoints"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("replay", total=total)
        yield lambda done, of: bar.update(task, completed=done, total=of)
