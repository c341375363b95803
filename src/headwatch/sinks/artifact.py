"""The store as a W&B artifact, so that runs can be compared from anywhere."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wandb import Run

__all__ = ["ARTIFACT_TYPE", "artifact_name", "store_files", "upload_store"]

ARTIFACT_TYPE = "headwatch"
_PATTERNS = ("run.json", "*/*.parquet", "*/*.npy", "*/*.safetensors")


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


def upload_store(run: Run, store: Path, timeout: float = 60.0) -> None:
    """Log the store to ``run``; W&B sends the files in the background, and ``wandb sync`` those of an offline run.

    The files are sent from where they lie, so they must stay there until then.

    Args:
        run: the run that the store belongs to.
        store: the run's directory.
        timeout: seconds to wait: W&B asks its server first, and that blocks while the network is down.

    Raises:
        TimeoutError: W&B did not answer in time.
    """
    _within(timeout, lambda: _upload(run, store))


def _upload(run: Run, store: Path) -> None:
    import wandb

    name = artifact_name(run.id)
    artifact = wandb.Artifact(name, type=ARTIFACT_TYPE, description="headwatch's record of this run")
    for file in store_files(store):
        artifact.add_file(str(file), name=file.relative_to(store).as_posix(), policy="immutable")
    run.log_artifact(artifact)


def _within(timeout: float, job: Callable[[], None]) -> None:
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
