"""What a reader must know of a comparison before reading its numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from headwatch.comparison.groups import GroupTest
from headwatch.comparison.matching import Matching
from headwatch.comparison.record import RunRecord
from headwatch.comparison.trajectories import Against, common_grid

__all__ = ["axis_for", "notes_of"]


def notes_of(
    records: Sequence[RunRecord],
    matching: Matching,
    test: GroupTest | None,
    group_by: str | None,
    place: float,
    against: Against,
) -> tuple[str, ...]:
    """Sentences for the page and the terminal."""
    return (
        *_states(records),
        *_axes(records, against),
        *_shapes(records, matching),
        *_matches(records, matching),
        *_groups(test, group_by, place, against),
    )


def _states(records: Sequence[RunRecord]) -> Iterator[str]:
    for record in records:
        if record.note:
            yield f"{record.label}: {record.note} (step {record.trajectories.steps[-1]})."


def axis_for(records: Sequence[RunRecord], wanted: Against) -> Against:
    """The axis wanted, or steps where no run recorded a loss."""
    if wanted == "loss" and all(np.isnan(record.trajectories.loss).all() for record in records):
        warnings.warn("compare: no run recorded a training loss; compared at equal steps instead.", stacklevel=3)
        return "step"
    return wanted


def _axes(records: Sequence[RunRecord], against: Against) -> Iterator[str]:
    axes = [record.trajectories.axis(against) for record in records]
    bare = [record.label for record, axis in zip(records, axes, strict=True) if np.isnan(axis).all()]
    if bare:
        yield f"No training loss was recorded by: {', '.join(bare)}. On the axis of loss they do not appear."
    if not len(common_grid(axes)):
        yield f"The runs share no {against} that all of them passed: heads are matched at the runs' last snapshots."


def _shapes(records: Sequence[RunRecord], matching: Matching) -> Iterator[str]:
    n = len({record.shape for record in records})
    if n > 1:
        yield (
            f"The runs have {n} different model shapes. Heads are matched between runs of one shape only; "
            "different shapes are compared by their distributions only."
        )
    if matching.alone and n < len(records):
        names = ", ".join(records[i].label for i in matching.alone)
        yield f"No other run has the shape of: {names}."


def _matches(records: Sequence[RunRecord], matching: Matching) -> Iterator[str]:
    ways = {match.by for match in matching.matches}
    if "index" in ways:
        yield "Runs with the seed of their reference run are matched head by head by index."
    if "assignment" not in ways:
        return
    tests = "1 test" if matching.tests == 1 else f"{matching.tests} tests"
    yield (
        "Heads of other seeds are exchangeable within a layer: they are matched by optimal assignment on their "
        "trajectories (profile and stable rank). Chance: the pooled heads of a layer dealt to the runs at random, "
        f"{matching.permutations} times; {tests}, Benjamini–Hochberg at {matching.level:.0%}. "
        "A head is a match where its test passes and the pair is closer than the mean pair under chance."
    )
    if any(record.seed is None for record in records):
        yield "Some runs name no seed in their configuration (a key that ends in seed): they are taken to differ in it."
    if any(match.verdict == "too few heads to tell" for match in matching.matches):
        yield (
            "Some layers have too few heads for any match to stand out from chance, even with all layers and runs "
            "together. More runs of other seeds would help."
        )


def _groups(test: GroupTest | None, group_by: str | None, place: float, against: Against) -> Iterator[str]:
    if test is None:
        return
    where = "at the end of each run, as they share no part of the axis" if place != place else f"at {against} {place:g}"
    kind = "all" if test.exact else "random"
    yield (
        f"Groups by {group_by}: medians over heads {where}, permutation test over runs ({kind} {test.n_labellings} "
        "labellings), Benjamini–Hochberg over all statistics. "
        f"The smallest p that these runs can reach is {test.smallest_p:.2g}."
    )
    if test.smallest_p > 0.05:
        yield "With so few runs per group no difference can be significant at 5 %: read the means, not the p-values."
