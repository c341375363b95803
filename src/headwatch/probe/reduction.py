"""Reduce attention calls to signatures while the forward runs; no tensor of the model is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from headwatch.heads.headmap import HeadMap, LeftOut, Site
from headwatch.marginal.columns import column_statistics, from_scores
from headwatch.marginal.geometry import Geometry, geometry
from headwatch.marginal.masks import Mask
from headwatch.marginal.record import Marginals, Observer
from headwatch.marginal.signatures import ignored_keys, signatures, token_signal
from headwatch.probe.call import AttentionCall
from headwatch.probe.documents import ProbeBatch

__all__ = ["Reduction", "SiteValues", "marginals_of", "select_heads"]


@dataclass
class SiteValues:
    """What was measured at one site.

    Attributes:
        values: by signature, one tensor of shape (documents, heads) per batch.
        lift: mean over the watched heads of λ(k), one tensor of shape (documents, S) per batch.
        failure: why the site could not be measured; empty if it could.
    """

    values: dict[str, list[Tensor]] = field(default_factory=dict)
    lift: list[Tensor] = field(default_factory=list)
    failure: str = ""


class Reduction:
    """The handler of a capture: one batch after another, every call of a watched site is reduced at once.

    Args:
        head_map: what is watched.
        special_tokens: token ids whose keys are ignored, besides the first of each segment.
        query_stride: count every stride-th query only.
        block: queries per block.
    """

    def __init__(
        self, head_map: HeadMap, *, special_tokens: Sequence[int] = (), query_stride: int = 1, block: int = 128
    ) -> None:
        self.sites = {site.module: SiteValues() for site in head_map.sites}
        self._head_map = head_map
        self._special_tokens = tuple(special_tokens)
        self._options: dict[str, Any] = {"block": block, "query_stride": query_stride}
        self._batch: ProbeBatch | None = None
        self._calls: dict[str, list[tuple[dict[str, Tensor], Tensor]]] = {}
        self._geometries: dict[tuple[object, ...], tuple[Tensor | None, Geometry]] = {}

    def begin(self, batch: ProbeBatch) -> None:
        """The next forward runs on this batch."""
        self._batch = batch
        self._calls, self._geometries = {}, {}

    def end(self) -> None:
        """The forward is over: keep the mean over the calls that each site made, on the CPU."""
        for module, calls in self._calls.items():
            site = self.sites[module]
            for key in calls[0][0]:
                mean = torch.stack([values[key] for values, _ in calls]).mean(0)
                site.values.setdefault(key, []).append(mean.cpu())
            lifts = [lift for _, lift in calls]
            same = all(lift.shape == lifts[0].shape for lift in lifts)
            site.lift.append((torch.stack(lifts).mean(0) if same else lifts[0]).float().cpu())
        self._calls, self._geometries, self._batch = {}, {}, None

    def refuse(self, refused: Sequence[LeftOut]) -> None:
        """Take over what the capture could not follow."""
        for item in refused:
            site = self._head_map.site_of(item.module)
            if site is not None:
                self.sites[site.module].failure = item.reason

    def __call__(self, call: AttentionCall) -> None:
        """Reduce one call."""
        site = self._head_map.site_of(call.module)
        if site is None or self.sites[site.module].failure:
            return
        try:
            self._calls.setdefault(site.module, []).append(self._reduce(select_heads(call, site)))
        except (ValueError, RuntimeError) as error:  # one site's failure must not cost the others their signatures
            self.sites[site.module].failure = f"{type(error).__name__}: {error}"
            self._calls.pop(site.module, None)

    def _reduce(self, call: AttentionCall) -> tuple[dict[str, Tensor], Tensor]:
        valid, special = self._of_tokens(call)
        known = None if call.scores is not None or call.mask_chunk is not None else self._geometry(call, valid)
        marginals = marginals_of(call, valid=valid, known=known, **self._options)
        found = signatures(marginals, ignored_keys(marginals, special))
        return {key: self._documents(value) for key, value in found.items()}, self._documents(token_signal(marginals))

    def _of_tokens(self, call: AttentionCall) -> tuple[Tensor | None, Tensor | None]:
        """Valid and special tokens, where the call attends over the batch's own tokens."""
        batch = self._batch
        shape = (call.q.shape[0], call.q.shape[2])
        if batch is None or call.q.shape[2] != call.k.shape[2]:
            return None, None
        valid = batch.valid if batch.valid is not None and batch.valid.shape == shape else None
        special = None
        if self._special_tokens and batch.tokens is not None and batch.tokens.shape == shape:
            special = torch.isin(batch.tokens, torch.tensor(self._special_tokens)).to(call.q.device)
        return None if valid is None else valid.to(call.q.device), special

    def _geometry(self, call: AttentionCall, valid: Tensor | None) -> Geometry:
        """Statistics of the call's mask; layers that share a mask share them."""
        mask = call.mask
        place = () if mask is None else (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, mask._version)
        key = (*place, call.is_causal, call.q.shape[2], call.k.shape[2], valid is None)
        if key not in self._geometries:
            rule = Mask(call.q.shape[2], call.k.shape[2], mask, call.is_causal)
            known = geometry(rule, valid=valid, device=call.q.device, **self._options)
            # the mask is held until the forward ends, so that no other takes its place in memory
            self._geometries[key] = (mask, known)
        return self._geometries[key][1]

    def _documents(self, values: Tensor) -> Tensor:
        """Mean over the windows of a document, for models that cut a document into rows of the batch."""
        batch = self._batch
        documents = batch.size if batch is not None else None
        rows = values.shape[0]
        if documents is None or rows == documents or rows % documents:
            return values
        parted: Tensor = values.unflatten(0, (documents, rows // documents))
        return parted.nanmean(1)


def marginals_of(
    call: AttentionCall,
    *,
    valid: Tensor | None = None,
    known: Geometry | None = None,
    block: int = 128,
    query_stride: int = 1,
    observe: Observer | None = None,
) -> Marginals:
    """Column statistics of one attention call; arguments as in :func:`headwatch.marginal.column_statistics`.

    Raises:
        ValueError: the call's scores cannot be rebuilt.
    """
    if call.scores is not None:
        return from_scores(
            call.scores, visible=call.mask, valid=valid, block=block, query_stride=query_stride, observe=observe
        )
    if not call.complete:
        raise ValueError("its scores cannot be rebuilt from what reached the attention call")
    return column_statistics(
        call.q,
        call.k,
        scale=call.scale,
        mask=call.mask,
        is_causal=call.is_causal,
        softcap=call.softcap,
        mask_chunk=call.mask_chunk,
        valid=valid,
        geometry=known,
        block=block,
        query_stride=query_stride,
        observe=observe,
    )


def select_heads(call: AttentionCall, site: Site) -> AttentionCall:
    """The call with the watched heads alone.

    Raises:
        ValueError: the call has another number of heads than the site.
    """
    H = call.q.shape[1]
    if site.n_heads != H:
        raise ValueError(f"expected {site.n_heads} query heads at the attention call, found {H}")
    if site.heads == tuple(range(H)):
        return call
    heads = torch.tensor(site.heads, device=call.q.device)

    def of_heads(tensor: Tensor | None) -> Tensor | None:
        per_head = tensor is not None and tensor.ndim >= 3 and tensor.shape[-3] == H
        return tensor.index_select(-3, heads) if tensor is not None and per_head else tensor

    chunk = call.mask_chunk
    return replace(
        call,
        q=call.q[:, heads],
        k=call.k[:, heads // call.group],
        mask=of_heads(call.mask),
        scores=of_heads(call.scores),
        weights=of_heads(call.weights),
        mask_chunk=None if chunk is None else lambda i, j: _given(of_heads(chunk(i, j))),
    )


def _given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
