"""Head counts of a module: from its attributes, else from the configuration that it or a holder keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

__all__ = ["Counts", "count_heads"]

_HEADS = (
    "num_heads", "n_heads", "n_head", "num_attention_heads", "nhead", "heads", "nheads", "num_attn_heads",
    "attention_heads", "encoder_attention_heads", "n_query_heads", "num_q_heads",
)  # fmt: skip
_KV_HEADS = (
    "num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "kv_heads", "n_query_groups", "num_kv",
    "n_key_value_heads", "num_query_groups",
)  # fmt: skip
_HEAD_DIM = (
    "head_dim", "d_head", "dim_head", "head_size", "attention_head_size", "key_value_proj_dim", "d_kv", "dim_per_head",
    "head_width", "key_dim",
)  # fmt: skip
_CONFIGS = ("config", "cfg", "args", "params", "hparams")


@dataclass(frozen=True)
class Counts:
    """Query heads, key-value heads and d_head; None where nothing tells."""

    n_heads: int | None = None
    n_kv_heads: int | None = None
    d_head: int | None = None


def count_heads(holders: Sequence[nn.Module]) -> Counts:
    """Counts of the first holder, the attention module; what it lacks comes from configurations, nearest first."""
    sources: list[object] = [holders[0], *(config for holder in holders for config in _configs(holder))]
    return Counts(*(_first(sources, names) for names in (_HEADS, _KV_HEADS, _HEAD_DIM)))


def _configs(holder: nn.Module) -> list[object]:
    return [vars(holder)[name] for name in _CONFIGS if vars(holder).get(name) is not None]


def _first(sources: Sequence[object], names: Sequence[str]) -> int | None:
    return next((value for source in sources for name in names if (value := _integer(source, name))), None)


def _integer(source: object, name: str) -> int | None:
    try:
        value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
    except Exception:  # a configuration may refuse to answer for all layers at once, with an error of its own
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
