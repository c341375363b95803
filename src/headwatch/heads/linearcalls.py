"""Recognise the torch functions that multiply an activation by a weight of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from headwatch.heads.weights import Matrix, ParameterIndex
from headwatch.probe.products import parse_einsum

__all__ = ["LinearCall", "recognise"]


@dataclass(frozen=True)
class LinearCall:
    """out[row, channel] = Σ weight[channel, i] · x[row, i] (+ bias).

    Attributes:
        x: the activation, as given.
        matrix: rows of a parameter, one per channel.
        bias: (parameter, flat place per channel), or None.
        x_dim: dimension of x that is summed over.
        channel_dims: dimensions of the output that count channels, in the order of ``matrix.rows``.
        known_bias: False where a bias was given that is no parameter.
    """

    x: Tensor
    matrix: Matrix
    bias: tuple[str, np.ndarray] | None
    x_dim: int
    channel_dims: tuple[int, ...]
    known_bias: bool = True

    def inputs(self) -> Tensor:
        """x as a matrix (row, i)."""
        return self.x.movedim(self.x_dim, -1).reshape(-1, self.x.shape[self.x_dim])

    def locate(self, shape: Sequence[int], elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(row, channel) of elements of an output of this shape, given by their flat places."""
        coordinates = np.unravel_index(elements, tuple(shape))
        rows = [d for d in range(len(shape)) if d not in self.channel_dims]
        return _ravel(coordinates, shape, rows), _ravel(coordinates, shape, self.channel_dims)


def _ravel(coordinates: Sequence[np.ndarray], shape: Sequence[int], dims: Sequence[int]) -> np.ndarray:
    index = np.zeros_like(coordinates[0])
    for d in dims:
        index = index * shape[d] + coordinates[d]
    return index


def recognise(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], index: ParameterIndex, near: str
) -> LinearCall | None:
    """The linear call behind one torch function, None for anything else."""
    reader = _READERS.get(name)
    return None if reader is None else reader(args, kwargs, index, near)


def _linear(args: tuple[Any, ...], kwargs: Mapping[str, Any], index: ParameterIndex, near: str) -> LinearCall | None:
    x, weight, bias = (_argument(args, kwargs, i, key) for i, key in enumerate(("input", "weight", "bias")))
    if weight.dim() != 2:
        return None
    return _call(x, weight, bias, (0,), 1, index, near)


def _matmul(args: tuple[Any, ...], kwargs: Mapping[str, Any], index: ParameterIndex, near: str) -> LinearCall | None:
    x, weight = (_argument(args, kwargs, i, key) for i, key in enumerate(("input", "other")))
    return _times(x, weight, None, index, near)


def _addmm(args: tuple[Any, ...], kwargs: Mapping[str, Any], index: ParameterIndex, near: str) -> LinearCall | None:
    bias, x, weight = (_argument(args, kwargs, i, key) for i, key in enumerate(("input", "mat1", "mat2")))
    plain = kwargs.get("alpha", 1) == 1 and kwargs.get("beta", 1) == 1
    return _times(x, weight, bias, index, near) if plain else None


def _times(x: object, weight: object, bias: object, index: ParameterIndex, near: str) -> LinearCall | None:
    """x @ weight, the weight a matrix (in, out) or one matrix per head (head, in, out)."""
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor) or weight.dim() not in (2, 3):
        return None
    if weight.dim() == 2:
        return _call(x, weight, bias, (1,), 0, index, near)
    if x.dim() > 2 and x.shape[-3] != 1:
        return None
    call = _call(x, weight, bias, (0, 2), 1, index, near)
    rank = max(x.dim(), 3)
    return None if call is None else LinearCall(call.x, call.matrix, call.bias, x.dim() - 1, (rank - 3, rank - 1))


def _conv(args: tuple[Any, ...], kwargs: Mapping[str, Any], index: ParameterIndex, near: str) -> LinearCall | None:
    """A convolution with a kernel of one place is a linear map of channels."""
    x, weight, bias = (_argument(args, kwargs, i, key) for i, key in enumerate(("input", "weight", "bias")))
    moved = [_argument(args, kwargs, i, key) for i, key in ((3, "stride"), (6, "groups"))]
    plain = all(each is None or set(each if isinstance(each, (tuple, list)) else (each,)) == {1} for each in moved)
    if any(size != 1 for size in weight.shape[2:]) or x.dim() != weight.dim() or not plain:
        return None
    call = _call(x, weight, bias, (0,), 1, index, near)
    return None if call is None else LinearCall(x, call.matrix, call.bias, 1, (1,), call.known_bias)


def _einsum(args: tuple[Any, ...], kwargs: Mapping[str, Any], index: ParameterIndex, near: str) -> LinearCall | None:
    operands = list(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else list(args[1:])
    if not isinstance(args[0], str) or len(operands) != 2:
        return None
    parsed = parse_einsum(args[0], operands)
    known = [index.find(operand, near) is not None for operand in operands]
    if parsed is None or known.count(True) != 1:
        return None
    w, x = (parsed[0], parsed[1]) if known[0] else (parsed[1], parsed[0])
    weight, activation = operands[::-1] if known[1] else operands
    summed, out = [i for i in w if i in x and i not in parsed[2]], parsed[2]
    if len(summed) != 1 or any(i in x and i in out for i in w):
        return None
    channels = [i for i in w if i != summed[0]]
    call = _call(activation, weight, None, tuple(w.index(i) for i in channels), w.index(summed[0]), index, near)
    if call is None:
        return None
    return LinearCall(activation, call.matrix, None, x.index(summed[0]), tuple(out.index(i) for i in channels))


def _call(
    x: Any, weight: Tensor, bias: Any, channels: tuple[int, ...], inputs: int, index: ParameterIndex, near: str
) -> LinearCall | None:
    if not isinstance(x, Tensor) or x.dim() < 1:
        return None
    matrix = index.matrix(weight, channels, inputs, near)
    if matrix is None:
        return None
    place = None if bias is None else index.flat(bias, near)
    return LinearCall(
        x, matrix, place, x.dim() - 1, (max(x.dim(), 1) - 1,), known_bias=bias is None or place is not None
    )


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


_READERS: dict[str, Callable[..., LinearCall | None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "__matmul__": _matmul,
    "mm": _matmul,
    "addmm": _addmm,
    "einsum": _einsum,
    "conv1d": _conv,
    "conv2d": _conv,
}
