"""Which parameter a tensor in a forward is, and which rows of it: by identity and storage, never by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from headwatch.heads.headmap import IDENTITY

__all__ = ["Matrix", "ParameterIndex"]


@dataclass(frozen=True)
class Matrix:
    """A weight of the model as it enters a product: rows of one parameter.

    Attributes:
        parameter: its name.
        pattern: einops pattern that makes the parameter a matrix (out, in).
        rows: row of that matrix for every output channel.
        n_rows: rows of that matrix.
    """

    parameter: str
    pattern: str
    rows: np.ndarray
    n_rows: int


class ParameterIndex:
    """Parameters and buffers of a model, found again from tensors that are views or casts of them."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._by_storage: dict[int | None, list[tuple[str, Tensor]]] = {}
        self._sharded = [name for name, tensor in parameters.items() if hasattr(tensor, "placements")]
        for name, tensor in parameters.items():
            if tensor.numel() and not hasattr(tensor, "placements") and _address(tensor) is not None:
                self._by_storage.setdefault(_address(tensor), []).append((name, tensor))
        self._casts: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def note_cast(self, source: Tensor, cast: Tensor) -> None:
        """Remember that one tensor holds the values of another, element for element."""
        if cast is not source and cast.shape == source.shape:
            self._casts[cast] = self._casts.get(source, source)

    def find(self, tensor: Tensor, near: str = "") -> tuple[str, Tensor, Tensor] | None:
        """(name, parameter, view) of the parameter that a tensor is or views; of several, the nearest to ``near``."""
        view = self._casts.get(tensor, tensor)
        if hasattr(view, "placements"):  # a DTensor has no storage to go by
            return None
        there = self._by_storage.get(_address(view)) or self._whole_now(view, near)
        known = [(name, whole) for name, whole in there if _covers(whole, view)]
        if not known:
            return None
        name, whole = max(known, key=lambda each: (each[1] is view, _shared(each[0], near)))
        return name, whole, view

    def _whole_now(self, view: Tensor, near: str) -> list[tuple[str, Tensor]]:
        """Sharded parameters (FSDP2) of the running module, which stand whole while it runs."""
        names = [name for name in self._sharded if name.startswith(f"{near}.")]
        now = [(name, self._parameters[name]) for name in names]
        return [(n, t) for n, t in now if not hasattr(t, "placements") and _address(t) == _address(view)]

    def matrix(self, weight: Tensor, channel_dims: tuple[int, ...], input_dim: int, near: str = "") -> Matrix | None:
        """The parameter rows behind a weight whose ``channel_dims`` index outputs and ``input_dim`` inputs."""
        found = self.find(weight, near)
        if found is None or not found[1].is_contiguous():
            return None
        name, whole, view = found
        places = [d for d in range(whole.dim()) if _fits(whole, d, view, input_dim)]
        if not places:
            return None
        rows = _rows(whole, places[-1], view, channel_dims)
        size = whole.numel() // whole.shape[places[-1]]
        return None if rows is None else Matrix(name, _pattern(whole.dim(), places[-1]), rows, size)

    def flat(self, tensor: Tensor, near: str = "") -> tuple[str, np.ndarray] | None:
        """Parameter behind a tensor of any shape, and the flat place in it of every element."""
        found = self.find(tensor, near)
        if found is None or not found[1].is_contiguous():
            return None
        return found[0], _offsets(found[1], found[2], tuple(range(tensor.dim())))


def _address(tensor: Tensor) -> int | None:
    """Where a tensor's values lie; None for tensors without a storage of their own (inside vmap, sparse)."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return None


def _covers(whole: Tensor, view: Tensor) -> bool:
    start = view.storage_offset() - whole.storage_offset()
    last = start + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
    return start >= 0 and last < whole.numel() and whole.dtype == view.dtype


def _shared(name: str, near: str) -> int:
    """Number of leading segments that two dotted names share."""
    pairs = list(zip(name.split("."), near.split("."), strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


def _fits(whole: Tensor, dim: int, view: Tensor, input_dim: int) -> bool:
    same_stride = whole.stride(dim) == view.stride(input_dim) or whole.shape[dim] == 1
    return whole.shape[dim] == view.shape[input_dim] and same_stride


def _offsets(whole: Tensor, view: Tensor, dims: tuple[int, ...]) -> np.ndarray:
    """Flat place in ``whole`` of every index over ``dims`` of ``view``, other dimensions at 0; flattened."""
    start = view.storage_offset() - whole.storage_offset()
    grids = np.meshgrid(*[np.arange(view.shape[d]) * view.stride(d) for d in dims], indexing="ij")
    return np.asarray(start + sum(grids)).reshape(-1) if grids else np.array([start])


def _rows(whole: Tensor, input_place: int, view: Tensor, channel_dims: tuple[int, ...]) -> np.ndarray | None:
    coordinates = list(np.unravel_index(_offsets(whole, view, channel_dims), tuple(whole.shape)))
    if np.any(coordinates.pop(input_place)):
        return None
    rest = [size for d, size in enumerate(whole.shape) if d != input_place]
    if not rest or not math.prod(rest):
        return None
    return np.ravel_multi_index(tuple(coordinates), rest)


def _pattern(rank: int, input_place: int) -> str:
    """
    >>> _pattern(2, 1), _pattern(2, 0), _pattern(3, 1)
    ('o i -> o i', 'i o -> o i', 'a i c -> (a c) i')
    """
    if rank == 2:
        return IDENTITY if input_place == 1 else "i o -> o i"
    names = ["i" if d == input_place else "abcdefgh"[d] for d in range(rank)]
    rest = " ".join(name for name in names if name != "i")
    return f"{' '.join(names)} -> ({rest}) i"
