"""The composite pictures of a row, with trails; a drawing that fails costs the picture alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from headwatch.sinks.row import Row
from headwatch.sinks.scalars import at_rest
from headwatch.sinks.tracked import kind_of, prefix_of
from headwatch.sinks.trails import Trails, split_steps

__all__ = ["PICTURE_KEY", "Pictures", "picture_key"]

PICTURE_KEY = "headwatch/simplex"
_OFF_AFTER = 3  # failures in a row
_SHARE = 0.005  # of the time since the first picture; drawing is Python and competes with the training thread
_ALLOWANCE = 10.0  # seconds of drawing that are not counted: the dense early steps


def picture_key(monitor: str) -> str:
    """W&B key of a monitor's picture.

    >>> picture_key("profile"), picture_key("profile-ema")
    ('headwatch/simplex', 'headwatch/simplex-ema')
    """
    return prefix_of(monitor, PICTURE_KEY)


class Pictures:
    """Draws one PNG per profile of a row, as long as drawing stays a small share of the time; always at the end.

    Args:
        title: heading of the pictures.
        history: profile rows that a resumed run has from before.
        say: where a failure is said, ``say(key, message)``.
        clock: seconds, never going backwards.
    """

    def __init__(
        self,
        title: str,
        history: pa.Table | None,
        say: Callable[[str, str], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._began = clock()
        self._drawing = 0.0
        self._title = title
        self._trails = {"profile": Trails(() if history is None else split_steps(at_rest(history)))}
        self._failures = 0
        self._say = say

    def of(self, row: Row) -> dict[str, bytes]:
        """PNG by key; empty where drawing would cost too much, and after three failures in a row."""
        pictures: dict[str, bytes] = {}
        for monitor, snapshot in row.snapshots.items():
            if kind_of(monitor) == "profile" and self._failures < _OFF_AFTER:
                self._draw(monitor, at_rest(snapshot.heads), row, pictures)
        return pictures

    def _draw(self, monitor: str, table: pa.Table, row: Row, pictures: dict[str, bytes]) -> None:
        trails = self._trails.setdefault(monitor, Trails())
        began = self._clock()
        if row.final or self._drawing <= _ALLOWANCE + _SHARE * (began - self._began):
            try:
                pictures[picture_key(monitor)] = self._png(table, trails, _beside(monitor, row))
                self._failures = 0
            except Exception as error:  # drawing can fail in many ways; the row's numbers must not be lost for it
                self.failed(error)
            self._drawing += self._clock() - began
        trails.add(table)

    def _png(self, table: pa.Table, trails: Trails, signature: pa.Table | None) -> bytes:
        from headwatch.figures.composite import composite_png

        return composite_png(table, trails.tables, title=self._title, signature=signature)

    def failed(self, error: Exception) -> None:
        """Count a failure and say it."""
        self._failures += 1
        off = "; no more pictures in this run" if self._failures >= _OFF_AFTER else ""
        self._say(
            f"picture{off}",
            f"the W&B picture failed{off}: {type(error).__name__}: {error}. The numbers of the step were logged, "
            "and `headwatch report` draws the same from the store.",
        )


def _beside(monitor: str, row: Row) -> pa.Table | None:
    signature = row.snapshots.get("signature")
    return at_rest(signature.heads) if signature is not None and monitor == "profile" else None
