"""``headwatch demo``: train a small decoder on this machine and show how its heads moved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headwatch.demo.train import Trained

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("demo")(_demo)


def _demo(
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 400,
    directory: Annotated[Path, typer.Option("--dir", help="Where everything is written.")] = Path("headwatch-demo"),
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
    wandb: Annotated[bool, typer.Option(help="Log to an offline Weights & Biases run too.")] = True,
) -> None:
    """Train a small text decoder, a few minutes on two cores, and write the report of its heads."""
    from headwatch.demo.text import load_text
    from headwatch.demo.train import train
    from headwatch.report import write_report

    corpus = load_text()
    typer.echo(f"A decoder of 4 layers × 4 heads learns {corpus.name}, {steps} steps (400 take one or two minutes).")
    trained = train(corpus, directory, steps=steps, seed=seed, wandb=wandb)
    report = write_report(trained.store)
    typer.echo(_drift(trained.store))
    typer.echo(_places(trained, report))


def _drift(store: Path) -> str:
    """The heads' medians at the first and the last snapshot."""
    import numpy as np

    from headwatch.run import load

    table = load(store).profile
    step = table["step"].to_numpy()
    first, last = step.min(), step.max()
    lines = [f"\nmedian over heads        step {first:>5}   step {last:>5}"]
    for key, title in (("stable_rank", "stable rank"), ("theta_distance", "distance to Θ"), ("drift", "drift")):
        values = table[key].to_numpy()
        lines.append(
            f"  {title:<20}{np.nanmedian(values[step == first]):>12.4f} {np.nanmedian(values[step == last]):>12.4f}"
        )
    return "\n".join(lines)


def _places(trained: Trained, report: Path) -> str:
    lines = ["", f"report     {report}", f"store      {trained.store}"]
    if trained.wandb:
        lines += [f"W&B run    {trained.wandb}", f"           wandb sync {trained.wandb}   (with an account)"]
    return "\n".join(lines)
