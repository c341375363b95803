"""How a model is called on a batch that its training step would receive."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwatch.heads.headmap import HeadMap
from headwatch.heads.names import named_modules
from headwatch.probe.batches import described, moved
from headwatch.probe.quiet import quiet_probe

__all__ = ["ProbeError", "ProbeFn", "model_call", "prepare"]

ProbeFn = Callable[[nn.Module, Any], object]
_LIGHTNING = ("pytorch_lightning", "lightning")


class ProbeError(RuntimeError):
    """The model could not be run on the probe; the message says what was passed and what to pass instead."""

    def __init__(self, batch: Any, error: Exception) -> None:
        said = str(error).splitlines()[0] if str(error) else ""
        remedy = "Pass documents that its forward takes, or probe_fn=lambda model, batch: ... that runs the network"
        text = f"the model could not run the probe ({described(batch)}): {type(error).__name__}: {said}. {remedy}"
        super().__init__(said if "probe_fn" in said else text)


def prepare(call: Callable[[Any], object], batch: Any) -> None:
    """Let a call decide what it runs, before anyone listens to the model: that takes forwards of its own."""
    if isinstance(call, _Submodule):
        call.prepare(batch)


def model_call(
    model: nn.Module, probe_fn: ProbeFn | None = None, head_map: HeadMap | None = None
) -> Callable[[Any], object]:
    """A function that runs the model's forward on a batch; never ``training_step``.

    In this order: ``probe_fn(model, batch)``; the model's own ``forward`` if it has one; the smallest submodule that
    holds all watched heads and takes the batch. A tensor becomes the first positional argument, a mapping keyword
    arguments as far as the forward knows them, of a tuple or list the first element counts. The batch is moved to
    where the model is, and to its dtype if that is a half one.
    """
    if probe_fn is not None:
        return lambda batch: probe_fn(model, _placed(model, batch))
    if _has_forward(model):
        return lambda batch: _called(model, _placed(model, batch))
    return _Submodule(model, head_map)


class _Submodule:
    """Calls the smallest submodule that holds all heads and takes the batch; found at the first call."""

    def __init__(self, model: nn.Module, head_map: HeadMap | None) -> None:
        self._model, self._head_map = model, head_map
        self._chosen: nn.Module | None = None

    def prepare(self, batch: Any) -> nn.Module:
        if self._chosen is None:
            self._chosen = self._choose(_placed(self._model, batch))
        return self._chosen

    def __call__(self, batch: Any) -> object:
        return _called(self.prepare(batch), _placed(self._model, batch))

    def _choose(self, batch: Any) -> nn.Module:
        said = []
        for name, module in _holders(self._model, self._head_map):
            try:
                with quiet_probe(module):
                    _called(module, batch)
            except Exception as error:  # a module that does not take the batch is not the one; its parent may
                said.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            else:
                return module
        tried = "; ".join(said) or "it has no submodule with a forward that holds all heads"
        raise ValueError(
            f"{type(self._model).__name__} has no forward of its own, and no submodule could be called on the probe "
            f"batch ({tried}); pass probe_fn=lambda model, batch: ... that runs the network on a batch"
        )


def _holders(model: nn.Module, head_map: HeadMap | None) -> Iterator[tuple[str, nn.Module]]:
    """Submodules that hold all heads, the smallest first; without heads, the model's children."""
    names = [site.module for site in head_map.sites] if head_map is not None else []
    holders = [
        (name, module)
        for name, module in named_modules(model)
        if name and _has_forward(module) and all(site.startswith(f"{name}.") for site in names)
    ]
    if not names:
        holders = [(name, module) for name, module in holders if "." not in name]
    return iter(sorted(holders, key=lambda item: -item[0].count(".")))


def _has_forward(module: nn.Module) -> bool:
    forward = vars(module).get("forward") or type(module).forward
    source = getattr(forward, "__module__", "") or ""
    return getattr(forward, "__name__", "") != "_forward_unimplemented" and source.split(".")[0] not in _LIGHTNING


def _placed(model: nn.Module, batch: Any) -> Any:
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return batch
    return moved(batch, weight.device, weight.dtype if weight.dtype in (torch.bfloat16, torch.float16) else None)


def _called(module: nn.Module, batch: Any) -> object:
    while isinstance(batch, (tuple, list)) and batch:
        batch = batch[0]
    if isinstance(batch, Mapping):
        return module(**_known(module, batch))
    return module(batch)


def _known(module: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The items of a batch that the forward has parameters for.

    Raises:
        ValueError: there is none.
    """
    parameters = inspect.signature(_innermost(module).forward).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(batch)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    known = {key: value for key, value in batch.items() if key in named}
    if not any(isinstance(value, Tensor) for value in known.values()):
        raise ValueError(
            f"the batch has {sorted(map(str, batch))}, but {type(module).__name__}.forward takes {sorted(named)}; "
            "pass probe_fn=lambda model, batch: ... that runs the network on a batch"
        )
    return known


def _innermost(module: nn.Module) -> nn.Module:
    """The module inside torch's own wrappers, whose forward says nothing about its arguments."""
    for name in ("_orig_mod", "_fsdp_wrapped_module", "module"):
        inner = module._modules.get(name)
        if inner is not None and len(module._modules) == 1:
            return _innermost(inner)
    return module
