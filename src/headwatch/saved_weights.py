"""Raw W_Q and W_K of a snapshot, kept as safetensors for whoever wants to study a head later."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from headwatch.forms import Factors
from headwatch.heads import CopiedFactors

__all__ = ["load_weights", "save_weights"]


def save_weights(path: Path, copies: Iterable[CopiedFactors]) -> None:
    """Write ``layer.<l>.W_Q`` and ``layer.<l>.W_K`` of every site, in the dtype of the weights where that is possible.

    Shapes are ``(watched heads, n, N)`` and ``(key heads, n, N)``; the file's metadata names module, heads, and the key
    head of every query head. Gains of a QK-norm are not in them.
    """
    tensors: dict[str, Tensor] = {}
    about: dict[str, dict[str, object]] = {}
    for copied in copies:
        site, layer = copied.site, f"layer.{copied.site.layer}"
        keys = sorted({site.kv_head[head] for head in site.heads})
        tensors[f"{layer}.W_Q"], tensors[f"{layer}.W_K"] = _raw(copied, keys)
        rows = [keys.index(site.kv_head[head]) for head in site.heads]
        about[layer] = {"module": site.module, "heads": list(site.heads), "key_rows": rows}
    save_file(tensors, path, metadata={"headwatch": json.dumps(about)})


def _raw(copied: CopiedFactors, keys: list[int]) -> tuple[Tensor, Tensor]:
    parts = copied.query, copied.key
    if all(len(part.terms) == 1 and len(part.terms[0]) == 1 for part in parts):
        return parts[0].terms[0][0].contiguous(), parts[1].terms[0][0].contiguous()
    form = copied.factors(qk_gain=False)  # sums and products have no rows of their own
    first = [next(i for i, head in enumerate(copied.site.heads) if copied.site.kv_head[head] == key) for key in keys]
    return form.W_Q.contiguous(), form.W_K[first].contiguous()


def load_weights(path: str | Path) -> dict[int, Factors]:
    """Factors by layer, one form per query head: ``headwatch.profiles.statistics(load_weights(path)[3])``."""
    with safe_open(path, framework="pt") as stored:
        about = json.loads(stored.metadata()["headwatch"])
        return {
            int(layer.partition(".")[2]): _factors(stored, layer, entry["key_rows"]) for layer, entry in about.items()
        }


def _factors(stored: Any, layer: str, key_rows: list[int]) -> Factors:
    W_Q, W_K = stored.get_tensor(f"{layer}.W_Q"), stored.get_tensor(f"{layer}.W_K")
    return Factors(W_K.index_select(0, torch.tensor(key_rows)), W_Q)
