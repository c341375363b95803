"""``headwatch dashboard``: a W&B workspace made for watching heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]

_DRY_LAYERS = 12  # when nothing says how many there are

Address = Annotated[str, typer.Argument(metavar="ENTITY/PROJECT", help="The W&B project.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the specification; nothing is sent.")]
Json = Annotated[bool, typer.Option("--json", help="With --dry-run: the JSON that W&B would be sent.")]
Layers = Annotated[
    int | None, typer.Option("--layers", help="Attention layers; read from the project's runs by default.")
]
RunDir = Annotated[Path | None, typer.Option("--run", help="Take the number of layers from this store.")]
Name = Annotated[str, typer.Option("--name", help="Name of the saved view.")]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("dashboard", help="Save a W&B workspace with sections in reading order.")(_dashboard)


def _dashboard(
    address: Address,
    dry_run: DryRun = False,
    json: Json = False,
    layers: Layers = None,
    run: RunDir = None,
    name: Name = "headwatch",
) -> None:
    from headwatch import dashboard, dashboard_workspace

    entity, project = dashboard_workspace.split_address(address)
    sections = dashboard.sections_for(_layers(entity, project, layers, run, dry_run))
    if dry_run and not json:
        typer.echo(f"workspace {name!r} for {entity}/{project}\n{dashboard.describe(sections)}")
        return
    built = dashboard_workspace.build_workspace(entity, project, sections, name)
    typer.echo(dashboard_workspace.specification(built) if dry_run else dashboard_workspace.save_workspace(built))


def _layers(entity: str, project: str, layers: int | None, run: Path | None, dry_run: bool) -> int:
    if layers is not None:
        return layers
    if run is not None:
        from headwatch.run import load

        return max((int(head["layer"]) + 1 for head in load(run).info["heads"]), default=0)
    if dry_run:
        return _DRY_LAYERS
    from headwatch.dashboard_workspace import find_layers

    return find_layers(entity, project)
