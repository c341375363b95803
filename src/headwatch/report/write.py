"""Put the report together and write it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from headwatch.figures.grid import HeadGrid
from headwatch.metrics import REGISTRY, Kind
from headwatch.page import Section, asset, render_page
from headwatch.report.facts import facts_html
from headwatch.report.glance import glance, tiles_html
from headwatch.report.kinds import OVER_TIME_BUDGET, keys_over_time, kind_arrays, kind_data, registry_data
from headwatch.report.sections import figure_sections
from headwatch.run import Run, StoreError, load
from headwatch.sinks.files import write_whole

__all__ = ["SCRIPTS", "Measured", "measured", "report_page", "subtitle", "write_report"]

SCRIPTS = (
    "model.js",
    "drifts.js",
    "simplex_section.js",
    "trajectories.js",
    "maps.js",
    "loss.js",
    "signatures.js",
    "heads_table.js",
    "main.js",
)


@dataclass(frozen=True)
class Measured:
    """What a run's store holds for a page: a grid per kind, and the signatures' numbers of the whole model."""

    profile: HeadGrid | None
    signature: HeadGrid | None
    summary: dict[str, dict[str, Any]]
    notes: list[str]


def write_report(run: Run | str | Path, output: str | Path | None = None) -> Path:
    """Write a run's report as one HTML file and return its path.

    Args:
        run: a run, or its directory; it may still be going.
        output: the file to write; ``report.html`` in the run's directory by default.

    Raises:
        StoreError: no run there, a broken store, a store of a later version, or no snapshot yet.
    """
    run = run if isinstance(run, Run) else load(run)
    path = run.path / "report.html" if output is None else Path(output)
    page = report_page(run)
    write_whole(path, path.parent, lambda beside: beside.write_text(page, encoding="utf-8"))
    return path


def report_page(
    run: Run, found: Measured | None = None, *, live: bool = False, more_scripts: Sequence[str] = ()
) -> str:
    """The report as HTML text; ``live`` lets the page ask its own server for what comes in."""
    found = found or measured(run)
    kinds = {
        name: grid for name, grid in (("profile", found.profile), ("signature", found.signature)) if grid is not None
    }
    data: dict[str, Any] = {"metrics": registry_data(), "kinds": {}, "summary": found.summary, "live": live}
    arrays: dict[str, np.ndarray | str] = {}
    notes = list(found.notes)
    for name, grid in kinds.items():
        kind = cast("Kind", name)
        wanted = keys_over_time(grid, kind)
        packed = kind_arrays(grid, wanted, OVER_TIME_BUDGET[kind])
        data["kinds"][name] = kind_data(grid, kind, packed)
        arrays |= {f"{name}/{key}": text for key, text in packed.items()}
        notes += _left_on_disk(wanted, packed)
    has_null = found.profile is not None and found.profile.has("beyond_null")
    sections = [
        Section(
            "glance",
            "At a glance",
            "From the first snapshot to the last.",
            tiles_html(glance(found.profile, found.signature)),
        ),
        *figure_sections(found.profile is not None, found.signature is not None),
        Section("run", "This run", html=facts_html(run, notes, has_null=has_null)),
    ]
    scripts = [*(asset(name, "headwatch.report") for name in SCRIPTS), *more_scripts]
    return render_page(
        f"{run.name}: attention heads",
        sections,
        subtitle=subtitle(run, found),
        data=data,
        arrays=arrays,
        scripts=scripts,
        live=live,
    )


def measured(run: Run) -> Measured:
    """Read what a page shows.

    Raises:
        StoreError: the run has no snapshot yet.
    """
    notes: list[str] = []
    profile, signature = (_grid(run, kind, notes) for kind in ("profile", "signature"))
    if profile is None and signature is None:
        said = "".join(f"\n  it said: {message}" for message in run.info.get("messages", []))
        raise StoreError(f"{run.path} holds no snapshot yet: train at least to the first one, then try again.{said}")
    return Measured(profile, signature, _summaries(run), notes)


def _grid(run: Run, kind: str, notes: list[str]) -> HeadGrid | None:
    names = [name for name in run.monitors if name == kind or name.startswith(f"{kind}-")]
    if not names:
        return None
    chosen = kind if kind in names else names[0]
    if len(names) > 1:
        beside = ", ".join(name for name in names if name != chosen)
        notes.append(f"This page shows the monitor {chosen!r}; the store also holds {beside}.")
    table = run.table(chosen)
    displacements = sorted(set(table["displacement"].to_pylist()))
    grid = HeadGrid.of(table)
    others = [d for d in displacements if d != grid.displacement]
    if others or grid.displacement:
        notes.append(f"Shown at rotary displacement {grid.displacement}; the store also holds {others or 'no other'}.")
    return grid


def _summaries(run: Run) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for row in run.summary.to_pylist():
        series = out.setdefault(row["key"], {"steps": [], "values": []})
        series["steps"].append(row["step"])
        series["values"].append(row["value"])
    return out


def _left_on_disk(wanted: Sequence[str], packed: dict[str, str]) -> list[str]:
    left = [REGISTRY[key].title if key in REGISTRY else key for key in wanted if key not in packed]
    return [f"To stay light, this page leaves these columns to the store: {', '.join(left)}."] if left else []


def subtitle(run: Run, found: Measured) -> str:
    """Model, snapshots and state in one line."""
    grid = found.profile or found.signature
    model = (run.info.get("model") or {}).get("class", "model")
    steps = f"{len(grid.steps)} snapshots, steps {int(grid.steps[0]):,} to {int(grid.steps[-1]):,}" if grid else ""
    state = (
        "finished" if run.complete else "still going" if run.is_live else f"{run.info.get('status', 'not finished')}"
    )
    return f"{model}  ·  {steps}  ·  {state}"
