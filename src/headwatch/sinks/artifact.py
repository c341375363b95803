"""The store as a W&B artifact, so that runs can be compared from anywhere."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["ARTIFACT_TYPE", "artifact_name", "store_files", "within"]

ARTIFACT_TYPE = "headwatch"
_PATTERNS = ("run.json", "*/*.parquet", "*/*.npy", "*/*.safetensors", "budgets/budgets.json", "budgets/budgets.png")


def artifact_name(run_id: str) -> str:
    """Name of the artifact that holds a run's store.

    >>> artifact_name("1x2y:3")
    'headwatch-1x2y-3'
    """
    return "headwatch-" + re.sub(r"[^\w.-]", "-", run_id, flags=re.ASCII)


def store_files(store: Path) -> Iterator[Path]:
    """Files of a store that are worth sending: ``run.json`` and the parts; no lock, no scratch, nothing superseded."""
    for pattern in _PATTERNS:
        for file in sorted(store.glob(pattern)):
            if not file.parent.name.startswith("."):
                yield file


def within(timeout: float, job: Callable[[], None]) -> None:
    """Run a job on a thread of its own, and wait ``timeout`` seconds for it.

    Raises:
        TimeoutError: it takes longer; it goes on by itself.
        BaseException: what the job raised.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="headwatch-upload", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise TimeoutError(f"W&B did not take the store within {timeout:.0f} s. The store itself is complete")
    if errors:
        raise errors[0]
