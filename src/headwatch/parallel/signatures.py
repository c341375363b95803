"""Signatures measured by several ranks: documents shared out, or under tensor parallelism each rank its own heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from headwatch.heads.headmap import HeadMap, Site
from headwatch.heads.names import named_parameters
from headwatch.parallel.held import is_split
from headwatch.parallel.layout import Layout
from headwatch.parallel.ranks import Ranks
from headwatch.probe.call import AttentionCall
from headwatch.probe.capture import capture
from headwatch.probe.documents import ProbeBatch
from headwatch.probe.measure import SignatureMeasure
from headwatch.probe.quiet import quiet_probe
from headwatch.probe.reduction import Reduction, SiteValues
from headwatch.snapshot import Snapshot, heads_table

__all__ = ["SharedSignatures", "SignaturePart", "merged_values", "turns"]


@dataclass(frozen=True)
class SignaturePart:
    """What one rank sends of one snapshot.

    Attributes:
        step: optimizer steps done.
        batches: numbers of the probe batches that it measured, in order.
        heads: by module, the query heads behind the columns of its values.
        sites: by module, what it measured.
        failure: why there is nothing.
    """

    step: int
    batches: tuple[int, ...] = ()
    heads: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sites: dict[str, SiteValues] = field(default_factory=dict)
    failure: str = ""


class SharedSignatures(SignatureMeasure):
    """:class:`SignatureMeasure` for the ranks of one training; all must make it and take together.

    Args:
        model, head_map, batches, options: as there; every rank brings the same documents.
        ranks: the processes.
        layout: how the weights lie. Whole: each rank runs its documents. FSDP2 and the like: the same, in equally many
            forwards. Tensor parallel: all run all documents and measure the heads that they have.
    """

    def __init__(
        self,
        model: nn.Module,
        head_map: HeadMap,
        batches: Sequence[ProbeBatch],
        *,
        ranks: Ranks,
        layout: Layout = "whole",
        **options: Any,
    ) -> None:
        batches = ranks.share(list(batches))
        super().__init__(model, head_map, batches, **options)
        self._ranks = ranks
        self._local, self._numbers = head_map, {site.module: site.heads for site in head_map.sites}
        if layout == "tensor_parallel":
            self._local, self._numbers = _own_heads(model, head_map)
        self._turns = turns(
            len(batches), ranks.rank, ranks.size, split=layout != "tensor_parallel", even=layout != "whole"
        )

    def take(self, step: int) -> Callable[[int], Snapshot]:
        """Run this rank's documents; returns what is left to do."""
        try:
            part = self._measured(step)
        except Exception as error:
            if self._ranks.size == 1:
                raise
            part = SignaturePart(step, failure=f"{type(error).__name__}: {error}")  # the other ranks wait for it
        return lambda at: self._merge(at, part)

    def _measured(self, step: int) -> SignaturePart:
        reduction = Reduction(self._local, **self._options)
        gate = _Gate(reduction)
        with quiet_probe(self._model), capture(self._model, gate) as captured:
            for number, gate.is_open in self._turns:
                reduction.begin(self.batches[number])
                self._call(self.batches[number].batch)
                reduction.end()
        reduction.refuse(captured.refused)
        return SignaturePart(step, tuple(n for n, own in self._turns if own), self._numbers, reduction.sites)

    def _merge(self, step: int, own: SignaturePart) -> Snapshot:
        parts = self._ranks.collect(own)
        if parts is None:
            return Snapshot("signature", step, heads_table("signature", {"step": []}))
        self._say_failures(step, parts)
        sites = merged_values(self.head_map, [part for part in parts if part.step == step and not part.failure])
        self._say(sites, step)
        return self._finish(step, sites)

    def _say_failures(self, step: int, parts: Sequence[SignaturePart]) -> None:
        failed = [(rank, p.failure) for rank, p in enumerate(parts) if p.failure]
        failed += [(rank, "it is out of step") for rank, p in enumerate(parts) if not p.failure and p.step != step]
        for rank, why in failed:
            self._notices.say(
                f"signature rank {rank}",
                f"rank {rank} could not measure its share of the probe at step {step}: {why}. Its documents are missing"
                " from this snapshot; training goes on.",
            )


@dataclass
class _Gate:
    """Lets calls pass while a forward counts."""

    reduction: Reduction
    is_open: bool = True

    def __call__(self, call: AttentionCall) -> None:
        if self.is_open:
            self.reduction(call)


