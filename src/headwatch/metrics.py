"""The registry: every number that headwatch records, described once.

Docs, W&B sections, tooltips and table columns are generated from here; no other room describes a metric.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

__all__ = [
    "HEADLINE_KEYS",
    "HEAD_TYPES",
    "NULL_KEYS",
    "PROFILE_KEYS",
    "REGISTRY",
    "ROLE_KEYS",
    "SIGNATURE_HEADLINE",
    "SIGNATURE_KEYS",
    "Kind",
    "Metric",
    "Tail",
    "check_metrics",
    "keys_of",
]

Kind = Literal["profile", "signature"]
Tail = Literal["upper", "lower", "two-sided"]

HEAD_TYPES: tuple[str, ...] = ("II", "I+", "I-")  # what head_type is one of; drawings know it by its place here


@dataclass(frozen=True)
class Metric:
    """One recorded number of a head.

    Attributes:
        key: name of the column and part of the W&B key.
        title: what charts print.
        low, high: range; None where it is open.
        meaning: what the number is.
        change: what a change of it tells.
        unit: unit, "1" for a pure number.
        kind: the snapshot that holds it.
        cost: where its price is paid.
        tail: the side on which the head leaves chance; None where the metric has no null.
        dtype: type of the column.
    """

    key: str
    title: str
    low: float | None
    high: float | None
    meaning: str
    change: str
    unit: str = "1"
    kind: Kind = "profile"
    cost: str = "eigenvalues of a 2n × 2n matrix, on the worker"
    tail: Tail | None = None
    dtype: Literal["float", "int", "str", "bool"] = "float"


_FREE = "n × n products, on the worker"
_BOOK = "free: bookkeeping between snapshots"
_PROBE = "one probe forward, shared by all signatures"
_REPEATED = "one more forward, on repeated random tokens; with roles=True"


_PROFILE = (
    Metric(
        "a",
        "antisymmetric share a",
        0,
        1,
        "‖T‖²/‖L‖²: share of the form that is antisymmetric; ½ by chance.",
        "Falls when keys and queries come to use the same directions.",
        cost=_FREE,
        tail="two-sided",
    ),
    Metric(
        "b",
        "hyperbolic share b",
        0,
        1,
        "2⟨α,β⟩/‖L‖²: symmetric part whose spectrum pairs off about 0; ½ by chance.",
        "Falls when the form takes a sign (c or d rises).",
        tail="two-sided",
    ),
    Metric(
        "c",
        "positive share c",
        0,
        1,
        "‖(α−β)₊‖²/‖L‖²: positive excess; 1 for a positive semidefinite form.",
        "Rises when the head scores tokens high that resemble the query.",
        tail="upper",
    ),
    Metric(
        "d",
        "negative share d",
        0,
        1,
        "‖(α−β)₋‖²/‖L‖²: negative excess; 1 for a negative semidefinite form.",
        "Rises when the head scores tokens low that resemble the query.",
        tail="upper",
    ),
    Metric("b_sym", "b within the symmetric part", 0, 1, "b/(1−a).", "As b, with the antisymmetric part taken out."),
    Metric("c_sym", "c within the symmetric part", 0, 1, "c/(1−a).", "As c, with the antisymmetric part taken out."),
    Metric("d_sym", "d within the symmetric part", 0, 1, "d/(1−a).", "As d, with the antisymmetric part taken out."),
    Metric(
        "norm",
        "norm of the form",
        0,
        None,
        "‖L‖, Frobenius norm of W_Kᵀ W_Q.",
        "Grows as the head's scores sharpen; decays under weight decay.",
        cost=_FREE,
    ),
    Metric(
        "trace_ratio",
        "signed trace ratio",
        None,
        None,
        "tr L/‖L‖, in [−√n, √n].",
        "Positive: a token's score with itself is high on average.",
        cost=_FREE,
        tail="two-sided",
    ),
    Metric(
        "rho",
        "lobe ratio ρ",
        0,
        None,
        "‖β‖/‖α‖: negative lobe over positive lobe; 1 by chance.",
        "Below 1 the positive lobe wins, above 1 the negative one.",
        tail="two-sided",
    ),
    Metric(
        "pairing",
        "pairing score 𝒫",
        0,
        1,
        "1 − √(1−b_sym): 1 iff the symmetric spectrum is symmetric about 0.",
        "Falls when the head stops being hyperbolic planes in balance; near 1 at initialisation.",
        tail="lower",
    ),
    Metric(
        "pairing_bound",
        "pairing bound",
        0,
        1,
        "1 − |1−ρ|/√(1+ρ²): the largest 𝒫 that ρ allows.",
        "Read with the pairing score.",
    ),
    Metric(
        "pairing_gap",
        "pairing gap",
        0,
        1,
        "bound − 𝒫: how far the lobes differ in shape rather than in size.",
        "Rises when the two lobes take different shapes.",
    ),
    Metric(
        "lobe_departure",
        "lobe departure",
        0,
        None,
        "‖β − ρα‖/‖β‖: difference in shape of the lobes.",
        "Rises when the two lobes take different shapes.",
    ),
    Metric("balance", "balance of signs", 0, 1, "1 − |n₊−n₋|/(n₊+n₋).", "1 for every generic head with 2n ≤ N."),
    Metric(
        "participation_ratio",
        "participation ratio",
        1,
        None,
        "(Σh²)²/Σh⁴ over the singular values of L: 1 iff rank one, n iff flat.",
        "Falls when the head concentrates on few directions.",
        cost=_FREE,
        tail="lower",
    ),
    Metric(
        "stable_rank",
        "stable rank",
        1,
        None,
        "Σh²/h₁²: 1 iff rank one.",
        "Falls towards 1 when one direction takes over: the head truly becomes rank-one.",
        tail="lower",
    ),
    Metric(
        "leading_share",
        "leading share",
        0,
        1,
        "1/stable rank: energy of the leading direction.",
        "Rises to 1 as the head becomes rank-one.",
    ),
    Metric(
        "n_pos",
        "positive eigenvalues",
        0,
        None,
        "Count of positive eigenvalues of S.",
        "n for a generic head.",
        dtype="int",
    ),
    Metric(
        "n_neg",
        "negative eigenvalues",
        0,
        None,
        "Count of negative eigenvalues of S.",
        "n for a generic head.",
        dtype="int",
    ),
    Metric(
        "theta_distance",
        "distance to Θ",
        0,
        None,
        "Euclidean distance in R⁴ from the profile to Θ, the profiles of rank-one forms. Starts near 0: a random head "
        "sits at M, which lies on Θ.",
        "Rises when the head leaves Θ; alone it says nothing about learning, read it with position and stable rank.",
        tail="upper",
    ),
    Metric(
        "theta_position",
        "position on Θ",
        -1,
        1,
        "Signed place along Θ of the nearest point: 0 at M, +1 at the vertex c=1, −1 at d=1.",
        "Moves away from 0 when the head takes a sign along Θ.",
        tail="two-sided",
    ),
    Metric(
        "parity",
        "parity",
        -1,
        1,
        "Sign of c − d; 0 in the dead zone about M.",
        "A flip means that the head changed sides.",
        dtype="int",
    ),
    Metric(
        "head_type",
        "head type",
        None,
        None,
        "II iff c_sym + d_sym ≤ 0.02, else I+ if c_sym > d_sym, else I−.",
        "I+ attends to the like, I− to the unlike, II is balanced.",
        dtype="str",
    ),
    Metric(
        "drift",
        "drift",
        0,
        None,
        "Euclidean distance of the profile to the head's own first snapshot.",
        "How far the head has come.",
        cost=_BOOK,
    ),
    Metric(
        "path_length",
        "path length",
        0,
        None,
        "Sum of the profile's steps from snapshot to snapshot.",
        "Path much longer than drift: the head wanders.",
        cost=_BOOK,
    ),
)

_signature = partial(Metric, kind="signature", cost=_PROBE)
_SIGNATURE = (
    _signature(
        "n_eff",
        "effective share of keys",
        0,
        None,
        "exp(−KL(m_C ‖ u_C)): share of the keys attended; 1 for uniform attention under any mask.",
        "Falls when the head becomes selective.",
    ),
    _signature(
        "c95",
        "share of keys that hold 95 %",
        0,
        1,
        "u-mass of the keys of highest lift that hold 95 % of the attention mass; .95 for uniform attention.",
        "Falls when few keys take the attention.",
    ),
    _signature(
        "peak_mean",
        "mean peak",
        0,
        1,
        "Mean over keys of the largest attention that any query gives it.",
        "Rises when queries pick single keys.",
    ),
    _signature(
        "mutual_information",
        "mutual information",
        None,
        None,
        "Between query and key, minus its value for uniform attention under the same mask.",
        "Rises when different queries attend to different keys.",
        unit="nats",
    ),
    _signature(
        "sink_share",
        "sink share",
        0,
        1,
        "Attention that falls on ignored keys: the first valid token and special tokens.",
        "Rises when the head parks its attention.",
    ),
    _signature(
        "row_entropy",
        "row entropy",
        0,
        None,
        "Mean entropy of a query's attention.",
        "A fall to 0 is entropy collapse.",
        unit="nats",
    ),
    _signature(
        "max_logit",
        "largest logit",
        None,
        None,
        "Largest score before softmax over the probe documents.",
        "Unbounded growth announces instability.",
    ),
)

_role = partial(Metric, kind="signature", cost=_REPEATED)
_ROLES = (
    _role(
        "previous_token",
        "previous-token score",
        0,
        1,
        "Mean attention to the token before, on repeated random tokens.",
        "Near 1: a previous-token head, the first half of an induction circuit.",
    ),
    _role(
        "duplicate_token",
        "duplicate-token score",
        0,
        1,
        "Mean attention to a token's own earlier occurrence, on repeated random tokens.",
        "Near 1: a duplicate-token head.",
    ),
    _role(
        "induction",
        "induction score",
        0,
        1,
        "Mean attention to what followed a token's earlier occurrence, on repeated random tokens.",
        "Its rise is the forming of an induction head.",
    ),
)

REGISTRY: dict[str, Metric] = {metric.key: metric for metric in (*_PROFILE, *_SIGNATURE, *_ROLES)}
PROFILE_KEYS: tuple[str, ...] = tuple(metric.key for metric in _PROFILE)
SIGNATURE_KEYS: tuple[str, ...] = tuple(metric.key for metric in _SIGNATURE)
ROLE_KEYS: tuple[str, ...] = tuple(metric.key for metric in _ROLES)  # only where roles are asked for
NULL_KEYS: tuple[str, ...] = tuple(metric.key for metric in _PROFILE if metric.tail)
HEADLINE_KEYS: tuple[str, ...] = (
    "theta_distance",
    "theta_position",
    "stable_rank",
    "participation_ratio",
    "pairing",
    "drift",
)
SIGNATURE_HEADLINE: tuple[str, ...] = ("n_eff", "mutual_information", "row_entropy", "sink_share")


def keys_of(kind: Kind) -> tuple[str, ...]:
    """The metric columns of one kind of snapshot."""
    return PROFILE_KEYS if kind == "profile" else (*SIGNATURE_KEYS, *ROLE_KEYS)


def check_metrics(names: Iterable[str], kind: Kind) -> tuple[str, ...]:
    """Return the names as a tuple, or say which is unknown and what exists.

    Raises:
        ValueError: a name is not a numeric metric of this kind.
    """
    if isinstance(names, str):
        raise ValueError(f"metrics: expected a list of names, found one string; write [{names!r}].")
    names = tuple(names)
    known = [key for key in keys_of(kind) if REGISTRY[key].dtype != "str"]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"metrics: unknown {kind} metric {unknown[0]!r}; expected some of: {', '.join(known)}")
    return names
