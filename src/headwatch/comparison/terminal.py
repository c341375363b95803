"""The comparison as tables in a terminal; runs are told by number, so that eighty columns are enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwatch.comparison.comparison import Comparison
from headwatch.snapshot import head_label

__all__ = ["print_comparison"]

_MOST_ROWS = 20
_MOST_GROUPS = 6


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print notes and tables; names from users are printed as they stand, never as markup."""
    console = console or Console()
    for place, reason in comparison.left_out:
        console.print(Text(f"left out  {place}: {reason}", style="yellow"))
    numbers = {name: f"#{i}" for i, name in enumerate(comparison.runs["run"].to_pylist(), start=1)}
    for part in (_runs, _config, _moved, _matches, _groups, _signatures):
        found = part(comparison, numbers)
        if found is not None:
            title, table = found
            console.print(Text(f"\n{title}", style="bold"), table, sep="\n")
    for note in comparison.notes:
        console.print(Text(f"· {note}"))
    if comparison.output is not None:
        console.print(Text(f"page: {comparison.output}", style="bold"))


Numbers = dict[str, str]
Part = tuple[str, Table]


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], folding: Sequence[int] = ()) -> Part:
    """A table whose columns keep their width, but for those at the places ``folding``."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, heading in enumerate(headings):
        left = place == 0 or place in folding
        table.add_column(
            Text(heading), justify="left" if left else "right", no_wrap=place not in folding, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return title, table


def _title(title: str, comparison: Comparison, table: str, total: int, what: str = "") -> str:
    """The title of a table of ``total`` rows, which says so where not all are printed."""
    if total <= _MOST_ROWS:
        return title
    whole = "the page" if comparison.output is not None else f"comparison.{table}"
    return f"{title}: {_MOST_ROWS} of {total}{what}; {whole} has all"


def _runs(comparison: Comparison, numbers: Numbers) -> Part:
    """Drift of the heads of each run: what moved, when it left chance, what became rank-one."""
    headings = ("", "run", "seed", "step", "loss", "drift", "path", "left null", "rank<2", "flips")
    rows = [_run_row(row, numbers, _of(comparison.drift, row["run"])) for row in comparison.runs.to_pylist()]
    return _table("Runs: median drift and path of their heads, share that left the null and when", headings, rows, (1,))


def _of(table: pa.Table, run: str) -> dict[str, np.ndarray]:
    rows = table.filter(pc.equal(table["run"], run))
    names = ("drift", "path_length", "left_null_step", "low_rank_step", "parity_changes")
    return {name: rows[name].cast(pa.float64()).to_numpy() for name in names}


def _run_row(run: dict[str, Any], numbers: Numbers, drift: dict[str, np.ndarray]) -> list[str]:
    left = drift["left_null_step"]
    when = _median(left)
    return [
        numbers[run["run"]],
        run["run"],
        run["seed"] or "?",
        str(run["last_step"]),
        _number(run["last_loss"]),
        _number(_median(drift["drift"])),
        _number(_median(drift["path_length"])),
        _share(~np.isnan(left)) + ("" if when is None else f" @{when:.0f}"),
        _share(~np.isnan(drift["low_rank_step"])),
        _number(np.nansum(drift["parity_changes"])),
    ]


def _config(comparison: Comparison, numbers: Numbers) -> Part | None:
    rows = comparison.config.to_pylist()[:_MOST_ROWS]
    if not rows:
        return None
    title = _title("Configuration differences", comparison, "config", comparison.config.num_rows)
    labels = comparison.config.column_names[1:]
    if len(labels) > 6:
        body = [[row["key"], _values(row)] for row in rows]
        return _table(title, ("key", "values"), body, (0, 1))
    body = [[row["key"], *(row[label] if row[label] is not None else "–" for label in labels)] for row in rows]
    headings = ("key", *(numbers[label] for label in labels))
    return _table(title, headings, body, range(len(headings)))


def _values(row: dict[str, str | None]) -> str:
    count = Counter(value for key, value in row.items() if key != "key")
    return ", ".join(f"{value if value is not None else '–'} ({n} runs)" for value, n in count.most_common(6))


def _moved(comparison: Comparison, numbers: Numbers) -> Part:
    """The heads that moved most, over all runs."""
    drift = comparison.drift.sort_by([("drift", "descending")]).slice(0, 10).to_pylist()
    headings = ("run", "head", "drift", "path", "stable rank", "on Θ", "left null", "rank<2", "flips")
    return _table("Heads that moved most", headings, [_moved_row(row, numbers) for row in drift])


def _moved_row(row: dict[str, Any], numbers: Numbers) -> list[str]:
    return [
        numbers[row["run"]],
        head_label(row["layer"], row["head"]),
        _number(row["drift"]),
        _number(row["path_length"]),
        f"{_number(row['stable_rank_start'])} → {_number(row['stable_rank_end'])}",
        *(_number(row[key]) for key in ("theta_position_end", "left_null_step", "low_rank_step", "parity_changes")),
    ]


def _matches(comparison: Comparison, numbers: Numbers) -> Part | None:
    matches = comparison.matches.to_pylist()
    if not matches:
        return None
    by_run: dict[str, list[dict[str, Any]]] = {}
    for row in matches:
        by_run.setdefault(row["run"], []).append(row)
    rows = [_match_row(of, numbers) for of in list(by_run.values())[:_MOST_ROWS]]
    headings = ("run", "with", "by", "match", "distance", "by chance", "least adj. p")
    title = "Heads matched to the reference run (median distance)"
    return _table(_title(title, comparison, "matches", len(by_run), " runs"), headings, rows)


def _match_row(rows: list[dict[str, Any]], numbers: Numbers) -> list[str]:
    first = rows[0]
    p = [row["p_adjusted"] for row in rows if row["p_adjusted"] is not None]
    found = sum(row["verdict"] in ("match", "same seed") for row in rows)
    distance, chance = ([row[key] for row in rows if row[key] is not None] for key in ("cost", "chance"))
    return [
        numbers[first["run"]],
        numbers[first["reference"]],
        first["by"],
        f"{found} of {len(rows)}" if found else first["verdict"],
        _number(_median(distance)),
        _number(_median(chance)),
        _number(min(p, default=None)),
    ]


def _groups(comparison: Comparison, numbers: Numbers) -> Part | None:
    if comparison.groups is None:
        return None
    table = comparison.groups.sort_by([("p", "ascending"), ("layer", "ascending")])
    means = [name for name in table.column_names if name.startswith("mean[")]
    rows = [
        [
            row["metric"],
            "all" if row["layer"] < 0 else f"L{row['layer']:02d}",
            *(_number(row[mean]) for mean in means[:_MOST_GROUPS]),
            _number(row["p"]),
            _number(row["p_adjusted"]),
        ]
        for row in table.slice(0, _MOST_ROWS).to_pylist()
    ]
    headings = ("metric", "layer", *(mean[5:-1] for mean in means[:_MOST_GROUPS]), "p", "adj. p")
    more = f", {_MOST_GROUPS} of {len(means)} groups" if len(means) > _MOST_GROUPS else ""
    title = f"Differences between groups (means of medians over heads{more})"
    return _table(_title(title, comparison, "groups", table.num_rows), headings, rows)


def _signatures(comparison: Comparison, numbers: Numbers) -> Part | None:
    rows = [row for row in comparison.signatures.to_pylist() if row["signature"] == "n_eff"]
    if not rows:
        return None
    keys = ("pearson", "pearson_within_layer", "dispersion_a", "dispersion_b")
    body = [
        (numbers[row["run_a"]], numbers[row["run_b"]], row["aligned"], *(_number(row[key]) for key in keys))
        for row in rows[:_MOST_ROWS]
    ]
    title = _title("Signatures compared: n_eff; the page has the others", comparison, "signatures", len(rows), " pairs")
    headings = ("run", "with", "paired by", "Pearson", "within layers", "dispersion", "its own")
    return _table(title, headings, body)


def _median(values: Sequence[float] | np.ndarray) -> float | None:
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    return float(np.median(known)) if len(known) else None


def _share(mask: np.ndarray) -> str:
    return f"{mask.mean():.0%}" if len(mask) else "–"


def _number(value: float | None) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
