"""The record of one measurement: a table of heads × metrics at one step, with flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwatch.metrics import NULL_KEYS, PROFILE_KEYS, REGISTRY, ROLE_KEYS, SIGNATURE_KEYS, Kind

__all__ = [
    "SCHEMA_VERSION",
    "SUMMARY_SCHEMA",
    "TOKENS_SCHEMA",
    "Snapshot",
    "column",
    "head_label",
    "head_names",
    "heads_table",
    "profile_schema",
    "schema_of",
    "signature_schema",
]

SCHEMA_VERSION = 1

_ARROW = {"float": pa.float64(), "int": pa.int32(), "str": pa.string(), "bool": pa.bool_()}

_IDENTITY = (
    pa.field("step", pa.int64()),  # optimizer steps done (trainer.global_step)
    pa.field("epoch", pa.int32()),
    pa.field("layer", pa.int32()),
    pa.field("head", pa.int32()),
    pa.field("kv_head", pa.int32()),
    pa.field("module", pa.string()),
    pa.field("displacement", pa.int32()),  # RoPE displacement d of this profile; 0 for the weights alone
    pa.field("status", pa.string()),  # "proven" or "structural"
    pa.field("flags", pa.string()),  # comma-separated; empty for a head with nothing to say
)
_CONTEXT = (
    pa.field("loss", pa.float64()),  # the trainer's own training loss at the snapshot
    pa.field("time", pa.float64()),  # seconds since the Unix epoch
    pa.field("seconds", pa.float64()),  # seconds that this snapshot blocked training
    pa.field("overhead", pa.float64()),  # share of training time blocked so far, by all monitors
)


def profile_schema() -> pa.Schema:
    """Schema of every ``profile/`` part: identity, profile metrics, percentiles in the null, context."""
    metrics = [pa.field(key, _ARROW[REGISTRY[key].dtype]) for key in PROFILE_KEYS]
    percentiles = [pa.field(f"{key}_percentile", pa.float64()) for key in NULL_KEYS]
    null = [pa.field("beyond_null", pa.bool_()), pa.field("left_null_step", pa.int64())]
    return pa.schema([*_IDENTITY, *metrics, *percentiles, *null, *_CONTEXT])


def signature_schema() -> pa.Schema:
    """Schema of every ``signature/`` part: identity, mean and ``_std`` over documents of each signature, context.

    Between them the role scores, null unless they are asked for.
    """
    metrics = [pa.field(name, pa.float64()) for key in SIGNATURE_KEYS for name in (key, f"{key}_std")]
    roles = [pa.field(key, pa.float64()) for key in ROLE_KEYS]
    return pa.schema([*_IDENTITY, *metrics, *roles, *_CONTEXT])


SUMMARY_SCHEMA = pa.schema(
    [pa.field("step", pa.int64()), pa.field("key", pa.string()), pa.field("value", pa.float64())]
)

TOKENS_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64()),
        pa.field("layer", pa.int32()),
        pa.field("document", pa.int32()),
        pa.field("position", pa.int32()),
        pa.field("lift", pa.float32()),  # mean over the layer's heads of λ(k)
    ]
)


def schema_of(kind: Kind) -> pa.Schema:
    """Schema of the parts of one kind."""
    return profile_schema() if kind == "profile" else signature_schema()


@dataclass(frozen=True)
class Snapshot:
    """One measurement.

    Attributes:
        kind: "profile" or "signature".
        step: optimizer steps done when it was taken.
        heads: one row per head (and displacement), with the schema of its kind.
        summary: numbers of the whole model at this step (``n_eff_consistency``, ``n_eff_dispersion`` …).
        tokens: token signals of the probe documents, for signatures.
        info: entries of ``run.json`` that became known with it.
        attachments: further files of the snapshot, each as what writes it, by ending ("weights.safetensors").
    """

    kind: Kind
    step: int
    heads: pa.Table
    summary: Mapping[str, float] = field(default_factory=dict)
    tokens: pa.Table | None = None
    info: Mapping[str, object] = field(default_factory=dict)
    attachments: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)

    def summary_table(self) -> pa.Table:
        """The summary as tidy rows (step, key, value)."""
        rows = {
            "step": [self.step] * len(self.summary),
            "key": list(self.summary),
            "value": list(self.summary.values()),
        }
        return pa.table(rows, schema=SUMMARY_SCHEMA)

    def with_columns(self, **columns: object) -> Snapshot:
        """A copy whose constant columns (``loss``, ``seconds`` …) hold these values."""
        return self.with_heads(**{name: [value] * self.heads.num_rows for name, value in columns.items()})

    def with_heads(self, **columns: object) -> Snapshot:
        """A copy whose columns hold these values, one per row."""
        table = self.heads
        for name, values in columns.items():
            place, own = table.schema.get_field_index(name), table.schema.field(name)
            table = table.set_column(place, own, _column(values, own.type))
        return replace(self, heads=table)

    def with_flags(self, flags: Sequence[str]) -> Snapshot:
        """A copy with these flags added to every head's own."""
        if not flags:
            return self
        old = [(text or "").split(",") for text in self.heads["flags"].to_pylist()]
        return self.with_heads(flags=[",".join(filter(None, [*own, *flags])) for own in old])


def head_label(layer: int, head: int) -> str:
    """The printed name of a head.

    >>> head_label(3, 7)
    'L03.H07'
    """
    return f"L{layer:02d}.H{head:02d}"


def head_names(table: pa.Table) -> list[str]:
    """``L03.H07`` of every row of a heads table."""
    pairs = zip(table["layer"].to_pylist(), table["head"].to_pylist(), strict=True)
    return [head_label(layer, head) for layer, head in pairs]


def column(table: pa.Table, key: str) -> np.ndarray:
    """One numeric column as float64, null as NaN."""
    numbers: np.ndarray = pc.cast(table[key], pa.float64()).to_numpy(zero_copy_only=False)
    return numbers


def heads_table(kind: Kind, columns: Mapping[str, object]) -> pa.Table:
    """A table with the schema of its kind; a column that is not given is null.

    Args:
        kind: "profile" or "signature".
        columns: equally long sequences, arrays or Arrow arrays by column name.

    Raises:
        KeyError: a column that the schema does not have.
    """
    schema = schema_of(kind)
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise KeyError(f"not columns of a {kind} snapshot: {sorted(unknown)}")
    length = len(next(iter(columns.values())))  # type: ignore[arg-type]
    arrays = [_column(columns[f.name], f.type) if f.name in columns else pa.nulls(length, f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(values: object, type_: pa.DataType) -> pa.Array:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values.cast(type_)
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":  # what could not be computed is null, not NaN
        return pa.array(values, mask=np.isnan(values), type=pa.float64()).cast(type_)
    return pa.array(values, type=type_)
