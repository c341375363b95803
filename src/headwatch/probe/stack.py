"""Which module runs now: a stack kept by global hooks for as long as a capture lasts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from headwatch.heads.names import canonical_names

__all__ = ["Frame", "ModuleStack"]


@dataclass(frozen=True)
class Frame:
    """One running module: its name ("" for the model itself), and the shapes of the tensors that it was called with."""

    name: str
    module: nn.Module
    shapes: tuple[tuple[int, ...], ...]


class ModuleStack:
    """The named modules that are running in this thread, outermost first.

    Attributes:
        frames: the stack.
        seen: names of all modules that have run.
        on_exit: called with the frame of every module that ends.
        on_output: called with (frame, arguments, output) before that; what it returns, if anything, is the output.
    """

    def __init__(self, model: nn.Module, on_exit: Callable[[Frame], None] | None = None) -> None:
        self._names = canonical_names(model)
        self._thread = threading.get_ident()
        self._calls: Counter[str] = Counter()
        self.on_exit = on_exit
        self.on_output: Callable[[Frame, tuple[object, ...], object], object] | None = None
        self.frames: list[Frame] = []
        self.seen: set[str] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep the stack while inside; no hook is left behind."""
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(cast("Callable[..., None]", self._exit), always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.frames.clear()

    @property
    def owner(self) -> str:
        """Name of the innermost running module that the model names."""
        return self.frames[-1].name if self.frames else ""

    def count(self, owner: str) -> int:
        """How many attention calls a module has made before this one."""
        self._calls[owner] += 1
        return self._calls[owner] - 1

    def documents(self, batch: int, length: int) -> int | None:
        """B of a flattened batch B·H, from the nearest input of shape (B, length, …) or (length, B, …)."""
        for frame in reversed(self.frames):
            for shape in frame.shapes:
                found = _documents(shape, batch, length)
                if found:
                    return found
        return None

    def _enter(self, module: nn.Module, args: tuple[object, ...]) -> None:
        name = self._names.get(id(module))
        if name is not None and threading.get_ident() == self._thread:
            with DisableTorchFunction():  # hooks run under the capture's own function mode
                shapes = tuple(tuple(arg.shape) for arg in args if isinstance(arg, Tensor))
            self.frames.append(Frame(name, module, shapes))
            self.seen.add(name)

    def _exit(self, module: nn.Module, args: tuple[object, ...], output: object) -> object:
        if threading.get_ident() != self._thread or not self.frames or self.frames[-1].module is not module:
            return None
        frame = self.frames[-1]
        try:
            with DisableTorchFunction():
                return None if self.on_output is None else self.on_output(frame, args, output)
        finally:
            self.frames.pop()
            if self.on_exit is not None:
                self.on_exit(frame)


def _documents(shape: tuple[int, ...], batch: int, length: int) -> int | None:
    if len(shape) < 2:
        return None
    first, second = shape[:2]
    if second == length and batch % first == 0:
        return first
    return second if first == length and batch % second == 0 else None
