"""What ``run.json`` says of a run: model, heads, settings, configuration, versions. Plain JSON throughout."""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

import headwatch
from headwatch.heads import HeadMap
from headwatch.snapshot import SCHEMA_VERSION

__all__ = ["describe_heads", "describe_model", "new_run_id", "plain", "run_info"]

_PACKAGES = ("torch", "pytorch-lightning", "lightning", "wandb", "numpy", "pyarrow", "transformers")
_LONGEST = 500  # characters of a value whose type JSON does not have


def new_run_id() -> str:
    """UTC time plus six hex digits, for a run that W&B does not name."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def run_info(run_id: str, name: str, model: nn.Module, head_map: HeadMap, **more: Any) -> dict[str, Any]:
    """The contents of ``run.json`` at the start of a run.

    Args:
        run_id: name of the run's directory.
        name: what people call the run.
        model: the model that is watched.
        head_map: its heads.
        more: further entries: settings, config, wandb, null.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "headwatch_version": headwatch.__version__,
        "id": run_id,
        "name": name,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "status": "running",
        "model": describe_model(model, head_map),
        **describe_heads(head_map),
        "versions": _versions(),
        "messages": [],
        **plain(more),
    }


def describe_model(model: nn.Module, head_map: HeadMap) -> dict[str, Any]:
    """Class, size and shape of the model; a shape that differs between layers is given as a list."""
    sites = head_map.sites
    return {
        "class": type(model).__qualname__,
        "n_parameters": sum(p.numel() for p in model.parameters()),
        "n_layers": len({site.layer for site in sites}),
        "n_heads": _one_or_all([site.n_heads for site in sites]),
        "n_kv_heads": _one_or_all([site.n_kv_heads for site in sites]),
        "d_model": _one_or_all([site.d_model for site in sites]),
        "d_head": _one_or_all([site.d_head for site in sites]),
    }


def describe_heads(head_map: HeadMap) -> dict[str, Any]:
    """Every watched module with its heads and flags, and by name what is left out."""
    heads = [
        {
            "layer": site.layer,
            "module": site.module,
            "n_heads": site.n_heads,
            "n_kv_heads": site.n_kv_heads,
            "d_head": site.d_head,
            "d_model": site.d_model,
            "heads": list(site.heads),
            "kv_head": list(site.kv_head),
            "status": site.status,
            "flags": list(site.flags),
            "aliases": list(site.aliases),
        }
        for site in head_map.sites
    ]
    left_out = [{"module": item.module, "reason": item.reason} for item in head_map.left_out]
    return {"heads": plain(heads), "left_out": left_out}


def plain(value: Any) -> Any:
    """The value as JSON has it; what JSON has not becomes text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    if callable(getattr(value, "item", None)) and getattr(value, "size", None) in (1,):
        return plain(value.item())
    return str(value)[:_LONGEST]


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _one_or_all(values: list[int]) -> int | list[int]:
    return values[0] if len(set(values)) == 1 else values
