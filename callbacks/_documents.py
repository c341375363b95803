"""The probe documents of a fit: what the user gave, or the first validation batches, drawn without a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from headwatch.probe.documents import ProbeBatch, probe_batches

if TYPE_CHECKING:
    from headwatch.callbacks._lightning import Trainer

__all__ = ["documents_of", "too_few"]


def documents_of(trainer: Trainer, probe: Any) -> list[ProbeBatch]:
    """The probe documents; a number takes so many validation batches.

    Raises:
        ValueError: there is nothing to run, with what to pass instead.
    """
    validation = _validation_loader(trainer) if isinstance(probe, int) else None
    with _own_generators_kept(validation), _own_generators_kept(probe):
        return probe_batches(probe, validation)


def too_few(probe: Any, batches: Sequence[ProbeBatch], wanted: int) -> Iterator[str]:
    """What to say where there are fewer documents than asked for, or than is good."""
    if isinstance(probe, int) and len(batches) < probe:
        yield f"probe={probe}: the validation loader has {len(batches)} batches, and these are the probe."
    sizes = [item.size for item in batches]
    found = sum(size for size in sizes if size is not None)
    if None in sizes or found >= wanted:
        return
    if wanted > 2:
        yield f"KV budgets will be measured on {found} documents; {wanted} at least are wanted. Pass more as probe=."
    else:
        yield (
            "the probe is one document: there is no spread over documents and no consistency to measure, and these "
            "stay empty. Pass two at least as probe=."
        )


def _validation_loader(trainer: Trainer) -> Any:
    """The validation loader as the user gave it, without setting up the Trainer's own."""
    source = trainer.fit_loop.epoch_loop.val_loop._data_source
    if not source.is_defined():
        return None
    loader = source.dataloader()
    while isinstance(loader, (list, tuple)) and loader:  # several loaders: the first
        loader = loader[0]
    return next(iter(loader.values()), None) if isinstance(loader, dict) else loader


@contextmanager
def _own_generators_kept(loader: Any) -> Iterator[None]:
    """A loader or sampler with a generator of its own would draw other batches after a peek."""
    owners = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    generators = {id(g): g for owner in owners if isinstance(g := getattr(owner, "generator", None), torch.Generator)}
    states = [(generator, generator.get_state()) for generator in generators.values()]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)
