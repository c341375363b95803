"""What the W&B workspace shows, in reading order: sections of charts and texts, all made from the metric registry.

Pure description; ``headwatch.dashboard_workspace`` turns it into a ``wandb-workspaces`` object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from headwatch.metrics import HEADLINE_KEYS, REGISTRY, SIGNATURE_HEADLINE, SIGNATURE_KEYS
from headwatch.sinks.pictures import PICTURE_KEY

__all__ = ["Chart", "Section", "Text", "describe", "keys_named", "layers_in", "patterns_named", "sections_for"]

QUANTILES = ("p90", "median", "p10")


@dataclass(frozen=True)
class Chart:
    """One panel with data.

    Attributes:
        title: heading; of a chart that misleads alone, with the caveat in brief.
        keys: W&B keys that are drawn as lines, or shown as pictures.
        pattern: regular expression over keys, one line per match; with non-capturing groups only, as W&B asks for.
        kind: lines over steps, or pictures with a step slider.
    """

    title: str
    keys: tuple[str, ...] = ()
    pattern: str = ""
    kind: Literal["lines", "pictures"] = "lines"


@dataclass(frozen=True)
class Text:
    """A panel of markdown: how to read its neighbours, and what they do not mean."""

    markdown: str


@dataclass(frozen=True)
class Section:
    """A section of the workspace; closed ones load when they are opened."""

    name: str
    panels: tuple[Chart | Text, ...]
    open: bool = False
    columns: int = 3

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Panels with data."""
        return tuple(panel for panel in self.panels if isinstance(panel, Chart))


_THETA = (
    "**Distance to Θ does not measure learning by itself.** A random head sits at M, which lies on Θ, so the "
    "distance starts near 0, and a head that moves *along* Θ keeps it near 0. Read it with the position on Θ and "
    "the stable rank."
)
_CONSISTENCY = (
    "**Consistency does not mean that heads differ.** A fixed random network is consistent too, with a dispersion "
    "near 0: only both high together say that heads have characters of their own. **Within** takes each layer's mean "
    "out first. **Drift** below its **noise floor** is the scatter of the probe documents, not movement."
)
_GLANCE = (
    "**Read from the left, row by row.** 1 Is anything wrong? 2 Are heads leaving chance? 3 Do they move along Θ "
    "or off it? 4 Do they become rank-one? 5 Which layers?\n\n"
    "Lines are the median and the 10 % and 90 % quantiles over heads. Share beyond the null: heads whose "
    "statistics random weights of this shape would hardly give, corrected for the number of heads.\n\n" + _THETA
)
_BUDGETS = (
    "Budgets for KV-cache eviction are measured from look-back queries at the end of fit, with "
    "`MarginalAttentionMonitor(budgets=True)`; they lie in `budgets/` of the run's artifact, with a picture, not in "
    "these charts. **These charts are no budgets**: how few keys a head needs while "
    "reading says little about which keys it will need later; fixed budgets from reading attention starve "
    "induction heads."
)
_COST = (
    "Seconds that headwatch blocked training for the snapshot, and the share of training time that it took so "
    "far. Work on its own thread is not in it."
)


def sections_for(n_layers: int) -> tuple[Section, ...]:
    """The workspace's sections for a model of ``n_layers`` attention layers.

    Raises:
        ValueError: no layers.
    """
    if n_layers < 1:
        raise ValueError(f"dashboard: expected 1 layer or more, found {n_layers}.")
    layers = range(n_layers)
    return (
        Section("1 Drift at a glance", (Text(_GLANCE), *_glance()), open=True, columns=4),
        Section(
            "2 Heads in the simplex", (Chart("All heads, step by step", (PICTURE_KEY,), kind="pictures"),), True, 1
        ),
        Section("3 Which layers", (_guide(HEADLINE_KEYS, _THETA), *map(_layer_lines, HEADLINE_KEYS)), open=True),
        _heads("4 Heads: distance to Θ beside position", ("theta_distance", "theta_position"), layers, _THETA),
        _heads("5 Heads: rank", ("stable_rank", "participation_ratio"), layers),
        _heads("6 Heads: pairing and drift", ("pairing", "drift"), layers),
        Section("7 Signatures", (_guide(SIGNATURE_KEYS, _CONSISTENCY), *_signatures())),
        _heads("8 Heads: signatures", SIGNATURE_HEADLINE, layers),
        Section("9 Budgets", (Text(_BUDGETS), _layer_lines("c95"), _layer_lines("sink_share"))),
        Section("10 Cost of watching, and loss", (Text(_COST), *_cost()), columns=4),
    )


