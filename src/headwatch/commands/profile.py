"""``headwatch profile``: the heads of a trained model, from its weights alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headwatch.posthoc import Reading

__all__ = [
    "Biases",
    "Exclude",
    "Heads",
    "Include",
    "Keep",
    "KeyHeads",
    "Null",
    "Report",
    "Root",
    "print_places",
    "reading_of",
    "register",
    "run_name",
]

Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A safetensors file or directory, a HF model directory, a Lightning checkpoint."
    ),
]
Heads = Annotated[int | None, typer.Option("--n-heads", min=1, help="Query heads, where no config.json tells.")]
KeyHeads = Annotated[int | None, typer.Option("--n-kv-heads", min=1, help="Key-value heads, where they are fewer.")]
Root = Annotated[Path, typer.Option("--dir", help="Root of the store; the run lies in DIR/headwatch/NAME.")]
Name = Annotated[str, typer.Option("--name", help="Name of the run; that of MODEL by default.")]
Include = Annotated[list[str] | None, typer.Option("--include", help="Pattern of modules or heads, as 'L03.*'.")]
Exclude = Annotated[list[str] | None, typer.Option("--exclude", help="Pattern to leave out.")]
Biases = Annotated[bool, typer.Option("--biases", help="The form that includes the biases, on R^(N+1).")]
Null = Annotated[bool, typer.Option("--null/--no-null", help="Place every head among heads of random weights.")]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Write the report page.")]
Keep = Annotated[bool, typer.Option("--save-weights", help="Keep the raw W_Q and W_K beside the profile.")]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("profile", help="Profile the heads of a trained model; only its query and key weights are read.")(
        _profile
    )


def _profile(
    model: Model,
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
    from headwatch.checkpoints import open_checkpoint
    from headwatch.replay import Item, replay
    from headwatch.run import load
    from headwatch.tables import HeadTable

    reading = reading_of(n_heads, n_kv_heads, include, exclude, biases, null, save_weights)
    item = Item(open_checkpoint(model).step or 0, model)
    run_directory = directory / "headwatch" / (name or run_name(model))
    replay([item], run_directory, reading, name=name or run_name(model), again=True)
    run = load(run_directory)
    left_out = tuple((str(entry["module"]), str(entry["reason"])) for entry in run.info["left_out"])
    typer.echo(HeadTable(run.profile, left_out))
    print_places(run_directory, report)


def reading_of(
    n_heads: int | None,
    n_kv_heads: int | None,
    include: list[str] | None,
    exclude: list[str] | None,
    biases: bool,
    null: bool,
    save_weights: bool,
) -> Reading:
    """How checkpoints are read, from the options of a command."""
    from headwatch.options import FormOptions
    from headwatch.posthoc import Reading

    patterns = tuple(include or ()), tuple(exclude or ())
    return Reading(n_heads, n_kv_heads, *patterns, FormOptions(biases=biases), null, save_weights)


def run_name(model: Path) -> str:
    """The run's name after the model's: letters that every file system takes."""
    resolved = model.resolve()
    own = resolved.stem if resolved.is_file() else resolved.name
    plain = resolved.parent.name if own in ("model", "pytorch_model", "last", "weights") else own
    return "".join(letter if letter.isalnum() or letter in "-_.=" else "-" for letter in plain) or "model"


def print_places(run_directory: Path, report: bool) -> None:
    """Where store and report lie."""
    typer.echo(f"\nstore   {run_directory}")
    if report:
        from headwatch.report import write_report

        typer.echo(f"report  {write_report(run_directory)}")
