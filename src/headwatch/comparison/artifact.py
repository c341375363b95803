"""A run's store, fetched from its W&B artifact."""

from __future__ import annotations

import tempfile
from pathlib import Path

from headwatch.sinks.artifact import ARTIFACT_TYPE, artifact_name

__all__ = ["PREFIX", "download_store"]

PREFIX = "wandb:"


def download_store(address: str, folder: Path | None = None) -> Path:
    """Download the newest artifact that the run's monitor left at the end of ``fit``.

    Args:
        address: ``wandb:entity/project/run``, the run by its id.
        folder: where to put it; a temporary directory by default.

    Returns:
        The store's directory.

    Raises:
        ValueError: the address has another form, or W&B has no such artifact; the message says what to do.
    """
    parts = address.removeprefix(PREFIX).strip("/").split("/")
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"{address!r}: expected wandb:entity/project/run, with the run's id as in its page's address.")
    entity, project, run_id = parts
    name = f"{entity}/{project}/{artifact_name(run_id)}:latest"
    target = folder or Path(tempfile.mkdtemp(prefix="headwatch-"))
    return _download(name, target / run_id)


def _download(name: str, target: Path) -> Path:
    import wandb

    try:
        wandb.Api().artifact(name, type=ARTIFACT_TYPE).download(root=str(target))
    except (wandb.Error, ValueError, OSError) as error:
        raise ValueError(
            f"W&B gave no artifact {name} ({str(error)[:300]}). It is uploaded at the end of fit with a WandbLogger; "
            "check the address and `wandb login`, or give the store's directory instead."
        ) from error
    return target
