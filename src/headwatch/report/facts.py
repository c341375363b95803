"""What a run was: model, heads, settings, messages, and what was left out; HTML with every name escaped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from headwatch.figures.notes import flag_words
from headwatch.run import Run

__all__ = ["facts_html"]


def facts_html(run: Run, notes: Sequence[str] = (), *, has_null: bool = False) -> str:
    """The body of the section about the run itself; ``notes`` are this page's own warnings."""
    info = run.info
    warnings = [*notes, *map(str, info.get("messages") or [])]
    return "".join(
        (
            _list("warnings", warnings),
            _facts(_rows(run, has_null)),
            _left_out(info.get("left_out") or []),
            _details("settings of the monitors", info.get("settings")),
            _details("configuration of the training", info.get("config")),
            _details("versions", info.get("versions")),
        )
    )


def _rows(run: Run, has_null: bool) -> list[tuple[str, str]]:
    info, model = run.info, run.info.get("model") or {}
    rows = [
        ("run", run.name if run.name == run.id else f"{run.name} ({run.id})"),
        ("state", _state(run)),
        ("model", _model_words(model)),
        ("heads", _heads_words(info.get("heads") or [])),
        ("flags", "; ".join(_flag_counts(info.get("heads") or [])) or "none"),
        ("chance", _null_words(info.get("null"), has_null)),
        (
            "written by",
            f"headwatch {info.get('headwatch_version', '?')}, store version {info.get('schema_version', '?')}",
        ),
        ("store", str(run.path)),
    ]
    wandb = info.get("wandb") or {}
    return rows + ([("Weights & Biases", str(wandb.get("url") or wandb.get("id")))] if wandb else [])


def _state(run: Run) -> str:
    created, finished = run.info.get("created", "?"), run.info.get("finished")
    if run.complete:
        return f"finished {finished or ''} (begun {created})"
    if run.is_live:
        return f"still going (begun {created}); this page shows what was there when it was written"
    return f"not finished: {run.info.get('status', 'unknown')} (begun {created})"


def _model_words(model: Mapping[str, Any]) -> str:
    name = str(model.get("class", "unknown class"))
    sizes = [
        f"{key} {model[key]}" for key in ("n_layers", "n_heads", "n_kv_heads", "d_model", "d_head") if model.get(key)
    ]
    count = model.get("n_parameters")
    return ", ".join([name, *sizes, *([f"{count:,} parameters"] if isinstance(count, int) else [])])


def _heads_words(sites: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter({"proven": 0})
    for site in sites:
        counts[str(site.get("status", "unknown"))] += len(site.get("heads") or ())
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"{said or 'none'}, in {len(sites)} attention modules"


def _flag_counts(sites: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    counts = Counter(str(flag) for site in sites for flag in site.get("flags") or ())
    return (f"{flag_words(flag)} ({count} of {len(sites)} modules)" for flag, count in counts.most_common())


def _null_words(null: object, has_null: bool) -> str:
    if not isinstance(null, Mapping) or not null:
        return "random weights of the same shape" if has_null else "no null was simulated"
    return "random weights of the same shape: " + ", ".join(f"{key} {value}" for key, value in null.items())


def _left_out(entries: Sequence[Mapping[str, Any]]) -> str:
    if not entries:
        return '<p class="note">No attention module was left out.</p>'
    rows = "".join(
        f"<tr><td>{escape(str(e.get('module', '?')))}</td><td>{escape(str(e.get('reason', '')))}</td></tr>"
        for e in entries
    )
    head = "<thead><tr><th>module</th><th>why it is not watched</th></tr></thead>"
    return f'<h3>Left out</h3><div class="scroll"><table>{head}<tbody>{rows}</tbody></table></div>'


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    return '<dl class="facts">' + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in rows) + "</dl>"


def _list(name: str, items: Sequence[str]) -> str:
    return f'<ul class="{name}">' + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>" if items else ""


def _details(title: str, content: object) -> str:
    if not content:
        return ""
    text = json.dumps(content, indent=2, ensure_ascii=False, default=str)
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
