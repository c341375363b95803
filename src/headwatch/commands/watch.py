"""``headwatch watch``: follow a run while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]

Runs = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's directory, or the one that a run will be in.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("watch", help="Follow a run while it trains, on a page of this machine's own.")(_watch)


def _watch(run_dir: Runs, port: Port = 0, open_: Open = False) -> None:
    import webbrowser

    from headwatch.run import load
    from headwatch.watch import serve

    if (run_dir / "run.json").exists():
        load(run_dir)  # a store that this version cannot read is refused here, not on the page
    with serve(run_dir, port) as server:
        typer.echo(f"Following {run_dir} at {server.address}  (Ctrl-C ends it; training goes on)")
        typer.echo(f"From another machine: ssh -L {server.server_port}:127.0.0.1:{server.server_port} THIS_MACHINE")
        if open_:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("Ended.")
