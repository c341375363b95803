"""A forward cut open at every projection and norm, so that what lies between them can be measured.

Between a projection and the attention call stand views, rotations, repeats, sums, gains. Their Jacobian says exactly
which channel of which projection each coordinate of q and k is, whatever the values are: dead channels, duplicated rows
and zero-initialised weights included. Ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._pytree import tree_iter, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from headwatch.heads.affine import BIAS, WEIGHT, looks_affine, measure_affine
from headwatch.heads.headmap import IDENTITY
from headwatch.heads.linearcalls import LinearCall, recognise
from headwatch.heads.names import LiveParameters, dotted
from headwatch.heads.weights import Matrix, ParameterIndex
from headwatch.probe.call import AttentionCall
from headwatch.probe.capture import Capture
from headwatch.probe.functions import SOFTMAX, bound, flex_operator, is_flash
from headwatch.probe.scores import name_of
from headwatch.probe.stack import Frame

__all__ = ["Cut", "Tracer"]

_Measured = TypeVar("_Measured")
_CASTS = frozenset({"to", "type", "type_as", "float", "half", "bfloat16", "double", "contiguous", "clone", "detach"})
_NORMS = {
    F.layer_norm: ("input", "shape", "weight", "bias", "eps"),
    F.rms_norm: ("input", "shape", "weight", "eps"),
    F.normalize: ("input", "p", "dim", "eps"),
}
_FACTORS = frozenset({"mul", "mul_", "__mul__", "__rmul__", "__imul__", "div", "div_", "__truediv__", "__itruediv__"})
_SHIFTS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_LEAVES_TORCH = frozenset({"numpy", "__array__", "__dlpack__", "tolist", "item"})
_ASKED: dict[object, object] = {  # the model must not notice that it is recorded
    vars(torch._C.TensorBase)["requires_grad"].__get__: False,
    vars(torch._C.TensorBase)["grad_fn"].__get__: None,
    vars(torch._C.TensorBase)["is_leaf"].__get__: True,
}
_EPS = ("eps", "variance_epsilon", "norm_eps", "epsilon")
_AFFINE_TOLERANCE = 3e-2  # of what a quantised layer measured on the identity may differ from itself
_WINDOW = 2  # generations of cuts that stay: those since the last attention call, and those before it


@dataclass(eq=False)
class Cut:
    """A place where the forward was cut: what came in, what went on from here.

    Attributes:
        kind: "linear" (a weight of the model), "norm", or "shift" (a parameter added).
        leaf: the values that went on.
        input: what came in, with its own graph up to earlier cuts.
        module: name of the module that was running.
        linear: the call, for "linear".
        tensors: parameters of a norm or shift by name, as they broadcast over the trailing dimensions of ``leaf``.
        eps: what a norm may have added before its root.
    """

    kind: Literal["linear", "norm", "shift"]
    leaf: Tensor
    input: Tensor
    module: str
    generation: int
    linear: LinearCall | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    eps: tuple[float, ...] = ()


class Tracer(Capture):
    """A capture whose forward keeps, for a short stretch, the graph from cuts to the attention call.

    Args:
        model: the model that is going to run.
        handler: called with every attention call; its q and k carry the graph.
        memory: selections of an earlier trace of the same model, by call and stretch: these are not measured again.

    Attributes:
        index: the model's parameters.
        call: name of the attention call that is examined.
    """

    def __init__(
        self, model: nn.Module, handler: Callable[[AttentionCall], None], memory: dict[object, Any] | None = None
    ) -> None:
        super().__init__(model, handler)
        self.memory = {} if memory is None else memory
        self.call: object = None
        self.index = ParameterIndex(LiveParameters(model))
        self.stack.on_output = self._module_output
        self._cuts: dict[int, Cut] = {}
        self._live: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._generation = 0
        self._fresh = False

    def cuts_behind(self, tensor: Tensor) -> list[Cut]:
        """The cuts that a tensor was computed from, in the order they were made."""
        found = {id(leaf): self._cuts[id(leaf)] for leaf in _leaves(tensor) if id(leaf) in self._cuts}
        order = list(self._cuts)
        return sorted(found.values(), key=lambda cut: order.index(id(cut.leaf)))

    def recalled(self, stretch: tuple[object, ...], measure: Callable[[], _Measured]) -> _Measured:
        """What was measured for this stretch of the present call, in this trace or the earlier one."""
        key = (self.call, stretch)
        if key not in self.memory:
            self.memory[key] = measure()
        found: _Measured = self.memory[key]
        return found

    def recent(self) -> list[Cut]:
        """All cuts that are kept, latest first."""
        return list(self._cuts.values())[::-1]

    def new_call(self) -> None:
        """An attention call was handled: cuts of earlier calls are let go."""
        if not self._fresh:
            return
        self._fresh = False
        self._generation += 1
        oldest = self._generation - _WINDOW
        self._cuts = {key: cut for key, cut in self._cuts.items() if cut.generation > oldest}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with torch.enable_grad():
            return super().__torch_function__(func, types, args, kwargs)

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """One torch function: a projection is cut, what follows a cut is recorded, anything else only computed."""
        name = name_of(func)
        linear = recognise(name, args, kwargs, self.index, self.stack.owner)
        if linear is not None and not self._is_weight(linear.x):
            return self._cut("linear", _plain(func, args, kwargs), linear.x, linear=linear)
        inside = bool(self.stack.frames) and _is_pointwise(self.stack.frames[-1].module)  # cut as a whole at its end
        if not inside and func in _NORMS and _over_last(named := bound(_NORMS[func], args, kwargs)):
            return self._functional_norm(named, _plain(func, args, kwargs))
        live = any(self._is_live(each) for each in _tensors(args, kwargs))
        if name == "linear":  # by a weight that is computed: its module is measured as a whole
            live = False
        if not live or func in SOFTMAX or func in (F.scaled_dot_product_attention, flex_operator()) or is_flash(func):
            out = _plain(func, args, kwargs)
            self._note_cast(name, args, out)
            return out
        if name in _LEAVES_TORCH:
            return _plain(func, args, kwargs)
        if name == "__get__" and func in _ASKED:
            return _ASKED[func]
        if not inside and name in _FACTORS and (factor := self._factor(name, args)) is not None:
            return self._cut("norm", _plain(func, args, kwargs), factor[0], tensors=factor[1])
        if not inside and name in _SHIFTS and (shift := self._shift(name, args, kwargs)) is not None:
            return self._cut("shift", _plain(func, args, kwargs), shift[0], tensors=shift[1])
        return self._recorded(func, name, args, kwargs)

    def _recorded(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute with the graph; only what is live takes part in it."""
        place = args[0] if args and (name.endswith("_") or name == "__setitem__") else None
        given = tree_map_only(
            Tensor, lambda t: t if self._is_live(t) or t is place else t.detach(), (args, dict(kwargs))
        )
        try:
            out = func(*given[0], **given[1])
        except RuntimeError:
            return _plain(func, args, kwargs)
        for tensor in (*_tensors((out,), {}), *((place,) if isinstance(place, Tensor) else ())):
            if tensor.requires_grad:
                self._live[tensor] = self._generation
        return out

    def _cut(self, kind: Literal["linear", "norm", "shift"], out: Tensor, source: Tensor, **what: Any) -> Tensor:
        if not out.is_floating_point() or out.requires_grad:
            return out
        leaf = out.requires_grad_()
        self._cuts[id(leaf)] = Cut(kind, leaf, source, self.stack.owner, self._generation, **what)
        self._fresh = True
        result = leaf.clone()
        self._live[result] = self._generation
        return result

    def _is_weight(self, x: Tensor) -> bool:
        """Whether a matrix is a parameter itself: a product of weights, not of an activation with one."""
        found = self.index.find(x) if x.dim() == 2 else None
        return found is not None and found[1].shape == x.shape

    def _is_live(self, value: object) -> bool:
        """Whether a tensor carries a graph to a cut that is still kept."""
        if not isinstance(value, Tensor) or not value.requires_grad or value.is_leaf:
            return False
        born = self._live.get(value)
        if born is None:  # a base that was written to through a view
            self._live[value] = born = self._generation
        return bool(born > self._generation - _WINDOW)

    def _note_cast(self, name: str, args: tuple[Any, ...], out: object) -> None:
        if name in _CASTS and isinstance(out, Tensor) and isinstance(args[0], Tensor) and self.index.find(args[0]):
            self.index.note_cast(args[0], out)

    def _opaque_projection(self, frame: Frame, source: Tensor, out: Tensor) -> Tensor | None:
        """Cut a module that projects by a weight that was not seen: a parametrised one, or one to be measured."""
        if self._is_live(out) or not looks_affine(frame.module, source, out):
            return None
        d_in, d_out = source.shape[-1], out.shape[-1]
        try:
            weight, bias = measure_affine(frame.module, d_in, source)
        except (RuntimeError, ValueError, TypeError, IndexError):  # it does not take a matrix
            return None
        expected = nn.functional.linear(source.detach().double(), weight.double(), bias.double())
        if (expected - out).abs().max() > _AFFINE_TOLERANCE * out.abs().max():
            return None
        own = ("weight", "bias") if is_parametrized(frame.module, "weight") else (f"{WEIGHT}:{d_in}", f"{BIAS}:{d_in}")
        names = [dotted(frame.name, each) for each in own]
        matrix = Matrix(names[0], IDENTITY, np.arange(d_out), d_out)
        given = (names[1], np.arange(d_out)) if bool(bias.any()) else None
        linear = LinearCall(source, matrix, given, source.dim() - 1, (out.dim() - 1,))
        with torch.enable_grad():
            return self._cut("linear", out.detach(), source, linear=linear)

    def _functional_norm(self, named: Mapping[str, Any], out: Tensor) -> Tensor:
        tensors = {}
        for role in ("weight", "bias"):
            found = None if named.get(role) is None else self.index.find(named[role], self.stack.owner)
            if found is not None:
                tensors[found[0]] = found[1]
        eps = named.get("eps")
        known = (float(eps),) if eps is not None else (torch.finfo(named["input"].dtype).eps,)
        return self._cut("norm", out, named["input"], tensors=tensors, eps=known)

    def _factor(self, name: str, args: tuple[Any, ...]) -> tuple[Tensor, dict[str, Tensor]] | None:
        """(what came in, parameters) of an activation times a factor per token (a norm in python) or a gain."""
        if len(args) != 2 or not all(isinstance(each, Tensor) for each in args):
            return None
        source, other = args if self._is_live(args[0]) and args[0].shape[-1:] != (1,) else args[::-1]
        if not self._is_live(source) or source.shape[-1:] == (1,) or (source is not args[0] and "div" in name):
            return None
        if self._is_live(other):
            return (source, {}) if other.shape[-1] == 1 and other.dim() == source.dim() else None
        found = self.index.find(other, self.stack.owner) if other.numel() > 1 and "div" not in name else None
        if found is None or found[1].shape != other.shape or not _broadcasts(other, source):
            return None
        return source, {found[0]: found[1]}

    def _shift(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, dict[str, Tensor]] | None:
        """(what came in, the parameter) of an activation plus a parameter of the model."""
        if len(args) != 2 or kwargs:
            return None
        source, other = args if self._is_live(args[0]) else args[::-1]
        if not isinstance(other, Tensor) or self._is_live(other):
            return None
        found = self.index.find(other, self.stack.owner)
        if found is None or not _broadcasts(found[1], source) or found[1].shape != other.shape:
            return None
        return source, {found[0]: found[1]}

    def _module_output(self, frame: Frame, args: tuple[Any, ...], out: object) -> object:
        """Cut a norm module that computes in python."""
        source = args[0] if args else None
        if not isinstance(out, Tensor) or not isinstance(source, Tensor):
            return None
        if not _is_pointwise(frame.module):
            return self._opaque_projection(frame, source, out)
        if out.shape != source.shape or not out.is_floating_point() or not source.is_floating_point():
            return None
        if {id(leaf) for leaf in _leaves(out)} - {id(leaf) for leaf in _leaves(source)}:
            return None
        tensors = {dotted(frame.name, key): p for key, p in frame.module._parameters.items() if p is not None}
        if not all(_broadcasts(tensor, out) for tensor in tensors.values()):
            return None
        eps = tuple(float(value) for key in _EPS if isinstance(value := getattr(frame.module, key, None), float))
        with torch.enable_grad():
            return self._cut("norm", out.detach(), source, tensors=tensors, eps=eps)