def turns(batches: int, rank: int, size: int, *, split: bool, even: bool) -> list[tuple[int, bool]]:
    """(batch, whether it counts) of every forward that a rank runs.

    Args:
        batches: number of probe batches.
        rank, size: of the process.
        split: whether ranks take different batches.
        even: whether all ranks must run equally many forwards.

    >>> turns(3, 1, 2, split=True, even=True)
    [(1, True), (0, False)]
    >>> turns(3, 1, 2, split=True, even=False)
    [(1, True)]
    """
    if not split:
        return [(number, True) for number in range(batches)]
    own = [(number, True) for number in range(rank, batches, size)]
    missing = -(-batches // size) - len(own) if even else 0
    return own + [(0, False)] * missing


def merged_values(head_map: HeadMap, parts: Sequence[SignaturePart]) -> dict[str, SiteValues]:
    """The values of all ranks as one process would have measured them; heads that no rank has are NaN."""
    numbers = sorted({number for part in parts for number in part.batches})
    return {site.module: _merged_site(site, parts, numbers) for site in head_map.sites}


def _merged_site(site: Site, parts: Sequence[SignaturePart], numbers: Sequence[int]) -> SiteValues:
    parts = [part for part in parts if site.module in part.sites]
    failure = next((part.sites[site.module].failure for part in parts if part.sites[site.module].failure), "")
    result = SiteValues(failure=failure)
    if failure:
        return result
    for number in numbers:
        pieces = _pieces(site, parts, number)
        for key in pieces[0][1] if pieces else ():
            columns = [(heads, values[key]) for heads, values, _ in pieces]
            result.values.setdefault(key, []).append(_side_by_side(site, columns))
        if pieces:
            weights = torch.tensor([float(len(heads)) for heads, _, _ in pieces])
            lifts = torch.stack([lift for _, _, lift in pieces])
            result.lift.append((lifts * (weights / weights.sum()).view(-1, 1, 1)).sum(0))
    return result


def _pieces(
    site: Site, parts: Sequence[SignaturePart], number: int
) -> list[tuple[tuple[int, ...], dict[str, Tensor], Tensor]]:
    """(heads, values, lift) of one batch, each head once."""
    found, seen = [], set[int]()
    for part in parts:
        values = part.sites[site.module]
        heads = part.heads[site.module]
        if number not in part.batches or not values.values or seen & set(heads):
            continue
        seen |= set(heads)
        place = part.batches.index(number)
        found.append((heads, {key: each[place] for key, each in values.values.items()}, values.lift[place]))
    return found


def _side_by_side(site: Site, columns: Sequence[tuple[tuple[int, ...], Tensor]]) -> Tensor:
    if len(columns) == 1 and columns[0][0] == site.heads:
        return columns[0][1]
    first = columns[0][1]
    whole = first.new_full((first.shape[0], len(site.heads)), torch.nan)
    for heads, values in columns:
        whole[:, [site.heads.index(head) for head in heads]] = values
    return whole


def _own_heads(model: nn.Module, head_map: HeadMap) -> tuple[HeadMap, dict[str, tuple[int, ...]]]:
    """The heads that this rank has at an attention call under tensor parallelism, counted from 0; and their numbers."""
    parameters = named_parameters(model)
    sites, numbers = [], {}
    for site in head_map.sites:
        place, size = _split(parameters[site.W_Q.terms[0].rows[0].parameter])
        n_heads = site.n_heads // size
        own = tuple(head for head in site.heads if head // n_heads == place)
        if own:
            numbers[site.module] = own
            sites.append(_counted_from(site, place * n_heads, n_heads, own))
    return replace(head_map, sites=tuple(sites)), numbers


def _counted_from(site: Site, first: int, n_heads: int, own: Sequence[int]) -> Site:
    kv_head = site.kv_head[first : first + n_heads]
    kv_head = tuple(head - kv_head[0] for head in kv_head)
    heads = tuple(head - first for head in own)
    return replace(site, n_heads=n_heads, n_kv_heads=kv_head[-1] + 1, heads=heads, kv_head=kv_head)


def _split(parameter: Tensor) -> tuple[int, int]:
    """(place, size) along the mesh dimension of tensor parallelism: the last one that cuts the rows."""
    if not is_split(parameter):
        return 0, 1
    placements = parameter.placements  # type: ignore[attr-defined]
    mesh = parameter.device_mesh  # type: ignore[attr-defined]
    cuts = [i for i, each in enumerate(placements) if type(each).__name__ != "Replicate"]
    return (mesh.get_coordinate()[cuts[-1]], mesh.size(cuts[-1])) if cuts else (0, 1)
