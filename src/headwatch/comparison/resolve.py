"""From what the user named to runs that can be compared; the rest is left out by name, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headwatch.comparison.artifact import PREFIX, download_store
from headwatch.run import Run, StoreError, find_runs, load

__all__ = ["MOST", "Resolved", "Source", "read_profile", "resolve", "state_note", "unique_labels"]

MOST = 50
Source = str | Path | Run


@dataclass(frozen=True)
class Resolved:
    """What was named, sorted.

    Attributes:
        runs: runs that can be opened, each once, in the order given.
        left_out: what cannot, with the reason.
        repeated: what was named although its run was named before, with the words for it.
    """

    runs: list[Run]
    left_out: list[tuple[str, str]]
    repeated: list[tuple[str, str]]


def resolve(sources: Iterable[Source]) -> Resolved:
    """Open store directories, directories that hold runs, ``wandb:entity/project/run`` and opened runs.

    Raises:
        ValueError: more than fifty runs.
    """
    runs: dict[Path, Run] = {}
    left_out: list[tuple[str, str]] = []
    repeated: list[tuple[str, str]] = []
    for source in sources:
        for place in _expand(source):
            try:
                run = _open(place)
            except (StoreError, ValueError, ImportError, OSError) as error:
                left_out.append((str(place), str(error)))
            else:
                key = run.path.resolve()
                if key in runs:
                    repeated.append((str(run.path), f"the same run as {runs[key].path}; name another one"))
                runs.setdefault(key, run)
    if len(runs) > MOST:
        raise ValueError(f"compare: {len(runs)} runs; at most {MOST} can be told apart on one page. Name fewer.")
    return Resolved(list(runs.values()), left_out, repeated)


def _expand(source: Source) -> Sequence[Source]:
    if isinstance(source, Run) or str(source).startswith(PREFIX) or (Path(source) / "run.json").exists():
        return [source]
    return find_runs(source) or [source]


def _open(place: Source) -> Run:
    if isinstance(place, Run):
        return place
    return load(download_store(str(place)) if str(place).startswith(PREFIX) else place)


def read_profile(run: Run) -> pa.Table:
    """The run's profiles.

    Raises:
        StoreError: it has none, or a part cannot be read.
    """
    folder = "profile" if "profile" in run.monitors else next((m for m in run.monitors if m.startswith("profile")), "")
    if not folder:
        hint = "it has just begun; try again after its first snapshot" if run.is_live else "its monitor never took one"
        raise StoreError(f"{run.path} holds no profile snapshot: {hint}.")
    try:
        return run.table(folder)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise StoreError(
            f"{run.path / folder} cannot be read ({error}). Delete the broken part to compare the rest."
        ) from error


def state_note(run: Run) -> str:
    """What a reader must know of a run that has not come to its end; empty for one that has."""
    if run.is_live:
        return "still going: compared up to its newest snapshot"
    if run.complete:
        return ""
    return "did not finish: compared up to its last snapshot"


def unique_labels(runs: Sequence[Run]) -> list[str]:
    """Names of the runs; where a name comes twice, with the id, and with a number where that comes twice too."""
    labels = [run.name for run in runs]
    labels = _told_apart(labels, [f"{run.name} ({run.id})" for run in runs])
    return _told_apart(labels, [f"{label} #{place + 1}" for place, label in enumerate(labels)])


def _told_apart(labels: Sequence[str], longer: Sequence[str]) -> list[str]:
    count = Counter(labels)
    return [more if count[label] > 1 else label for label, more in zip(labels, longer, strict=True)]
