"""Whole weights of sharded modules for a moment, by the documented call of whoever shards them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from headwatch.heads.names import clean_name
from headwatch.parallel.held import is_split

__all__ = ["Parameters", "fsdp1_units", "gathered", "unit_of"]

Parameters = Callable[[], Mapping[str, Tensor]]


@contextmanager
def gathered(
    names: Sequence[str], parameters: Parameters, unit: nn.Module | None = None
) -> Iterator[dict[str, Tensor]]:
    """The named parameters as whole, plain tensors; every rank of the training must enter.

    Args:
        names: parameters of one site.
        parameters: gives the live parameters by name.
        unit: the module of FSDP1 that shards them.
    """
    live = parameters()
    if unit is not None:
        with _summoned(unit):
            inside = parameters()
            yield {name: inside[name].detach() for name in names}
    elif any(hasattr(live[name], "ds_id") for name in names):
        with _zero_gathered([live[name] for name in names]):
            yield {name: live[name].detach() for name in names}
    else:
        yield {name: _full(live[name]) for name in names}


def _full(parameter: Tensor) -> Tensor:
    """All of a DTensor, on the device of its mesh: parameters that are offloaded lie on the CPU."""
    if not is_split(parameter):
        return parameter.detach()
    local: Any = parameter.detach()
    whole: Tensor = local.to(local.device_mesh.device_type).full_tensor()
    return whole


def _summoned(unit: nn.Module) -> Any:
    fsdp: Any = importlib.import_module("torch.distributed.fsdp").FullyShardedDataParallel
    return fsdp.summon_full_params(unit, recurse=False, writeback=False)


def _zero_gathered(parameters: Sequence[Tensor]) -> Any:
    zero: Any = importlib.import_module("deepspeed").zero
    return zero.GatheredParameters(list(parameters), modifier_rank=None)


def fsdp1_units(root: nn.Module) -> dict[str, nn.Module]:
    """Modules of FSDP1 by clean name."""
    named = ((clean_name(name), module) for name, module in root.named_modules())
    return {name: module for name, module in named if type(module).__name__ == "FullyShardedDataParallel"}


def unit_of(parameter: str, units: Mapping[str, nn.Module]) -> nn.Module | None:
    """The innermost module of FSDP1 that holds a parameter."""
    holders = [name for name in units if not name or parameter.startswith(f"{name}.")]
    return units[max(holders, key=len)] if holders else None
