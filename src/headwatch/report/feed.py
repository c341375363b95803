"""The report of a run that is still going: the whole page once, then only what came in since."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np

from headwatch.figures.grid import HeadGrid
from headwatch.metrics import Kind
from headwatch.page import Section, asset, jsonable, pack, render_page
from headwatch.report.glance import glance
from headwatch.report.kinds import keys_over_time, last_known
from headwatch.report.write import Measured, measured, report_page, subtitle
from headwatch.run import Run, StoreError, load

__all__ = ["Feed"]

_REST = 3.0  # after a read that took t seconds, the store is left alone for 3 t


class Feed:
    """Follows one run's store; safe to ask from several threads."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._listing: tuple[object, ...] | None = None
        self._found: tuple[Run, Measured] | None = None
        self._trouble: str | None = None
        self._rest_until = 0.0

    def page(self) -> str:
        """The page as of now; a page that waits while there is nothing to show."""
        found, trouble = self._read()
        if found is None:
            return _waiting_page(self._path, trouble)
        return report_page(*found, live=True, more_scripts=[asset("live.js", "headwatch.report")])

    def news(self, known: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
        """What came in after the (count of snapshots, last step) that the reader knows, by kind, as plain JSON.

        ``reset`` says that what the reader holds is no longer the beginning of what the store holds.
        """
        found, trouble = self._read()
        if found is None:
            return {"trouble": trouble, "reset": bool(known)}
        run, now = found
        grids = {name: grid for name in ("profile", "signature") if (grid := getattr(now, name)) is not None}
        if set(grids) != set(known) or not all(_continues(grids[name], *known[name]) for name in grids):
            return {"trouble": trouble, "reset": True}
        return cast(
            "dict[str, Any]",
            jsonable(
                {
                    "trouble": trouble,
                    "reset": False,
                    "subtitle": subtitle(run, now),
                    "live": run.is_live,
                    "tiles": [asdict(tile) for tile in glance(now.profile, now.signature)],
                    "summary": now.summary,
                    "kinds": {name: _after(grid, cast("Kind", name), known[name][0]) for name, grid in grids.items()},
                }
            ),
        )

    def _read(self) -> tuple[tuple[Run, Measured] | None, str | None]:
        with self._lock:
            listing = _listing(self._path)
            if listing != self._listing and time.monotonic() >= self._rest_until:
                started = time.monotonic()
                self._reload()
                self._listing = listing
                self._rest_until = time.monotonic() + _REST * (time.monotonic() - started)
            return self._found, self._trouble

    def _reload(self) -> None:
        try:
            run = load(self._path)
            self._found, self._trouble = (run, measured(run)), None
        except StoreError as error:
            self._trouble = str(error)


def _listing(path: Path) -> tuple[object, ...]:
    """Names, sizes and times of everything that a reload would read."""
    seen = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "superseded")))
        for name in sorted(names):
            if name.endswith((".parquet", "run.json")):
                seen.append(_stamp(os.path.join(folder, name)))
    return tuple(seen)


def _stamp(path: str) -> tuple[str, int, int]:
    try:
        state = os.stat(path)
    except FileNotFoundError:  # compacted away between the listing and now
        return path, 0, 0
    return path, state.st_size, state.st_mtime_ns


def _continues(grid: HeadGrid, count: int, last: int) -> bool:
    return 0 < count <= len(grid.steps) and int(grid.steps[count - 1]) == last


def _after(grid: HeadGrid, kind: Kind, count: int) -> dict[str, Any]:
    news = {
        "labels": len(grid.labels),
        "steps": grid.steps[count:],
        "loss": grid.per_step("loss")[count:],
        "overhead": grid.per_step("overhead")[count:],
    }
    if len(grid.steps) > count:
        news["arrays"] = {key: pack(grid.matrix(key)[count:]) for key in keys_over_time(grid, kind)}
        news["left_null_step"] = last_known(grid, "left_null_step") if kind == "profile" else np.zeros(0)
    return news


def _waiting_page(path: Path, trouble: str | None) -> str:
    text = trouble or f"{path} holds no snapshot yet."
    section = Section("waiting", "Waiting for the first snapshot", f"{text} This page looks again every two seconds.")
    scripts = [asset("waiting.js", "headwatch.report")]
    return render_page("headwatch", [section], data={"live": True}, scripts=scripts, plotly=False, live=True)
