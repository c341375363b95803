"""What is worth a message: heads that collapse, logits that explode, heads that leave chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow.compute as pc

from headwatch.snapshot import Snapshot, column, head_names

__all__ = ["ALERT_KINDS", "DEFAULT_ALERTS", "Alert", "AlertKind", "Alerts"]

AlertKind = Literal["rank_one", "entropy", "logits", "left_null"]
ALERT_KINDS: tuple[AlertKind, ...] = get_args(AlertKind)
# in a small decoder most heads fall to rank one and leave the null: those two are noisy
DEFAULT_ALERTS: tuple[AlertKind, ...] = ("entropy", "logits")

RANK_ONE_BELOW, RANK_ONE_FROM = 1.5, 2.0
ENTROPY_BELOW, ENTROPY_FROM = 0.05, 0.5  # nats
LOGITS_ABOVE = 1000.0

_NAMED = 8  # heads that a text lists


@dataclass(frozen=True)
class Alert:
    """One event of one or several heads at one step.

    Attributes:
        kind: what happened.
        step: optimizer steps done.
        heads: names such as ``L03.H07``.
        title: one line, below 64 characters (W&B's limit).
        text: what was seen, what it means, what to look at.
    """

    kind: AlertKind
    step: int
    heads: tuple[str, ...]
    title: str
    text: str


@dataclass(frozen=True)
class _Rule:
    """Fires for a head when ``column`` is below or above a bound, having been at least ``calm`` before."""

    kind: AlertKind
    column: str
    below: float = -np.inf
    above: float = np.inf
    calm: float | None = None
    what: str = ""
    advice: str = ""

    def alarming(self, numbers: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.asarray((numbers < self.below) | (numbers > self.above))

    def calmed(self, numbers: np.ndarray) -> np.ndarray:
        if self.calm is None:
            return np.ones(len(numbers), dtype=bool)
        return np.asarray(numbers >= self.calm)


_RULES = (
    _Rule(
        "rank_one", "stable_rank", below=RANK_ONE_BELOW, calm=RANK_ONE_FROM, what="rank-one collapse",
        advice="One direction carries nearly all of the form. Look at the signatures: a head that is also peaked has "
        "become a fixed pattern; one that is not may be dying.",
    ),
    _Rule(
        "entropy", "row_entropy", below=ENTROPY_BELOW, calm=ENTROPY_FROM, what="entropy collapse",
        advice="Every query attends to a single key. Harmless in a previous-token or sink head; in many heads at once "
        "it announces instability: look at the largest logits and the learning rate.",
    ),
    _Rule(
        "logits", "max_logit", above=LOGITS_ABOVE, what="exploding logits",
        advice="Scores this large saturate softmax and overflow in half precision. Lower the learning rate, or use "
        "QK-norm, a soft-cap or clipping of W_Q and W_K.",
    ),
    _Rule(
        "left_null", "left_null_step", above=-0.5, what="left the null",
        advice="Its statistics lie outside what random weights of this shape give, over the heads of the whole model.",
    ),
)  # fmt: skip


class Alerts:
    """Watches consecutive snapshots; each head is alarmed at most once per kind.

    =============  ==========================================================  =====
    kind           fires when                                                  default
    =============  ==========================================================  =====
    ``rank_one``   stable rank falls below 1.5, having been 2 or more          off
    ``entropy``    row entropy falls below 0.05 nats, having been 0.5 or more  on
    ``logits``     largest logit above 1000                                    on
    ``left_null``  the head leaves the null                                    off
    =============  ==========================================================  =====

    The thresholds are ours. A head that starts below one (a fine-tune) has not fallen below it.

    Args:
        kinds: kinds to watch for.
        state: what ``state()`` of an earlier instance returned, on resume.

    Raises:
        ValueError: an unknown kind.
    """

    def __init__(self, kinds: Iterable[str] = DEFAULT_ALERTS, state: dict[str, list[str]] | None = None) -> None:
        names = tuple(kinds)
        unknown = [name for name in names if name not in ALERT_KINDS]
        if unknown:
            raise ValueError(f"alerts: unknown kind {unknown[0]!r}; expected some of: {', '.join(ALERT_KINDS)}")
        self._rules = [rule for rule in _RULES if rule.kind in names]
        state = state or {}
        self._said = set(state.get("said", []))
        self._calm = set(state.get("calm", []))

    def check(self, snapshot: Snapshot) -> list[Alert]:
        """Alerts that this snapshot gives rise to, at most one per kind, naming every head that is concerned."""
        table = snapshot.heads.filter(pc.equal(snapshot.heads["displacement"], 0))
        names = head_names(table)
        rules = [rule for rule in self._rules if rule.column in table.column_names]
        found = [(rule, self._heads(rule, names, column(table, rule.column))) for rule in rules]
        return [_alert(rule, snapshot.step, heads) for rule, heads in found if heads]

    def _heads(self, rule: _Rule, names: Sequence[str], numbers: np.ndarray) -> list[str]:
        heads = []
        for name, alarming, calm in zip(names, rule.alarming(numbers), rule.calmed(numbers), strict=True):
            key = f"{rule.kind} {name}"
            if calm:
                self._calm.add(key)
            if alarming and key in self._calm and key not in self._said:
                self._said.add(key)
                heads.append(name)
        return heads

    def state(self) -> dict[str, list[str]]:
        """What must survive a checkpoint, in plain Python."""
        return {"said": sorted(self._said), "calm": sorted(self._calm)}


def _alert(rule: _Rule, step: int, heads: Sequence[str]) -> Alert:
    who = f"Head {heads[0]}" if len(heads) == 1 else f"{len(heads)} heads"
    more = f" and {len(heads) - _NAMED} more" if len(heads) > _NAMED else ""
    listed = ", ".join(heads[:_NAMED]) + more
    text = f"{rule.what.capitalize()} at step {step}: {listed}. {rule.advice}"
    return Alert(rule.kind, step, tuple(heads), f"{who}: {rule.what} (step {step})", text)
