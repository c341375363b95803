"""A resumed run goes on with the same numbers, or says that it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headwatch.run import StoreError, load

__all__ = ["earlier_info", "missing_history", "other_documents", "refuse_other_numbers"]

# settings that decide what a number means; others may change from one start to the next
_MEANING = ("biases", "norm_gain", "displacements", "special_tokens", "query_stride")


def earlier_info(path: Path) -> dict[str, Any]:
    """``run.json`` of a run as it was left; empty where there is none."""
    try:
        return load(path).info
    except StoreError:
        return {}


def refuse_other_numbers(earlier: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Hold the settings of a resume against those that the run began with.

    Raises:
        ValueError: a monitor would write numbers of another meaning into the same table.

    >>> refuse_other_numbers({"profile": {"biases": True}}, {"profile": {"biases": True, "include": ["L00.*"]}})
    """
    for monitor, own in settings.items():
        before = earlier.get(monitor)
        if not isinstance(before, Mapping):
            continue
        for key in _MEANING:
            if key in own and key in before and before[key] != own[key]:
                raise ValueError(
                    f"{key}: this run was measured with {key}={before[key]!r}, and the resume asks for {own[key]!r}: "
                    f"one table would hold two kinds of numbers. Pass {key}={before[key]!r} as before, or name='...' "
                    "to record the other kind beside it from here on."
                )


def other_documents(earlier: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What to say of every monitor whose probe documents are not those that the run began with."""
    for monitor, own in settings.items():
        before = (earlier.get(monitor) or {}).get("documents")
        if before is not None and own.get("documents") != before:
            yield (
                f"the {monitor} monitor resumes with other probe documents than the run began with: its signatures "
                "before and after are not of the same texts. A validation loader that shuffles does that; pass fixed "
                "documents as probe=."
            )


def missing_history(root: Path, run_id: str, step: int) -> str:
    """What to say where a checkpoint belongs to a run that is not under this directory."""
    return (
        f"training goes on at step {step} of run {run_id}, but {root / 'headwatch'} does not have that run: its "
        "earlier snapshots stay where they are, and drift counts from here. dirpath= (or the Trainer's "
        "default_root_dir) of the first start goes on with them."
    )
