"""The comparison as tables in a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwatch.comparison.comparison import Comparison
from headwatch.heads.headmap import head_label

__all__ = ["print_comparison"]

_MOST_ROWS = 20


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print notes and tables; names from users are printed as they stand, never as markup."""
    console = console or Console()
    for place, reason in comparison.left_out:
        console.print(Text(f"left out  {place}: {reason}", style="yellow"))
    for part in (_runs, _config, _moved, _matches, _groups, _signatures):
        table = part(comparison)
        if table is not None:
            console.print(table)
    for note in comparison.notes:
        console.print(Text(f"· {note}"))
    if comparison.output is not None:
        console.print(Text(f"page: {comparison.output}", style="bold"))


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=Text(title), title_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(Text(heading), justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _runs(comparison: Comparison) -> Table:
    """Drift of the heads of each run: what moved, when it left chance, what became rank-one."""
    headings = (
        "run",
        "seed",
        "heads",
        "last step",
        "loss",
        "median drift",
        "median path",
        "left null",
        "at step",
        "rank < 2",
        "flips",
    )
    rows = [_run_row(row, _of(comparison.drift, row["run"])) for row in comparison.runs.to_pylist()]
    return _table("Runs (drift of their heads)", headings, rows)


def _of(table: pa.Table, run: str) -> dict[str, np.ndarray]:
    rows = table.filter(pc.equal(table["run"], run))
    names = ("drift", "path_length", "left_null_step", "low_rank_step", "parity_changes")
    return {name: rows[name].cast(pa.float64()).to_numpy() for name in names}


def _run_row(run: dict[str, Any], drift: dict[str, np.ndarray]) -> list[str]:
    left = drift["left_null_step"]
    return [
        run["run"],
        run["seed"] or "?",
        str(run["n_heads"]),
        str(run["last_step"]),
        _number(run["last_loss"]),
        _number(_median(drift["drift"])),
        _number(_median(drift["path_length"])),
        _share(~np.isnan(left)),
        _number(_median(left)),
        _share(~np.isnan(drift["low_rank_step"])),
        _number(np.nansum(drift["parity_changes"])),
    ]


def _config(comparison: Comparison) -> Table | None:
    rows = comparison.config.to_pylist()
    if not rows:
        return None
    labels = comparison.config.column_names[1:]
    if len(labels) > 8:
        return _table(
            "Configuration differences", ("key", "values"), [(row["key"], _values(row)) for row in rows[:_MOST_ROWS]]
        )
    body = [
        [row["key"], *(row[label] if row[label] is not None else "–" for label in labels)] for row in rows[:_MOST_ROWS]
    ]
    return _table("Configuration differences", ("key", *labels), body)


def _values(row: dict[str, str | None]) -> str:
    count = Counter(value for key, value in row.items() if key != "key")
    return ", ".join(f"{value if value is not None else '–'} ({n} runs)" for value, n in count.most_common(6))


def _moved(comparison: Comparison) -> Table:
    """The heads that moved most, over all runs."""
    drift = comparison.drift.sort_by([("drift", "descending")]).slice(0, 10).to_pylist()
    headings = ("run", "head", "drift", "path", "stable rank", "position on Θ", "left null", "rank < 2", "flips")
    rows = [
        (
            row["run"],
            head_label(row["layer"], row["head"]),
            _number(row["drift"]),
            _number(row["path_length"]),
            f"{_number(row['stable_rank_start'])} → {_number(row['stable_rank_end'])}",
            f"{_number(row['theta_position_start'])} → {_number(row['theta_position_end'])}",
            _number(row["left_null_step"]),
            _number(row["low_rank_step"]),
            _number(row["parity_changes"]),
        )
        for row in drift
    ]
    return _table("Heads that moved most", headings, rows)


def _matches(comparison: Comparison) -> Table | None:
    matches = comparison.matches.to_pylist()
    if not matches:
        return None
    runs = dict.fromkeys((row["run"], row["reference"]) for row in matches)
    rows = [_match_row(run, ref, [m for m in matches if m["run"] == run]) for run, ref in list(runs)[:_MOST_ROWS]]
    return _table(
        "Heads matched to the reference run",
        ("run", "reference", "by", "match", "median distance", "by chance", "smallest adjusted p"),
        rows,
    )


def _match_row(run: str, reference: str, rows: list[dict[str, Any]]) -> list[str]:
    p = [row["p_adjusted"] for row in rows if row["p_adjusted"] is not None]
    found = sum(row["verdict"] in ("match", "same seed") for row in rows)
    verdict = f"{found} of {len(rows)}" if found else rows[0]["verdict"]
    distance, chance = ([row[key] for row in rows if row[key] is not None] for key in ("cost", "chance"))
    return [
        run,
        reference,
        rows[0]["by"],
        verdict,
        _number(_median(distance)),
        _number(_median(chance)),
        _number(min(p, default=None)),
    ]


def _groups(comparison: Comparison) -> Table | None:
    if comparison.groups is None:
        return None
    table = comparison.groups.sort_by([("p", "ascending"), ("layer", "ascending")])
    means = [name for name in table.column_names if name.startswith("mean[")]
    rows = [
        [
            row["metric"],
            "all" if row["layer"] < 0 else f"L{row['layer']:02d}",
            *(_number(row[m]) for m in means),
            _number(row["p"]),
            _number(row["p_adjusted"]),
        ]
        for row in table.slice(0, _MOST_ROWS).to_pylist()
    ]
    return _table("Differences between groups", ("metric", "layer", *(m[5:-1] for m in means), "p", "adjusted p"), rows)


def _signatures(comparison: Comparison) -> Table | None:
    rows = [row for row in comparison.signatures.to_pylist() if row["signature"] == "n_eff"][:_MOST_ROWS]
    if not rows:
        return None
    body = [
        (
            row["run_a"],
            row["run_b"],
            row["aligned"],
            *(_number(row[key]) for key in ("pearson", "pearson_within_layer", "dispersion_a", "dispersion_b")),
        )
        for row in rows
    ]
    headings = ("run", "run ", "heads paired by", "Pearson", "within layers", "dispersion", "dispersion ")
    return _table("Signatures compared: effective share of keys (n_eff); the page has the others", headings, body)


def _median(values: Sequence[float] | np.ndarray) -> float | None:
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    return float(np.median(known)) if len(known) else None


def _share(mask: np.ndarray) -> str:
    return f"{mask.mean():.0%}" if len(mask) else "–"


def _number(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4g}"
