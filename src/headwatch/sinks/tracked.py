"""Which heads get a W&B key of their own: all of them while the page can bear it, else a fixed few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headwatch.metrics import HEADLINE_KEYS, SIGNATURE_HEADLINE, Kind, keys_of

__all__ = ["MAX_KEYS", "TRACKED", "Choice", "Metrics", "choose", "kind_of", "metrics_by_monitor", "prefix_of"]

MAX_KEYS = 1500
TRACKED = 64  # more lines than this in one panel cannot be told apart
_GOLDEN = 0.6180339887498949

Metrics = Sequence[str] | Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Choice:
    """Heads of one monitor that get keys of their own.

    Attributes:
        heads: names such as ``L03.H07``, in reading order.
        note: what to tell the user once; empty when every head is in.
    """

    heads: tuple[str, ...]
    note: str = ""


def kind_of(monitor: str) -> Kind:
    """Kind of a monitor's snapshots: ``"profile-ema"`` → ``"profile"``."""
    return "signature" if monitor.split("-", 1)[0] == "signature" else "profile"


def prefix_of(monitor: str, stem: str) -> str:
    """First part of a monitor's keys.

    >>> prefix_of("profile", "heads"), prefix_of("profile-ema", "heads")
    ('heads', 'heads-ema')
    """
    _, dash, name = monitor.partition("-")
    return f"{stem}{dash}{name}"


def metrics_by_monitor(metrics: Metrics, monitors: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Per-head metrics of every monitor.

    A mapping is taken as it is. Of a sequence each monitor takes the keys of its own kind, and its kind's headline
    where the sequence names none of them. "profile" and "signature" are always listed, in this order, so that what one
    monitor may log does not depend on which of them is due first.
    """
    if isinstance(metrics, Mapping):
        return {monitor: tuple(keys) for monitor, keys in metrics.items()}
    names = [*dict.fromkeys(["profile", "signature", *monitors])]
    return {name: _of_kind(metrics, kind_of(name)) for name in names}


def _of_kind(metrics: Sequence[str], kind: Kind) -> tuple[str, ...]:
    chosen = tuple(key for key in metrics if key in keys_of(kind))
    return chosen or (HEADLINE_KEYS if kind == "profile" else SIGNATURE_HEADLINE)


def choose(
    monitor: str, heads: Sequence[str], metrics: Mapping[str, Sequence[str]], max_keys: int = MAX_KEYS
) -> Choice:
    """Heads of ``monitor`` that get keys of their own; earlier monitors in ``metrics`` take their room first.

    All heads while heads × metrics fit into ``max_keys``, else at most ``TRACKED`` of them, evenly spread over the
    model: one from each of equally long stretches, at a place in the stretch that moves with the golden ratio, so that
    a stride never meets the same head of every layer.

    >>> choose("profile", ["L00.H00", "L00.H01"], {"profile": ["drift"]}).heads
    ('L00.H00', 'L00.H01')
    >>> choose("profile", [f"L{i:02}.H00" for i in range(10)], {"profile": ["drift"]}, max_keys=2).heads
    ('L00.H00', 'L08.H00')
    """
    room = max_keys
    for name, keys in metrics.items():
        count = _count(len(heads), len(keys), room)
        if name == monitor:
            return _choice(monitor, heads, count, len(keys), max_keys)
        room -= count * len(keys)
    return Choice(())


def _count(n_heads: int, n_metrics: int, room: int) -> int:
    if n_heads * n_metrics <= room:
        return n_heads
    return min(TRACKED, room // n_metrics)


def _choice(monitor: str, heads: Sequence[str], count: int, n_metrics: int, max_keys: int) -> Choice:
    if count == len(heads) or n_metrics == 0:
        return Choice(tuple(heads))
    picked = tuple(heads[i] for i in _spread(len(heads), count))
    note = (
        f"W&B gets {count} of {len(heads)} heads one by one ({monitor}, {n_metrics} metrics; the page bears "
        f"{max_keys} keys), and the aggregates of all. The store has every head. Choose with metrics= or include=."
    )
    return Choice(picked, note)


def _spread(length: int, count: int) -> list[int]:
    width = length / count if count else 0.0
    return [int(i * width + (i * _GOLDEN % 1.0) * width) for i in range(count)]
