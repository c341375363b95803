"""What later queries of a document look back at: the scores behind KV budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwatch.budgets import Budgets, DocumentScores
from headwatch.heads.headmap import HeadMap, LeftOut, Site
from headwatch.marginal.geometry import geometry
from headwatch.marginal.masks import Mask
from headwatch.probe.call import AttentionCall
from headwatch.probe.calling import ProbeFn
from headwatch.probe.capture import capture
from headwatch.probe.documents import Context, ProbeBatch, documents_call
from headwatch.probe.quiet import quiet_probe
from headwatch.probe.reduction import marginals_of

__all__ = ["look_back", "measure_budgets", "refuse_heads"]


def measure_budgets(
    model: nn.Module, head_map: HeadMap, batches: Sequence[ProbeBatch], *, split: float = 0.5, **options: Any
) -> Budgets:
    """Look-back budgets of a model on documents; 40 documents at least.

    Args:
        model: a causal model, or the LightningModule around it.
        head_map: its heads, all of them, as many key-value heads in every layer.
        batches: documents, from :func:`headwatch.probe.documents.probe_batches`.
        split: share of a document's valid tokens that is context; later queries look back at it.
        options: as in :func:`look_back`.

    Raises:
        ValueError: heads are missing, were not captured, or layers differ in key-value heads.
    """
    documents = look_back(model, head_map, batches, split=split, **options)
    modules = [site.module for site in head_map.sites]
    return Budgets.from_documents(documents, {"model": type(model).__name__, "modules": modules, "split": split})


def look_back(
    model: nn.Module,
    head_map: HeadMap,
    batches: Sequence[ProbeBatch],
    *,
    split: float = 0.5,
    probe_fn: ProbeFn | None = None,
    context: Context = None,
) -> list[DocumentScores]:
    """Scores of the context's keys, per document; the model is probed without a trace.

    Args:
        model, head_map, batches, split: as in :func:`measure_budgets`.
        probe_fn: ``probe_fn(model, batch)`` runs the forward.
        context: makes the context of a forward.
    """
    if not 0 < split < 1:
        raise ValueError(f"split: expected a share of the tokens in (0, 1), found {split!r}")
    refuse_heads(head_map)
    call, batches = documents_call(model, head_map, batches, probe_fn, context)
    documents: list[DocumentScores] = []
    for batch in batches:
        scores = _Scores(head_map, batch, split)
        with quiet_probe(model), capture(model, scores) as captured:
            call(batch.batch)
        documents += scores.documents(captured.refused)
    return documents


def refuse_heads(head_map: HeadMap) -> None:
    """Say what budgets cannot be made for.

    Raises:
        ValueError: some heads are left out, or layers differ in key-value heads.
    """
    groups = sorted({site.n_kv_heads for site in head_map.sites})
    partial = [site.module for site in head_map.sites if len(site.heads) != site.n_heads]
    if len(groups) != 1 or partial:
        raise ValueError(
            "budgets need every head, and as many key-value heads in every layer; found "
            + (f"some heads only of {partial[0]}" if partial else f"{groups} key-value heads")
        )


class _Scores:
    """Handler of one forward: per site the scores (documents, key-value heads, keys) of look-back and of reading."""

    def __init__(self, head_map: HeadMap, batch: ProbeBatch, split: float) -> None:
        self._head_map, self._batch, self._split = head_map, batch, split
        self._by_site: dict[str, tuple[Tensor, Tensor]] = {}
        self._context: Tensor | None = None
        self._sinks: Tensor | None = None

    def __call__(self, call: AttentionCall) -> None:
        site = self._head_map.site_of(call.module)
        if site is None:
            return
        if site.module in self._by_site:
            raise ValueError(f"{site.module} is called more than once in a forward; it has no budget of its own")
        context, later = self._halves(call)
        looked = marginals_of(call, valid=later).peak
        read = marginals_of(call, valid=context).mean.nan_to_num()
        self._by_site[site.module] = (_grouped(looked, site).cpu(), _grouped(read, site).cpu())

    def documents(self, refused: Sequence[LeftOut]) -> list[DocumentScores]:
        """One entry per document of the batch, keys of its context only."""
        missing = [site.module for site in self._head_map.sites if site.module not in self._by_site]
        if missing or refused or self._context is None or self._sinks is None:
            reason = refused[0].reason if refused else "no attention call was seen in it"
            raise ValueError(
                f"budgets need every layer; {(missing or [refused[0].module])[0]} was not captured: {reason}"
            )
        looked, read = (
            torch.stack([self._by_site[site.module][i] for site in self._head_map.sites], 1) for i in (0, 1)
        )
        pairs = zip(looked.double(), read.double(), self._context, self._sinks, strict=True)
        return [DocumentScores(a[..., c].numpy(), r[..., c].numpy(), s[c].numpy()) for a, r, c, s in pairs]

    def _halves(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Valid tokens of the context and after it, bool, shape (B, T)."""
        B, _, T, _ = call.q.shape
        if call.k.shape[2] != T:
            raise ValueError(
                f"budgets need self-attention over the whole document, found {T} queries on {call.k.shape[2]} keys"
            )
        if call.scores is not None:
            scores = call.scores
            rule = Mask(T, T, chunk=lambda i, j: scores[:, :1, i:j])
        else:
            rule = Mask(T, T, call.mask, call.is_causal, call.mask_chunk)
        valid = self._batch.valid if self._batch.valid is not None and self._batch.valid.shape == (B, T) else None
        known = geometry(rule, valid=valid, device=call.q.device)
        real = (known.counted[:, 0] > 0).expand(B, T)
        place, n = real.cumsum(-1), real.sum(-1, keepdim=True)
        context = real & (place <= (n * self._split).round())
        self._context = context.cpu()
        self._sinks = known.starts[:, 0].expand(B, T).cpu()
        return context, real & ~context


def _grouped(values: Tensor, site: Site) -> Tensor:
    """Largest value over the query heads of each key-value head."""
    kv_head = np.array(site.kv_head)
    return torch.stack([values[:, np.flatnonzero(kv_head == g)].amax(1) for g in range(site.n_kv_heads)], 1)
