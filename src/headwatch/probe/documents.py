"""Probe documents: what is run through the model, and how the model is called on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ContextDecorator, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from headwatch.heads.headmap import HeadMap
from headwatch.probe.batches import batch_size, cut, moved, tokens_of, valid_of
from headwatch.probe.calling import ProbeError, ProbeFn, model_call, prepare
from headwatch.probe.quiet import quiet_probe, randomness_kept

__all__ = ["Context", "ProbeBatch", "documents_call", "probe_batches", "probe_forwards", "within"]

Context = Callable[[], AbstractContextManager[Any]] | AbstractContextManager[Any] | None
_PROOF_DOCUMENTS = 4  # of each half; enough to tell the rows of a projection apart


@dataclass(frozen=True)
class ProbeBatch:
    """One batch of probe documents, on the CPU.

    Attributes:
        batch: what the model is called with.
        tokens: token ids, shape (B, T), where the batch shows them.
        valid: real tokens, bool, shape (B, T), where the batch has an ``attention_mask``.
        size: number of documents, where the batch shows it.
    """

    batch: Any
    tokens: Tensor | None = None
    valid: Tensor | None = None
    size: int | None = None


def probe_batches(probe: Any, validation: Iterable[Any] | None = None, *, max_batches: int = 64) -> list[ProbeBatch]:
    """The probe documents as a list of batches, drawn without touching any random state.

    Args:
        probe: a batch (tensor, mapping, tuple), a list of batches, a list of documents (token ids), a dataloader, or a
            number n: the first n validation batches. A list of tensors is a list of batches if they have one dtype and
            at least two dimensions each; otherwise, like what ``next(iter(loader))`` gives, it is one batch.
        validation: the validation dataloader.
        max_batches: at most so many batches of a dataloader.

    Raises:
        ValueError: nothing to run, with what to pass instead.
    """
    with randomness_kept():
        batches = list(islice(_batches(probe, validation), max_batches))
    if not batches:
        raise ValueError(
            f"probe: expected documents to run, found none in {type(probe).__name__}; pass a batch, a list of batches, "
            "a dataloader, or n > 0 for the first n validation batches"
        )
    return [_probe_batch(moved(batch, torch.device("cpu"))) for batch in batches]


def probe_forwards(
    model: nn.Module,
    batch: Any,
    head_map: HeadMap | None = None,
    *,
    context: Context = None,
    probe_fn: ProbeFn | None = None,
) -> list[Callable[[], object]]:
    """Two closures that each run one forward of the model, on different documents of the batch where it has several.

    Args:
        model: the model, or the LightningModule around it.
        batch: a training batch.
        head_map: the heads, to find the smallest submodule where the model itself has no ``forward``.
        context: makes the context to run in, such as ``trainer.precision_plugin.forward_context``.
        probe_fn: ``probe_fn(model, batch)`` runs the forward instead.
    """
    bare = model_call(model, probe_fn, head_map)
    call = _explained(within(context, bare))
    with _explaining(batch):
        prepare(bare, batch)
    batch = batch if probe_fn is not None or _takes(model, call, batch) else _without_last_token(batch)
    half = min(_PROOF_DOCUMENTS, (batch_size(batch) or 0) // 2)
    parts = [cut(batch, 0, half), cut(batch, half, 2 * half)] if half else [batch, batch]
    return [partial(call, part) for part in parts]


def _explained(call: Callable[[Any], object]) -> Callable[[Any], object]:
    """The call, whose failure says what it was given."""

    def explained(batch: Any) -> object:
        with _explaining(batch):
            return call(batch)

    return explained


@contextmanager
def _explaining(batch: Any) -> Iterator[None]:
    try:
        yield
    except ProbeError:
        raise
    except Exception as error:
        raise ProbeError(batch, error) from error


def documents_call(
    model: nn.Module, head_map: HeadMap, batches: Sequence[ProbeBatch], probe_fn: ProbeFn | None, context: Context
) -> tuple[Callable[[Any], object], tuple[ProbeBatch, ...]]:
    """How the model is run on its probe documents, and the documents as it takes them."""
    bare = model_call(model, probe_fn, head_map)
    call = _explained(within(context, bare))
    for item in batches[:1]:
        with suppress(ProbeError), _explaining(item.batch):  # said when the first snapshot fails
            prepare(bare, item.batch)
    return call, _fitted(model, call, batches) if probe_fn is None else tuple(batches)


def _fitted(model: nn.Module, call: Callable[[Any], object], batches: Sequence[ProbeBatch]) -> tuple[ProbeBatch, ...]:
    """The probe documents as the model takes them: see :func:`_without_last_token`."""
    if all(_takes(model, call, item.batch) for item in batches[:1]):
        return tuple(batches)
    return tuple(_probe_batch(_without_last_token(item.batch)) for item in batches)


def _takes(model: nn.Module, call: Callable[[Any], object], batch: Any) -> bool:
    """Whether a forward on one document goes through; only asked of token ids, where there is something to try else."""
    tokens = tokens_of(batch)
    if not isinstance(batch, Tensor) or tokens is None or tokens.shape[1] < 2:
        return True
    try:
        with quiet_probe(model):
            call(batch[:1])
    except Exception:  # whatever it is: if the shorter one does not fit either, its own error says so
        return False
    return True


def _without_last_token(batch: Tensor) -> Tensor:
    """A training step that predicts the next token often gets T + 1 of them and cuts input and target itself."""
    return batch[:, :-1]


def within(context: Context, call: Callable[[Any], object]) -> Callable[[Any], object]:
    """The call, run inside a fresh context each time."""
    if isinstance(context, ContextDecorator):  # made by @contextmanager: entered anew for every decorated call
        decorated: Callable[[Any], object] = context(call)
        return decorated

    def inside(batch: Any) -> object:
        with context if isinstance(context, AbstractContextManager) else context() if context else nullcontext():
            return call(batch)

    return inside


def _batches(probe: Any, validation: Iterable[Any] | None) -> Iterable[Any]:
    if isinstance(probe, int) and not isinstance(probe, bool):
        if validation is None:
            raise ValueError(
                f"no probe documents: probe={probe} takes the first validation batches, and this training has no "
                "validation dataloader. Pass documents as probe=batch: a batch like those that the model is trained on."
            )
        return islice(validation, probe)
    if isinstance(probe, (Tensor, Mapping, tuple)):
        return [probe]
    if isinstance(probe, list) and probe and all(_is_document(item) for item in probe):
        return [item[None] for item in probe]
    if isinstance(probe, list):
        return probe if _is_list_of_batches(probe) else [probe]
    if isinstance(probe, Iterable):
        return probe
    return [probe]


def _is_document(item: Any) -> bool:
    """Token ids of one document: no first argument of a transformer, so a list of them is no batch."""
    return isinstance(item, Tensor) and item.ndim == 1 and not item.is_floating_point()


def _is_list_of_batches(items: Sequence[Any]) -> bool:
    if not all(isinstance(item, Tensor) for item in items):
        return all(isinstance(item, (Tensor, Mapping, tuple, list)) for item in items)
    return all(item.ndim >= 2 and item.dtype == items[0].dtype for item in items)


def _probe_batch(batch: Any) -> ProbeBatch:
    return ProbeBatch(batch, tokens_of(batch), valid_of(batch), batch_size(batch))
