"""What the page says above its figures and tables."""

from __future__ import annotations

from headwatch.comparison.comparison import Comparison
from headwatch.comparison.page_data import snapshots_for

__all__ = ["BANDS", "DRIFT", "RUNS", "SIGNATURES", "config_intro", "group_intro", "match_intro", "overlay_intro"]

RUNS = "One row per run: how far its heads went, and when they left chance."

BANDS = (
    "Over the heads of a layer in each run; the line is the mean over a group's runs, the band the range from run to "
    "run. No band where a group has one run."
)

DRIFT = (
    "Distance and path of the profile in R⁴; the step at which the head left what chance gives, and at which its "
    "stable rank first fell below 2; how often its parity flipped. A dash: never."
)

SIGNATURES = (
    "Pearson correlation over heads of the last signatures of two runs, after removing the mean over heads (above the "
    "diagonal) and the mean of each layer (below). Heads are paired by index for one seed, else by the match above; "
    "where that is no better than chance the correlation means little, and so it does where the dispersion over heads "
    "is near 0."
)


def overlay_intro(comparison: Comparison) -> str:
    """What the simplex shows, and how many snapshots of each run the page keeps."""
    snapshots = snapshots_for(comparison.records)
    full = max(record.n_snapshots for record in comparison.records)
    kept = (
        f" The page keeps {snapshots} snapshots per run of up to {full}; the store has all." if full > snapshots else ""
    )
    return (
        "Every head at its profile (a, b, c, d), all runs at the same step, or at the same loss so that runs of other "
        "speeds line up. Between snapshots the way is drawn straight; a run that has ended stays where it stopped. "
        f"A random head sits at M, on the red line Θ of rank-one forms.{kept}"
    )


def match_intro(comparison: Comparison) -> str:
    """What the numbers of a match are, and how chance was judged."""
    matching = comparison.matching
    return (
        "Distance: root mean square over the shared snapshots, 1 is a typical spread of heads. Margin: how much dearer "
        "the layer's assignment gets without the pair; near 0 another partner would do as well. Chance: mean distance "
        f"of a pair when heads are dealt to the runs at random ({matching.permutations} deals). p is adjusted by "
        f"Benjamini–Hochberg over all tests ({matching.tests}), level {matching.level:.0%}."
    )


def group_intro(comparison: Comparison) -> str:
    """How the groups were tested."""
    return next((note for note in comparison.notes if note.startswith("Groups by")), "")


def config_intro(comparison: Comparison) -> str:
    """What the table of configurations holds."""
    return "Keys on which the runs differ." if comparison.config.num_rows else "The runs' configurations do not differ."
