"""Configurations of runs: flattened keys, what differs, groups by a key, and the seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

__all__ = ["NOT_SET", "config_of", "differences", "flatten", "group_labels", "groups_but_for_seeds", "seed_of"]

NOT_SET = "(not set)"
_SEEDS = frozenset({"seed", "seed_everything", "random_seed", "global_seed"})
_FOLLOWS = frozenset(
    {"n_parameters", "n_kv_heads"}
)  # differ with the model's other sizes, and would only lengthen names


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted keys and their values as text.

    >>> flatten({"optimizer": {"lr": 0.001}, "layers": [1, 2], "tied": True})
    {'optimizer.lr': '0.001', 'layers': '[1, 2]', 'tied': 'true'}
    """
    out: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            out |= flatten(value, f"{name}.")
        else:
            out[name] = value if isinstance(value, str) else json.dumps(value, default=str)
    return out


def config_of(info: Mapping[str, Any]) -> dict[str, str]:
    """What a run was made with: the user's configuration, and the model's shape under ``model.``."""
    return flatten({"model": info.get("model") or {}}) | flatten(info.get("config") or {})


def differences(configs: Sequence[Mapping[str, str]], labels: Sequence[str]) -> pa.Table:
    """Keys on which the runs differ: column ``key``, then one column per run; null where a run lacks the key."""
    keys = sorted({key for config in configs for key in config})
    differing = [key for key in keys if len({config.get(key) for config in configs}) > 1]
    columns = {
        label: pa.array([c.get(key) for key in differing], pa.string())
        for label, c in zip(labels, configs, strict=True)
    }
    return pa.table({"key": pa.array(differing, pa.string()), **columns})


def seed_of(config: Mapping[str, str]) -> str | None:
    """The run's seed: the values of all keys that end in ``seed``, ``seed_everything`` …; None when there is none.

    >>> seed_of({"trainer.seed_everything": "3", "lr": "0.1"})
    '3'
    """
    found = [config[key] for key in sorted(config) if key.rsplit(".", 1)[-1] in _SEEDS and config[key] != "null"]
    return "/".join(found) or None


def group_labels(configs: Sequence[Mapping[str, str]], key: str) -> list[str]:
    """Each run's value of a key, or of the one that ends in it (several may when they agree in every run).

    Raises:
        ValueError: no run has the key; the message names the keys on which runs differ.
    """
    name = _resolve(configs, key)
    return [config.get(name, NOT_SET) for config in configs]


def _resolve(configs: Sequence[Mapping[str, str]], key: str) -> str:
    known = sorted({name for config in configs for name in config})
    if key in known:
        return key
    endings = [name for name in known if name.endswith(f".{key}")]
    if len({_values(configs, name) for name in endings}) == 1:
        return endings[0]
    differing = [name for name in known if len({config.get(name) for config in configs}) > 1]
    said = f"{key!r} could be any of {', '.join(endings)}" if endings else f"no run has the key {key!r}"
    raise ValueError(
        f"group_by: {said}; expected a dotted key such as {', '.join((differing or known)[:12]) or '(none)'}."
    )


def groups_but_for_seeds(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """Group names of runs that differ in more than their seeds; one group, "all runs", when they do not.

    >>> groups_but_for_seeds([{"lr": "1", "seed": "0"}, {"lr": "1", "seed": "1"}, {"lr": "2", "seed": "0"}])
    ['lr=1', 'lr=1', 'lr=2']
    """
    keys = sorted({key for config in configs for key in config if key.rsplit(".", 1)[-1] not in _SEEDS | _FOLLOWS})
    named = {_values(configs, key): key for key in reversed(keys)}  # one name for what two keys say
    differing = sorted(key for values, key in named.items() if len(set(values)) > 1)
    if not differing:
        return ["all runs"] * len(configs)
    return [", ".join(f"{_short(key)}={config.get(key, NOT_SET)}" for key in differing) for config in configs]


def _values(configs: Sequence[Mapping[str, str]], key: str) -> tuple[str | None, ...]:
    return tuple(config.get(key) for config in configs)


def _short(key: str) -> str:
    return key.removeprefix("model.")
