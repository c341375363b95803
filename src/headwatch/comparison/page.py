"""The comparison as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from headwatch.comparison import page_words as words
from headwatch.comparison.comparison import Comparison
from headwatch.comparison.page_data import page_arrays, page_data, thinned
from headwatch.comparison.page_tables import group_table, match_tests, run_summaries, signature_rows
from headwatch.page import Section, asset, render_page
from headwatch.sinks.files import write_whole

__all__ = ["page_html", "write_page"]

_SCRIPTS = ("compare.js", "overlay.js", "bands.js", "drift.js", "matches.js", "tests.js")


def write_page(comparison: Comparison, output: Path) -> Path:
    """Write the page, whole or not at all.

    Raises:
        OSError: the file cannot be written; the message names it.
    """
    write_whole(output, output.parent, lambda path: path.write_text(page_html(comparison), encoding="utf-8"))
    return output


def page_html(comparison: Comparison) -> str:
    """The page's text."""
    runs = thinned(comparison)
    data = page_data(comparison, runs) | {
        "summaries": run_summaries(comparison),
        "tests": match_tests(comparison),
        "groupTests": group_table(comparison),
        "signatures": signature_rows(comparison),
    }
    return render_page(
        f"{len(comparison.records)} runs compared",
        _sections(comparison),
        subtitle=_subtitle(comparison),
        data=data,
        arrays=page_arrays(comparison, runs),
        scripts=[asset(name, "headwatch.comparison") for name in _SCRIPTS],
    )


def _subtitle(comparison: Comparison) -> str:
    heads = sum(record.trajectories.n_heads for record in comparison.records)
    names = ", ".join(record.label for record in comparison.records[:6])
    more = f" and {len(comparison.records) - 6} more" if len(comparison.records) > 6 else ""
    return f"{names}{more} · {heads:,} heads"


def _sections(comparison: Comparison) -> list[Section]:
    sections = [
        Section("overview", "Runs", words.RUNS, _overview(comparison)),
        Section("config", "Configuration", words.config_intro(comparison), _config(comparison)),
        Section("overlay", "Trajectories in one simplex", words.overlay_intro(comparison)),
        Section("bands", "Distributions by layer", words.BANDS),
        Section("drift", "Drift of every head", words.DRIFT),
    ]
    if comparison.matching.matches:
        sections.append(Section("matching", "Heads matched between runs", words.match_intro(comparison)))
    if comparison.groups is not None:
        sections.append(Section("groups", "Differences between groups", words.group_intro(comparison)))
    if comparison.signatures.num_rows:
        sections.append(Section("signatures", "Signatures compared", words.SIGNATURES))
    return sections


def _overview(comparison: Comparison) -> str:
    left = [f"Left out: {place}: {reason}" for place, reason in comparison.left_out]
    notes = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    warned = f'<ul class="warnings">{"".join(f"<li>{escape(line)}</li>" for line in left)}</ul>' if left else ""
    style = f"<style>{asset('compare.css', 'headwatch.comparison')}</style>"
    return f'{style}{warned}<div id="run-table"></div><ul class="note">{notes}</ul>'


def _config(comparison: Comparison) -> str:
    names = comparison.config.column_names
    rows = comparison.config.to_pylist()
    if not rows:
        return ""
    head = _cells("th", names)
    body = "".join(f"<tr>{_cells('td', [row[name] for name in names])}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(tag: str, values: Sequence[str | None]) -> str:
    return "".join(f"<{tag}>{escape(value if value is not None else '–')}</{tag}>" for value in values)
