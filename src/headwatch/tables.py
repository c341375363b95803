"""Results as people take them away: an Arrow table that turns into a data frame of their choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from headwatch.snapshot import head_label

if TYPE_CHECKING:
    import pandas
    import polars

_Frame = TypeVar("_Frame")

__all__ = ["HeadTable", "to_pandas", "to_polars"]


def to_pandas(table: pa.Table) -> pandas.DataFrame:
    """The table as a pandas data frame.

    Raises:
        ImportError: pandas is not installed.
    """
    return _needs("pandas", lambda: table.to_pandas())


def to_polars(table: pa.Table) -> polars.DataFrame:
    """The table as a polars data frame.

    Raises:
        ImportError: polars is not installed.
    """

    def convert() -> Any:
        import polars

        return polars.from_arrow(table)

    return _needs("polars", convert)


def _needs(package: str, convert: Callable[[], _Frame]) -> _Frame:
    try:
        return convert()
    except ImportError as error:
        raise ImportError(f"to_{package}() needs {package}: pip install {package}") from error


class HeadTable:
    """One row per head, with what was left out and why.

    Attributes:
        table: the rows, a ``pyarrow.Table`` with the columns of the store's ``profile/`` parts.
        left_out: ``(module, reason)`` of everything that is not in the table.
    """

    def __init__(self, table: pa.Table, left_out: tuple[tuple[str, str], ...] = ()) -> None:
        self.table = table
        self.left_out = left_out

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, column: str) -> pa.ChunkedArray:
        return self.table[column]

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.table.column_names)

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas data frame."""
        return to_pandas(self.table)

    def to_polars(self) -> polars.DataFrame:
        """A polars data frame."""
        return to_polars(self.table)

    def __repr__(self) -> str:
        lines = [_row_text(row) for row in self.table.select(_SHOWN).to_pylist()]
        left = [f"left out: {module}: {reason}" for module, reason in self.left_out]
        return "\n".join([_HEADER, *lines, *left])


_NUMBERS = {
    "a": ("a", 6, 3),
    "b": ("b", 6, 3),
    "c": ("c", 6, 3),
    "d": ("d", 6, 3),
    "theta_distance": ("dist Θ", 7, 4),
    "theta_position": ("pos Θ", 6, 2),
    "stable_rank": ("st.rank", 7, 2),
    "pairing": ("pairing", 7, 3),
}
_SHOWN = ["layer", "head", *_NUMBERS, "head_type", "status", "flags"]
_HEADER = " ".join([f"{'head':8}", *(f"{title:>{width}}" for title, width, _ in _NUMBERS.values()), "type  status"])


def _row_text(row: dict[str, Any]) -> str:
    name = head_label(row["layer"], row["head"])
    numbers = [_number(row[key], width, digits) for key, (_, width, digits) in _NUMBERS.items()]
    return " ".join(
        [f"{name:8}", *numbers, f"{row['head_type'] or '-':4} ", row["status"], row["flags"] or ""]
    ).rstrip()


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None or value != value else f"{value:{width}.{digits}f}"
