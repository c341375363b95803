"""Compare runs: read them, match their heads, test their groups, write the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headwatch.comparison.comparison import Comparison
from headwatch.comparison.config import differences, group_labels, groups_but_for_seeds
from headwatch.comparison.distributions import ends, layer_table
from headwatch.comparison.features import trajectory_features
from headwatch.comparison.groups import GroupTest, group_test
from headwatch.comparison.matching import Candidate, Matching, match_runs
from headwatch.comparison.notes import axis_for, notes_of
from headwatch.comparison.record import RunRecord, record
from headwatch.comparison.resolve import Source, resolve, unique_labels
from headwatch.comparison.signatures import signature_table
from headwatch.comparison.tables import drift_rows, group_rows, match_rows, run_rows
from headwatch.comparison.trajectories import Against, Array, at, common_grid
from headwatch.run import StoreError

__all__ = ["compare"]


def compare(
    paths: Iterable[Source],
    *,
    group_by: str | None = None,
    output: str | Path | None = None,
    against: Against = "step",
    permutations: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare two to fifty runs.

    Args:
        paths: run directories, directories that hold runs, ``wandb:entity/project/run``, or opened runs. What cannot
            be read is left out and named in ``left_out``.
        group_by: dotted key of the configuration, such as ``"optimizer.lr"``: differences between groups are tested.
        output: where to write the page (HTML); None writes none.
        against: put runs side by side at equal steps, or at equal loss so that runs of other speeds line up.
        permutations: random deals per matching test; None chooses 99 to 999 by the amount of work.
        seed: of all random draws.

    Raises:
        ValueError: fewer than two runs can be read (the message says why for each), more than fifty, or an unknown
            ``group_by`` key.

    Example:
        >>> compare(["runs/a", "runs/b"]).to_pandas("matches")  # doctest: +SKIP
    """
    if against not in ("step", "loss"):
        raise ValueError(f"against: expected 'step' or 'loss', found {against!r}.")
    records, left_out = _read(paths)
    against = axis_for(records, against)
    configs = [r.config for r in records]
    names = group_labels(configs, group_by) if group_by else groups_but_for_seeds(configs)
    matching = _match(records, against, permutations, seed)
    test, groups, place = _test(records, names, against, seed) if group_by else (None, None, float("nan"))
    comparison = Comparison(
        runs=run_rows(records, names),
        left_out=tuple(left_out),
        config=differences(configs, [r.label for r in records]),
        drift=drift_rows(records),
        matches=match_rows(records, matching),
        layers=layer_table(records),
        groups=groups,
        signatures=signature_table(records, matching),
        notes=notes_of(records, matching, test, group_by, place, against),
        against=against,
        records=records,
        group_names=names,
        matching=matching,
        test=test,
    )
    return _with_page(comparison, output)


def _with_page(comparison: Comparison, output: str | Path | None) -> Comparison:
    if output is None:
        return comparison
    from headwatch.comparison.page import write_page

    return replace(comparison, output=write_page(comparison, Path(output)))


def _read(paths: Iterable[Source]) -> tuple[list[RunRecord], list[tuple[str, str]]]:
    resolved = resolve(paths)
    records, left_out = [], list(resolved.left_out)
    for run, label in zip(resolved.runs, unique_labels(resolved.runs), strict=True):
        try:
            records.append(record(run, label))
        except (StoreError, OSError) as error:
            left_out.append((str(run.path), str(error)))
    if len(records) < 2:
        reasons = "".join(f"\n  {place}: {reason}" for place, reason in [*left_out, *resolved.repeated])
        raise ValueError(f"compare: needs two runs that can be read, found {len(records)}.{reasons}")
    return records, left_out


def _match(records: Sequence[RunRecord], against: Against, permutations: int | None, seed: int) -> Matching:
    features: dict[str, Array] = {}
    for shape in dict.fromkeys(r.shape for r in records):
        features |= _features([r for r in records if r.shape == shape], against)
    candidates = [Candidate(r.shape, r.seed, r.trajectories.layers(), features[r.label]) for r in records]
    return match_runs(candidates, permutations=permutations, seed=seed)


def _features(members: Sequence[RunRecord], against: Against) -> dict[str, Array]:
    """Features on what the runs of one shape share; their last snapshots where they share nothing."""
    axes = [r.trajectories.axis(against) for r in members]
    grid = common_grid(axes)
    ways = [(r.trajectories.pi(), r.trajectories.values["stable_rank"]) for r in members]
    if len(grid):
        ways = [(at(axis, pi, grid), at(axis, rank, grid)) for axis, (pi, rank) in zip(axes, ways, strict=True)]
    else:
        ways = [(pi[-1:], rank[-1:]) for pi, rank in ways]
    found = trajectory_features([pi for pi, _ in ways], [rank for _, rank in ways])
    return {r.label: f for r, f in zip(members, found, strict=True)}


def _test(
    records: Sequence[RunRecord], names: Sequence[str], against: Against, seed: int
) -> tuple[GroupTest, pa.Table, float]:
    place, statistics, values = ends(records, against)
    test = group_test(values, names, seed=seed)
    return test, group_rows(statistics, test), place