def _glance() -> Iterable[Chart]:
    yield Chart("Wrong? Training loss at snapshots", ("headwatch/loss",))
    yield Chart("Wrong? Share of heads that are broken (zero, NaN, Inf)", ("headsum/broken/share",))
    yield Chart("Wrong? Largest logit of any head", ("headsum/max_logit/max", "headsum/max_logit/median"))
    yield Chart("Wrong? Lowest row entropy of any head", ("headsum/row_entropy/min", "headsum/row_entropy/median"))
    yield Chart("Leaving chance: share of heads beyond the null", ("headsum/beyond_null/share",))
    yield _quantiles("drift", "Leaving chance: drift from the first snapshot")
    yield _quantiles("abs_theta_position", "Along Θ: |position|, 0 at M, 1 at a vertex")
    yield _quantiles("theta_distance", "Off Θ: distance (0 at the start is not order)")
    yield Chart("Rank-one: stable rank", _of("stable_rank", (*QUANTILES, "min")))
    yield Chart("Rank-one: share of heads of stable rank below 2", ("headsum/rank_one/share",))
    yield _quantiles("pairing", "Balance: pairing score (near 1 at the start)")
    yield _layer_lines("drift", "Which layers: drift, a line per layer")


def _of(column: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"headsum/{column}/{name}" for name in names)


def _quantiles(column: str, title: str) -> Chart:
    return Chart(title, _of(column, QUANTILES))


def _layer_lines(key: str, title: str = "") -> Chart:
    return Chart(title or f"{_title(key)}, median of each layer", pattern=rf"^headsum/{key}/L(?:\d+)$")


def _heads(name: str, keys: Sequence[str], layers: Iterable[int], caveat: str = "") -> Section:
    """One panel per layer and metric with a line per head; the metrics of a layer side by side."""
    panels = [
        Chart(f"L{layer:02}: {_title(key)}", pattern=rf"^heads/{key}/L{layer:02}\.H(?:\d+)$")
        for layer in layers
        for key in keys
    ]
    return Section(name, (_guide(keys, caveat), *panels), columns=len(keys))


def _signatures() -> Iterable[Chart]:
    for key in SIGNATURE_KEYS:
        yield _quantiles(key, f"{_title(key)} over heads")
        yield Chart(
            f"{_title(key)}: consistency with dispersion", _of(key, ("consistency", "consistency_within", "dispersion"))
        )
        yield Chart(f"{_title(key)}: drift with its noise floor", _of(key, ("drift", "noise_floor")))


def _cost() -> Iterable[Chart]:
    yield Chart("Seconds blocked by the snapshot", ("headwatch/seconds",))
    yield Chart("Share of training time", ("headwatch/overhead",))
    yield Chart("Optimizer steps (as in checkpoint names)", ("headwatch/global_step",))
    yield Chart("Training loss at snapshots", ("headwatch/loss",))


def _title(key: str) -> str:
    title = REGISTRY[key].title
    return f"{title} (read with position)" if key == "theta_distance" else title


def _guide(keys: Sequence[str], caveat: str = "") -> Text:
    lines = [f"- **{REGISTRY[key].title}**: {REGISTRY[key].meaning} {REGISTRY[key].change}" for key in keys]
    return Text("\n".join(([caveat, ""] if caveat else []) + lines))


def keys_named(sections: Iterable[Section]) -> set[str]:
    """Every W&B key that a chart names."""
    return {key for section in sections for chart in section.charts for key in chart.keys}


def patterns_named(sections: Iterable[Section]) -> set[str]:
    """Every pattern over W&B keys that a chart names."""
    return {chart.pattern for section in sections for chart in section.charts if chart.pattern}


def layers_in(keys: Iterable[str]) -> int:
    """Number of layers that a run's W&B keys speak of; 0 for a run without headwatch."""
    found = [re.fullmatch(r"headsum/\w+/L(\d+)", key) for key in keys]
    return max((int(match[1]) + 1 for match in found if match), default=0)


def describe(sections: Iterable[Section]) -> str:
    """The specification as text, for ``--dry-run``."""
    return "\n".join(line for section in sections for line in _describe(section))


def _describe(section: Section) -> Iterable[str]:
    state = "open" if section.open else "closed"
    yield f"\n{section.name}  ({state}, {len(section.charts)} charts, {section.columns} per row)"
    for panel in section.panels:
        if isinstance(panel, Text):
            yield from (f"  | {line}" for line in panel.markdown.splitlines())
        else:
            yield f"  {panel.title}"
            yield f"      {panel.pattern or ', '.join(panel.keys)}"
