"""Run a model's forward and leave no trace of it in training."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["quiet_probe", "randomness_kept"]


@contextmanager
def quiet_probe(model: nn.Module) -> Iterator[None]:
    """Evaluate ``model`` inside without changing how it goes on training.

    Inside, every module is in evaluation mode, gradients and KV caches are off and compiled code runs eagerly. On the
    way out, under an exception too, everything is as before, bit for bit: training flags per module, buffers,
    attributes of modules, ``config.use_cache``, the random states of python, numpy, torch and CUDA, the autocast cache;
    modules of FSDP2 are resharded. Not covered: what a forward writes into python containers or outside the modules.

    Raises:
        RuntimeError: the code inside has touched a parameter's ``.grad`` (the gradients are put back by identity).
    """
    with ExitStack() as stack:
        for guard in (_grads, _attributes, _buffers, _use_cache, _flags):
            stack.enter_context(guard(model))
        stack.enter_context(randomness_kept())
        stack.callback(_reshard, model)
        stack.callback(_drop_autocast_cache)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.no_grad())
        yield


@contextmanager
def _flags(model: nn.Module) -> Iterator[None]:
    """Evaluation mode by attribute: an overridden ``train()`` never runs, a frozen BatchNorm stays frozen."""
    before = [(module, module.training) for module in model.modules()]
    try:
        for module, training in before:
            if training:
                module.training = False
        yield
    finally:
        for module, training in before:
            if module.training != training:
                module.training = training


@contextmanager
def _attributes(model: nn.Module) -> Iterator[None]:
    """Put back attributes that a forward has replaced: counters, lazily made tables, caches kept on a module.

    Wrappers of torch.distributed keep their own first-forward state, half of it elsewhere, and are left alone.
    """
    before = [(module, dict(vars(module))) for module in model.modules() if not _is_wrapper(module)]
    try:
        yield
    finally:
        for module, attributes in before:
            _put_back(vars(module), attributes)


def _is_wrapper(module: nn.Module) -> bool:
    return type(module).__module__.startswith(("torch.distributed", "torch.nn.parallel", "torch._dynamo"))


def _put_back(now: dict[str, Any], before: dict[str, Any]) -> None:
    for name in now.keys() - before.keys():
        del now[name]
    for name, value in before.items():
        if name not in now or now[name] is not value:
            now[name] = value


@contextmanager
def _buffers(model: nn.Module) -> Iterator[None]:
    before = [(module._buffers, dict(module._buffers)) for module in model.modules() if module._buffers]
    copies = [_Copy(buffer) for _, tensors in before for buffer in tensors.values() if buffer is not None]
    try:
        yield
    finally:
        for buffers, tensors in before:
            _put_back(buffers, tensors)
        for copy in copies:
            copy.restore()


class _Copy:
    """A buffer and its content; the content is written back only if it changed, so that autograd sees no write."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.content = buffer.detach().clone()
        self.version = _version(buffer)

    def restore(self) -> None:
        if self._changed():
            with torch.no_grad():
                self.buffer.copy_(self.content)

    def _changed(self) -> bool:
        if _version(self.buffer) != self.version:
            return True
        comparable = type(self.buffer) is Tensor and self.buffer.device.type != "meta"
        return comparable and not torch.equal(self.buffer, self.content)  # a write through .data has no version


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


@contextmanager
def _use_cache(model: nn.Module) -> Iterator[None]:
    configs = {id(config): config for module in model.modules() for config in _configs(module)}.values()
    on = [config for config in configs if vars(config).get("use_cache")]
    try:
        for config in on:
            config.use_cache = False
        yield
    finally:
        for config in on:
            config.use_cache = True


def _configs(module: nn.Module) -> Iterator[Any]:
    config = vars(module).get("config")
    if hasattr(config, "__dict__"):
        yield config
        yield from (nested for nested in list(vars(config).values()) if "use_cache" in getattr(nested, "__dict__", ()))


@contextmanager
def _grads(model: nn.Module) -> Iterator[None]:
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        yield  # FSDP1 makes every .grad anew from its flat gradient, around every forward
        return
    before = [(p, p.grad, None if p.grad is None else _version(p.grad)) for p in model.parameters()]
    try:
        yield
        touched = sum(
            p.grad is not grad or (grad is not None and _version(grad) != version) for p, grad, version in before
        )
        if touched:
            raise RuntimeError(
                f"the probe changed the gradient of {touched} parameters; expected a forward alone: "
                "call no backward and no zero_grad in probe_fn"
            )
    finally:
        for p, grad, _ in before:
            if p.grad is not grad:
                p.grad = grad


@contextmanager
def randomness_kept() -> Iterator[None]:
    """Draw inside without moving any random state: python, numpy, torch on CPU and on every accelerator in use."""
    states = _random_states()
    try:
        yield
    finally:
        for put_back, state in states:
            put_back(state)


def _random_states() -> list[tuple[Callable[..., Any], Any]]:
    states: list[tuple[Callable[..., Any], Any]] = [
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),
        (torch.set_rng_state, torch.get_rng_state()),
    ]
    if torch.cuda.is_initialized():
        states.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    if torch.backends.mps.is_available():
        states.append((torch.mps.set_rng_state, torch.mps.get_rng_state()))
    return states


def _reshard(model: nn.Module) -> None:
    """FSDP2 leaves its root unsharded after a forward without gradients, and would train on stale weights."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    from torch.distributed import fsdp

    kind = getattr(fsdp, "FSDPModule", None)
    for module in model.modules():
        if kind is not None and isinstance(module, kind):
            module.reshard()


def _drop_autocast_cache() -> None:
    """Casts made without gradients must not serve the next training forward."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        torch.clear_autocast_cache()