def _plain(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Compute without graph. Gradient mode stays on: a view made here may be written to by code that is recorded."""
    given = tree_map_only(Tensor, lambda t: t.detach() if t.requires_grad else t, (args, dict(kwargs)))
    return func(*given[0], **given[1])


def _over_last(named: Mapping[str, Any]) -> bool:
    """Whether a functional norm works on the last dimension; ``F.normalize`` has a dimension and a power to choose."""
    shape, x = named.get("shape"), named["input"]
    if shape is not None:
        return len(shape) == 1
    return named.get("p", 2.0) == 2.0 and named.get("dim", 1) in (-1, x.dim() - 1)


def _tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    return (each for each in tree_iter((args, dict(kwargs))) if isinstance(each, Tensor))


def _leaves(tensor: Tensor) -> Iterator[Tensor]:
    """Leaves of the autograd graph of a tensor."""
    todo, seen = [tensor.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        todo.extend(child for child, _ in node.next_functions)


def _broadcasts(parameter: Tensor, tensor: Tensor) -> bool:
    """Whether a parameter broadcasts over the trailing dimensions of a tensor."""
    sizes = zip(reversed(parameter.shape), reversed(tensor.shape), strict=False)
    return parameter.dim() <= tensor.dim() and all(a in (1, b) for a, b in sizes)


def _is_pointwise(module: nn.Module) -> bool:
    """A module without children that is named a norm, or keeps vectors only: a norm or gain, as far as one sees."""
    if any(True for _ in module.children()):
        return False
    kept = [parameter for parameter in module._parameters.values() if parameter is not None]
    return "norm" in type(module).__name__.lower() or (bool(kept) and all(each.dim() <= 1 for each in kept))
