"""The command line: ``headwatch demo | heads | profile | replay | report | watch | compare | budgets | dashboard``."""

from __future__ import annotations

import sys
from importlib import import_module
from types import TracebackType
from typing import Annotated

import typer

from headwatch import __version__

__all__ = ["COMMANDS", "build_app", "main"]

COMMANDS = ("demo", "heads", "profile", "replay", "report", "watch", "compare", "budgets", "dashboard")


def build_app() -> typer.Typer:
    """The app with every command registered; a command's heavy imports wait inside its function."""
    app = typer.Typer(
        name="headwatch",
        help="Watch every attention head move while it trains.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_show_locals=False,
    )
    app.callback()(_root)
    for name in COMMANDS:
        import_module(f"headwatch.commands.{name}").register(app)
    return app


def main() -> None:
    """Run the command line; a mistake of the user ends in one red sentence and exit code 2, not in a traceback."""
    try:
        build_app()()
    except (ValueError, ImportError, OSError) as error:
        if not _is_for_the_user(error):
            raise
        typer.secho(f"headwatch: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=lambda on: _print_version(on), is_eager=True),
    ] = False,
) -> None:
    """Watch every attention head move while it trains."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _is_for_the_user(error: Exception) -> bool:
    """Whether our own code raised it: the same type out of a library is a bug, and a bug needs its traceback."""
    if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("headwatch"):
        return False  # a broken installation
    return isinstance(error, OSError) or _raising_module(error.__traceback__).startswith("headwatch.")


def _raising_module(traceback: TracebackType | None) -> str:
    module = ""
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
    return module
