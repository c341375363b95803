"""The study's page: a table of answers with intervals, and one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from analysis import Array, Trajectories, answers, exchange_test, interval
from matplotlib.figure import Figure

COLOURS = {"decoder": "#2563eb", "encoder": "#d97706"}
Runs = Mapping[str, Sequence[Trajectories]]  # kind -> one per seed


def table(runs: Runs) -> str:
    """Markdown: one row per question, mean over seeds ± half width of the 95 % interval, and an exchange test."""
    found = {kind: [answers(run) for run in each] for kind, each in runs.items()}
    kinds = list(found)
    lines = [f"| | {' | '.join(kinds)} | p |", "|---|" + "---|" * (len(kinds) + 1)]
    for question in found[kinds[0]][0]:
        columns = [[run[question] for run in found[kind]] for kind in kinds]
        cells = [_cell(*interval(column)) for column in columns]
        p = _cell(exchange_test(*columns), np.nan).replace("none", "")
        lines.append(f"| {question} | {' | '.join(cells)} | {p} |")
    return "\n".join(lines)


def _cell(mean: float, half: float) -> str:
    digits = 0 if abs(mean) >= 20 else 2 if abs(mean) >= 1 else 3
    if not np.isfinite(mean):
        return "none"
    return f"{mean:.{digits}f}" + (f" ± {half:.{digits}f}" if np.isfinite(half) else "")


def figure(runs: Runs) -> Figure:
    """Six panels over steps: every seed thin, the mean of the seeds' medians thick."""
    drawing = Figure(figsize=(13, 7), layout="constrained")
    panels = drawing.subplots(2, 3)
    for axes, (title, values) in zip(panels.flat, _panels().items(), strict=True):
        for kind, each in runs.items():
            curves = [values(run) for run in each]
            for run, curve in zip(each, curves, strict=True):
                axes.plot(_steps(run, curve), curve, color=COLOURS[kind], alpha=0.25, linewidth=0.8)
            axes.plot(_steps(each[0], curves[0]), np.mean(curves, axis=0), color=COLOURS[kind], linewidth=2, label=kind)
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_xlabel("optimizer steps")
        axes.grid(alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].legend(frameon=False)
    return drawing


def _panels() -> dict[str, object]:
    return {
        "training loss, nats": lambda run: run.loss,
        "share of heads beyond the null": lambda run: run.beyond.mean(axis=1),
        "stable rank, median head": lambda run: np.median(run.stable_rank, axis=1),
        "|position| on Θ, median head": lambda run: np.median(np.abs(run.position), axis=1),
        "distance to Θ, median head": lambda run: np.median(run.distance, axis=1),
        "effective share of keys, median head": lambda run: np.median(run.signatures["n_eff"], axis=1),
    }


def _steps(run: Trajectories, curve: Array) -> Array:
    return run.steps if len(curve) == len(run.steps) else run.signature_steps


def write(runs: Runs, directory: Path, lead: str) -> None:
    """``study.md`` and ``study.png``."""
    figure(runs).savefig(directory / "study.png", dpi=110)
    text = f"{lead}\n\n{table(runs)}\n\n![Six curves over training](study.png)\n"
    (directory / "study.md").write_text(text, encoding="utf-8")
