"""How the weights of a model lie over ranks, recognised by the parameters themselves."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from headwatch.parallel.held import is_split

__all__ = ["Layout", "layout_of", "model_to_call"]

Layout = Literal["whole", "fsdp2", "tensor_parallel", "fsdp1", "zero3"]


def layout_of(model: nn.Module, root: nn.Module | None = None) -> Layout:
    """Who shards the weights, if anyone: told by class names and attributes, so that no package is imported.

    Args:
        model: the model.
        root: the wrapped model of the strategy, where it is another.

    Raises:
        ValueError: weights that are not there yet.
    """
    _refuse_meta(model)
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in (root or model).modules()):
        return "fsdp1"
    parameters = list(model.parameters())
    if any(hasattr(parameter, "ds_id") and parameter.numel() == 0 for parameter in parameters):
        return "zero3"
    if not any(is_split(parameter) for parameter in parameters):
        return "whole"
    return "tensor_parallel" if _heads_are_split(model) else "fsdp2"


def model_to_call(model: nn.Module, root: nn.Module | None, layout: Layout) -> nn.Module:
    """What a forward must go through: under FSDP1 the outermost wrapper, which puts the root's weights together.

    Raises:
        ValueError: FSDP1 around a module without a forward.
    """
    if layout != "fsdp1" or root is None:
        return model
    if type(model).forward.__module__.split(".")[0] in ("pytorch_lightning", "lightning", "torch"):
        raise ValueError(
            f"FSDP1 can only be probed through its outermost wrapper, and {type(model).__name__} has no forward to "
            "call there; give it a forward(batch) that runs the network, or use FSDP2 (ModelParallelStrategy)."
        )
    return root


def _refuse_meta(model: nn.Module) -> None:
    absent = [name for name, parameter in model.named_parameters() if parameter.device.type == "meta"]
    if absent:
        raise ValueError(
            f"{len(absent)} parameters have no weights yet ({absent[0]} is on the meta device); "
            "materialise the model in configure_model() or setup(), before training starts."
        )


def _heads_are_split(model: nn.Module) -> bool:
    """Whether a forward sees DTensors: parameters that FSDP2 does not gather, or that are sharded twice."""
    return any(
        is_split(parameter) and (not gathers or _shards(parameter) > 1)
        for module, gathers in _with_fsdp2(model, False)
        for parameter in module._parameters.values()
        if parameter is not None
    )


def _shards(parameter: Tensor) -> int:
    """Number of mesh dimensions along which a DTensor is cut."""
    return sum(type(placement).__name__ != "Replicate" for placement in parameter.placements)  # type: ignore[attr-defined]


def _with_fsdp2(module: nn.Module, gathers: bool) -> list[tuple[nn.Module, bool]]:
    """Every module, and whether FSDP2 puts its weights together for a forward."""
    gathers = gathers or any(cls.__name__ == "FSDPModule" for cls in type(module).__mro__)
    return [(module, gathers), *(pair for child in module.children() for pair in _with_fsdp2(child, gathers))]
