"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["write_json", "write_parquet", "write_whole"]


def write_whole(path: Path, scratch: Path, write: Callable[[Path], object]) -> None:
    """Write through ``scratch`` (a folder on the same file system), flush to disk, rename into place.

    A kill at any moment leaves the old file or the new one. A failed write leaves no temporary file behind.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = scratch / f"{path.parent.name}-{path.name}-{os.getpid()}"
    try:
        write(temporary)
        _flush(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, scratch: Path, value: Any) -> None:
    """A JSON file, whole or not at all. NaN is refused: it is not JSON."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    write_whole(path, scratch, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_parquet(path: Path, scratch: Path, table: pa.Table) -> None:
    """A Parquet file, whole or not at all."""
    write_whole(path, scratch, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def _flush(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
