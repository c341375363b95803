"""``headwatch heads``: what would be watched, proven or not, and why anything is left out."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwatch.commands.profile import Exclude, Heads, Include, KeyHeads

if TYPE_CHECKING:
    from headwatch.heads import HeadMap

__all__ = ["register"]

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A checkpoint, a stored run, or package.module:function, which makes a model, or a model and a batch "
        "that proves its heads.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("heads", help="List the heads of a model: what would be watched, proven or not, and what is left out.")(
        _heads
    )


def _heads(
    model: Model, n_heads: Heads = None, n_kv_heads: KeyHeads = None, include: Include = None, exclude: Exclude = None
) -> None:
    patterns = (tuple(include or ()), tuple(exclude or ()))
    if ":" in model and not Path(model).exists():
        _print(_described(_map_of_function(model, *patterns)))
    elif (Path(model) / "run.json").is_file():
        from headwatch.run import load

        _print(load(model).info)
    else:
        from headwatch.posthoc import Reading, open_model

        _print(_described(open_model(Path(model), Reading(n_heads, n_kv_heads, *patterns)).head_map))


def _described(head_map: HeadMap) -> Mapping[str, Any]:
    from headwatch.info import describe_heads

    return describe_heads(head_map)


def _map_of_function(name: str, include: Sequence[str], exclude: Sequence[str]) -> HeadMap:
    """Heads of the model that a function of the user's makes."""
    from torch import nn

    from headwatch.heads import find_heads
    from headwatch.heads.errors import advising
    from headwatch.probe.documents import probe_forwards

    made = _function(name)()
    model, batch = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"{name}: expected a function that returns a model or (model, batch), got {type(model).__name__}."
        )
    probe = None if batch is None else probe_forwards(model, batch)
    with advising(_remedy(name, proves=batch is not None)):
        return find_heads(model, probe=probe, include=include, exclude=exclude)


def _remedy(name: str, *, proves: bool) -> str:
    """What to do where no head is found in the model that a function makes."""
    if proves:
        return f"let {name} return (model, batch) with a batch on which model(batch) runs its self-attention."
    return (
        f"let {name} return (model, batch): on a forward pass model(batch) heads are found by what the model does, "
        "whatever its projections are called."
    )


def _function(name: str) -> Any:
    module, _, attribute = name.partition(":")
    sys.path.insert(0, "")  # as python -m does: the user's own modules lie in the current directory
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(
            f"{name}: no such function ({error}). Expected a checkpoint, a stored run or package.module:function."
        ) from error


def _print(heads: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from headwatch.heads.notes import heads_apart

    table = Table("layer", "module", "heads", "key heads", "d_head", "status", "flags", box=None)
    for site in heads["heads"]:
        watched = f"{len(site['heads'])} of {site['n_heads']}"
        flags = ", ".join([*site["flags"], *(f"also {alias}" for alias in site["aliases"])])
        numbers = (watched, str(site["n_kv_heads"]), str(site["d_head"]))
        table.add_row(f"L{site['layer']:02d}", escape(site["module"]), *numbers, site["status"], escape(flags))
    console = Console()
    console.print(table)
    apart = heads_apart((site["module"], site["n_heads"]) for site in heads["heads"])
    if apart:
        console.print(escape(f"note: {apart}"), soft_wrap=True)
    for item in heads["left_out"]:
        console.print(escape(f"left out: {item['module']}: {item['reason']}"), soft_wrap=True)
