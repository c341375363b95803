"""Simulated arrays in a file of the user's cache; a cache that cannot be read or written is done without."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["cache_directory", "cached"]

Arrays = Mapping[str, NDArray[np.float64]]


def cache_directory() -> Path:
    """``$HEADWATCH_CACHE``, else ``~/.cache/headwatch``."""
    given = os.environ.get("HEADWATCH_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "headwatch"


def cached(name: str, keys: tuple[str, ...], size: int, compute: Callable[[], Arrays]) -> Arrays:
    """What ``compute`` gives, from the file ``<name>.npz`` where that holds ``size`` finite values for every key."""
    try:
        path = cache_directory() / f"{name}.npz"
        found = _read(path, keys, size)
        if found is not None:
            return found
        arrays = compute()
        _write(path, arrays)
    except RuntimeError:  # no home directory
        arrays = compute()
    return arrays


def _read(path: Path, keys: tuple[str, ...], size: int) -> Arrays | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in keys}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return arrays if all(_sane(values, size) for values in arrays.values()) else None


def _sane(values: NDArray[np.float64], size: int) -> bool:
    return values.shape == (size,) and values.dtype == np.float64 and bool(np.isfinite(values).all())


def _write(path: Path, arrays: Arrays) -> None:
    """Write beside the file, then rename: a reader sees all of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez_compressed(file, allow_pickle=False, **dict(arrays))
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError:
        return
