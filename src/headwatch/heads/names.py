"""Names of modules and parameters as the user would write them: without the segments that wrappers add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from headwatch.heads.affine import BIAS, WEIGHT, measure_affine

__all__ = [
    "LiveParameters",
    "canonical_names",
    "clean_name",
    "dotted",
    "named_modules",
    "named_parameters",
    "unwrapped",
]

_RESERVED = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_original_module"}
)
_WRAPPERS = frozenset({"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "OptimizedModule"})


def clean_name(name: str) -> str:
    """A dotted name without the segments that only torch's wrappers use.

    >>> clean_name("net._orig_mod.blocks.0.attn.q_proj.weight")
    'net.blocks.0.attn.q_proj.weight'
    """
    return ".".join(part for part in name.split(".") if part not in _RESERVED)


def dotted(name: str, child: str) -> str:
    """Name of a child; the model itself has the empty name.

    >>> dotted("blocks.0", "attn"), dotted("", "blocks")
    ('blocks.0.attn', 'blocks')
    """
    return f"{name}.{child}" if name else child


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules in registration order, once per name: a shared module comes again under every alias."""
    return _walk(model, "", ())


def canonical_names(model: nn.Module) -> dict[int, str]:
    """One name per module, by ``id``: of a module with several, the one of fewest segments, the first of these."""
    names: dict[int, str] = {}
    for name, module in named_modules(model):
        if id(module) not in names or name.count(".") < names[id(module)].count("."):
            names[id(module)] = name
    return names


def _walk(module: nn.Module, name: str, above: tuple[int, ...]) -> Iterator[tuple[str, nn.Module]]:
    inner = _wrapped(module)
    if inner is not None:
        yield from _walk(inner, name, above)
        return
    yield name, module
    for child_name, child in module._modules.items():
        if child is not None and id(child) not in above:
            yield from _walk(child, dotted(name, child_name), (*above, id(module)))


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside all wrappers that the user does not write."""
    inner = _wrapped(module)
    return module if inner is None else unwrapped(inner)


def _wrapped(module: nn.Module) -> nn.Module | None:
    """The module inside a wrapper that the user does not write, else None."""
    for name, child in module._modules.items():
        if name in _RESERVED or (name == "module" and type(module).__name__ in _WRAPPERS):
            return child
    return None


class _Named(dict[str, Tensor]):
    """Parameters by name; a weight that has to be measured (``affine.py``) is so when it is asked for."""

    def __init__(self, owners: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._owners = owners

    def __missing__(self, name: str) -> Tensor:
        return _measured(self._owners, name)


def _measured(owners: Mapping[str, nn.Module], name: str) -> Tensor:
    owner, _, key = name.rpartition(".")
    kind, _, width = key.partition(":")
    if kind not in (WEIGHT, BIAS) or owner not in owners:
        raise KeyError(name)
    tensors = [*owners[owner].parameters(), *owners[owner].buffers()]
    like = next((each for each in tensors if each.is_floating_point()), torch.zeros(0))
    weight, bias = measure_affine(owners[owner], int(width), like)
    return weight if kind == WEIGHT else bias


def named_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by clean name; a parametrised weight stands under its own name with its present value.

    Weights that must be measured (see ``affine.py``) are not listed, but found when asked for by name.
    """
    owners = dict(named_modules(model))
    found = _Named(owners)
    for name, module in owners.items():
        for table in (module._buffers, module._parameters):
            found.update({dotted(name, key): value for key, value in table.items() if value is not None})
        if is_parametrized(module):
            found.update({dotted(name, key): getattr(module, key) for key in module.parametrizations})  # type: ignore[union-attr]
    return found


class LiveParameters(Mapping[str, Tensor]):
    """The same by the same names, looked up anew at every access: FSDP2 puts whole weights in place for a forward."""

    def __init__(self, model: nn.Module) -> None:
        self._owners = dict(named_modules(model))
        self._names = tuple(named_parameters(model))

    def __getitem__(self, name: str) -> Tensor:
        owner, _, key = name.rpartition(".")
        if key.partition(":")[0] in (WEIGHT, BIAS):
            return _measured(self._owners, name)
        value = getattr(self._owners[owner], key)
        if not isinstance(value, Tensor):
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
