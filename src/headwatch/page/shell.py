"""The self-contained page: sections, data and scripts in one HTML file that asks nothing of any network.

Safety: text goes through ``html.escape`` or, in the browser, through ``textContent``; data sit in JSON that cannot
close its element; and a content security policy names the hash of every script of ours, so a script that came in with
a name would not run, nor could anything be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from headwatch.page.packing import pack, pack_text

__all__ = ["Section", "asset", "jsonable", "render_page"]

_BASE_SCRIPTS = ("page.js", "theme.js", "marks.js", "charts.js", "simplex.js", "player.js", "table.js")
_FOOT = "Written by headwatch. The page is complete in itself and fetches nothing."
_LIVE_FOOT = "Served by headwatch on this machine; the page asks nobody else."


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        id: anchor, and the id by which scripts find it.
        title: heading, plain text.
        intro: what the section shows and what it does not mean, plain text.
        html: the body, HTML made by us with everything from users escaped; scripts may fill it.
    """

    id: str
    title: str
    intro: str = ""
    html: str = ""


def render_page(
    title: str,
    sections: Sequence[Section],
    *,
    subtitle: str = "",
    data: Mapping[str, Any] | None = None,
    arrays: Mapping[str, np.ndarray | str] | None = None,
    scripts: Sequence[str] = (),
    plotly: bool = True,
    live: bool = False,
) -> str:
    """One HTML page.

    Args:
        title: plain text of the window and the heading.
        sections: parts in reading order.
        subtitle: plain text below the heading.
        data: JSON for scripts, ``hw.data`` there; NaN becomes null.
        arrays: numbers by name, ``await hw.array(name)`` there (a flat Float32Array); a ``str`` is packed already.
        scripts: sources of the page's own scripts, run in order after the shell's; they start with ``hw.ready(...)``.
        plotly: embed plotly.js for ``hw.chart``.
        live: let scripts fetch from the page's own server.
    """
    sources = [*(asset(name) for name in _BASE_SCRIPTS), *scripts]
    fields = {
        "policy": escape(_policy(sources, live)),
        "title": escape(title),
        "subtitle": escape(subtitle),
        "css": asset("page.css"),
        "footer": _LIVE_FOOT if live else _FOOT,
        "contents": "".join(f'<a href="#{escape(s.id)}">{escape(s.title)}</a>' for s in sections),
        "sections": "\n".join(map(_section, sections)),
        "data": _json_block(data or {}),
        "arrays": "\n".join(_array_block(name, values) for name, values in (arrays or {}).items()),
        "plotly": _plotly_block() if plotly else "",
        "scripts": "\n".join(f"<script>{source}</script>" for source in sources),
    }
    return Template(asset("page.html")).substitute(fields)


@cache
def asset(name: str, package: str = "headwatch.page") -> str:
    """Text of a file in the folder ``assets`` of a package."""
    return (files(package) / "assets" / name).read_text(encoding="utf-8")


def jsonable(value: Any) -> Any:
    """Plain JSON: numpy numbers as Python's, NaN and infinities as null, everything else unknown as text.

    >>> jsonable({"a": np.float32(0.5), "b": [float("nan"), np.int64(3)], 4: None})
    {'a': 0.5, 'b': [None, 3], '4': None}
    """
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(item) for item in value]
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _section(section: Section) -> str:
    intro = f'<p class="intro">{escape(section.intro)}</p>' if section.intro else ""
    head = f'<h2 id="{escape(section.id)}-title">{escape(section.title)}</h2>{intro}'
    body = f'<div class="body">{section.html}</div>'
    label = f'aria-labelledby="{escape(section.id)}-title"'
    return f'<section id="{escape(section.id)}" {label}>{head}{body}</section>'


def _json_block(data: Mapping[str, Any]) -> str:
    text = json.dumps(jsonable(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="hw-data">{safe}</script>'


def _array_block(name: str, values: np.ndarray | str) -> str:
    packed = values if isinstance(values, str) else pack(values)
    return f'<script type="text/plain" class="hw-array" data-name="{escape(name)}">{packed}</script>'


@cache
def _plotly_block() -> str:
    from plotly.offline import get_plotlyjs

    return f'<script type="text/plain" id="hw-plotly">{pack_text(get_plotlyjs())}</script>'


def _policy(sources: Sequence[str], live: bool) -> str:
    hashes = " ".join(f"'sha256-{_digest(source)}'" for source in sources)
    connect = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; {connect}script-src {hashes} blob:; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode("ascii")
