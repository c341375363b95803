"""Batches of any structure: size, parts, place, tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["batch_size", "cut", "described", "fingerprint", "moved", "tokens_of", "valid_of", "with_tokens"]


def moved(batch: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """The batch on a device, its tensors detached; float32 tensors in ``dtype`` where one is given."""

    def move(tensor: Tensor) -> Tensor:
        cast = dtype if tensor.dtype == torch.float32 else None
        return tensor.detach().to(device=device, dtype=cast)

    return _mapped(batch, move)


def batch_size(batch: Any) -> int | None:
    """Length of the first tensor's first dimension.

    >>> batch_size({"input_ids": torch.zeros(3, 7)})
    3
    """
    return next((tensor.shape[0] for tensor in _tensors(batch) if tensor.ndim), None)


def described(batch: Any) -> str:
    """What a batch holds, in words.

    >>> described({"input_ids": torch.arange(6).reshape(2, 3)})
    'int64 of shape (2, 3), values 0 to 5'
    """
    tensors = list(_tensors(batch))
    return "; ".join(map(_words, tensors)) if tensors else f"{type(batch).__name__} without a tensor"


def _words(tensor: Tensor) -> str:
    text = f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
    if tensor.numel() and not tensor.is_floating_point() and tensor.dtype != torch.bool:
        return f"{text}, values {int(tensor.min())} to {int(tensor.max())}"
    return text


def fingerprint(batches: Iterable[Any]) -> str:
    """Twelve hexadecimal digits that tell batches apart by what their tensors hold.

    >>> fingerprint([torch.arange(3)]) == fingerprint([torch.arange(3)]) != fingerprint([torch.arange(4)])
    True
    """
    digest = hashlib.sha256()
    for batch in batches:
        for tensor in _tensors(batch):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def cut(batch: Any, start: int, stop: int) -> Any:
    """Documents start..stop−1 of a batch: of every tensor whose first dimension is the batch's."""
    size = batch_size(batch)
    return _mapped(batch, lambda tensor: tensor[start:stop] if tensor.ndim and tensor.shape[0] == size else tensor)


def tokens_of(batch: Any) -> Tensor | None:
    """Token ids of a batch, shape (B, T): ``input_ids``, else its first two-dimensional integer tensor."""
    if isinstance(batch, Mapping) and isinstance(batch.get("input_ids"), Tensor):
        named: Tensor = batch["input_ids"]
        return named
    return next(
        (t for t in _tensors(batch) if t.ndim == 2 and not t.is_floating_point() and t.dtype != torch.bool), None
    )


def with_tokens(batch: Any, tokens: Tensor) -> Any:
    """A batch of the same make that holds these token ids and nothing padded.

    >>> with_tokens({"input_ids": torch.zeros(2, 3), "labels": torch.zeros(2, 3)}, torch.ones(1, 2))
    {'input_ids': tensor([[1., 1.]])}

    Raises:
        ValueError: a batch that shows its tokens, if any, in another way.
    """
    if isinstance(batch, Tensor):
        return tokens
    if isinstance(batch, Mapping) and isinstance(batch.get("input_ids"), Tensor):
        mask = {"attention_mask": torch.ones_like(tokens)} if "attention_mask" in batch else {}
        return {"input_ids": tokens, **mask}
    raise ValueError(
        f"expected token ids as a tensor or as 'input_ids', found {type(batch).__name__}; pass such a batch as probe="
    )


def valid_of(batch: Any) -> Tensor | None:
    """Real tokens of a batch, bool, shape (B, T), from its ``attention_mask``."""
    inner = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    mask = inner.get("attention_mask") if isinstance(inner, Mapping) else None
    return mask != 0 if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, (Mapping, tuple, list)):
        for item in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(item)


def _mapped(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: _mapped(value, function) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_mapped(item, function) for item in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(_mapped(item, function) for item in batch)
    return batch
