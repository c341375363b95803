"""What a reader of a picture must know about its heads, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

__all__ = ["EMPTY_FLAGS", "flag_words", "table_notes"]

EMPTY_FLAGS = ("nan", "inf", "zero_form", "failed", "sink_only", "not_captured")
"""Flags of a head that has no numbers in a snapshot: why."""

_WORDS = {
    "qk_norm": "QK-norm: form of the scores' numerator",
    "mla_nope": "latent attention: part without positions",
    "lora": "adapters included",
    "rope": "rotary positions: displacement 0",
    "frozen": "frozen weights",
    "tied": "one module under several names",
    "measured": "weights measured by what the module computes",
    "handed_over": "handed over by the user",
    "with_biases": "biases included",
    "norm_gain_folded_in": "gain of the norm folded in",
    "zero_form": "zero form: no profile",
    "nan": "NaN in the weights",
    "inf": "infinity in the weights",
    "failed": "could not be measured",
    "averaged_weights": "weights of an averaging callback",
    "sink_only": "attention on ignored keys alone",
    "not_captured": "attention not captured",
    "qk_gain": "QK gain folded in",
    "tied_qk": "query and key share weights",
    "rope_irregular": "rotary positions of an irregular kind: displacement 0",
    "by_value": "proven by values, not by names",
    "not_reached": "not reached by the probe forward",
}


def flag_words(flag: str) -> str:
    """A flag in words; a flag that is not known stays as it is.

    >>> flag_words("qk_norm")
    "QK-norm: form of the scores' numerator"
    >>> flag_words("averaged_weights:EMA")
    'weights of an averaging callback: EMA'
    """
    name, _, why = flag.partition(":")
    words = _WORDS.get(name.strip(), name.strip().replace("_", " "))
    return f"{words}: {why.strip()}" if why else words


def table_notes(table: pa.Table) -> list[str]:
    """Notes on the heads of one snapshot: how many are structural, and every flag with its count."""
    total = table.num_rows
    structural = sum(status == "structural" for status in table["status"].to_pylist())
    shown = {int(d) for d in table["displacement"].to_pylist()} - {0}
    notes = [f"rotary displacement {d}" for d in sorted(shown)]
    notes += [f"{structural} of {total} heads structural (read by rule, not proven)"] if structural else []
    counts = Counter(flag for text in table["flags"].to_pylist() for flag in _split(text))
    return notes + [_counted(flag_words(flag), count, total) for flag, count in counts.most_common()]


def _split(text: str | None) -> Iterable[str]:
    return (part.strip() for part in (text or "").split(",") if part.strip())


def _counted(words: str, count: int, total: int) -> str:
    return words if count == total else f"{words} ({count} of {total})"
