"""Live rows of the query and key parameters, wherever their pieces lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor, nn

from headwatch.heads.headmap import HeadMap, Site
from headwatch.parallel.held import gains_of, held_heads, is_sharded, is_whole, local_site, local_tensor, parameters_of
from headwatch.parallel.plan import SitePlan, plan_site
from headwatch.parallel.ranks import ALONE, Ranks
from headwatch.parallel.whole import Parameters, fsdp1_units, gathered, unit_of

__all__ = ["Share", "Source"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Share:
    """What this rank computes of one site.

    Attributes:
        place: number of the site in the head map.
        site: the site with these heads alone, its rows as they lie in the tensors that come with it.
        live: the tensors are the model's own parameters, not pieces or copies.
    """

    place: int
    site: Site
    live: bool


class Source:
    """Reads the watched heads of a model that may be sharded, the work shared out over ranks.

    Args:
        head_map: what is watched, rows counted in the whole parameters.
        parameters: gives the live parameters by name.
        ranks: the processes; all make their source at the same place.
        root: the wrapped model, where FSDP1 shards it.

    Raises:
        ValueError: on all ranks, when one of them lacks a module of the map.
    """

    def __init__(
        self, head_map: HeadMap, parameters: Parameters, ranks: Ranks = ALONE, root: nn.Module | None = None
    ) -> None:
        self.ranks = ranks
        self._parameters = parameters
        self._sites = head_map.sites
        self._units = fsdp1_units(root) if root is not None else {}
        self.plans = self._planned()

    def _planned(self) -> list[SitePlan]:
        live = self._parameters()
        missing = [name for site in self._sites for name in parameters_of(site) if name not in live]
        _refuse_parts_of_a_model(self.ranks.everyone(missing))
        own = [() if self._unit(site) is not None else held_heads(site, live) for site in self._sites]
        by_rank = self.ranks.everyone(own)
        return [
            plan_site(place, site.heads, [held[place] for held in by_rank]) for place, site in enumerate(self._sites)
        ]

    def _unit(self, site: Site) -> nn.Module | None:
        return unit_of(parameters_of(site)[0], self._units)

    def visit(self, copy: Callable[[Share, Mapping[str, Tensor]], _T]) -> list[_T]:
        """Call ``copy`` with every share of this rank, one site after the other; all ranks visit together.

        The tensors are only there during the call. ``copy`` must not raise: the other ranks would wait.
        """
        live = self._parameters()
        copied = []
        for place, (site, plan) in enumerate(zip(self._sites, self.plans, strict=True)):
            heads = plan.heads[self.ranks.rank]
            if plan.gathered:
                copied += self._gathered(place, site, heads, copy)
                continue
            gains = self._gains(site, live)
            if heads:
                copied.append(self._local(place, site, heads, {**live, **gains}, copy))
        return copied

    def _gathered(
        self,
        place: int,
        site: Site,
        heads: tuple[int, ...],
        copy: Callable[[Share, Mapping[str, Tensor]], _T],
    ) -> list[_T]:
        """A method of its own, so that one site's tensors are gone before those of the next are put together."""
        with gathered(parameters_of(site), self._parameters, self._unit(site)) as tensors:
            return [copy(Share(place, site, live=False), tensors)] if heads else []

    def _gains(self, site: Site, live: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gains that lie in pieces are small: all ranks put them together."""
        pieces = [name for name in gains_of(site) if not is_whole(live[name])]
        if not pieces:
            return {}
        with gathered(pieces, self._parameters) as whole:
            return dict(whole)

    @staticmethod
    def _local(
        place: int,
        site: Site,
        heads: tuple[int, ...],
        live: Mapping[str, Tensor],
        copy: Callable[[Share, Mapping[str, Tensor]], _T],
    ) -> _T:
        names = parameters_of(site)
        if not any(is_sharded(live[name]) for name in names):
            return copy(Share(place, site if heads == site.heads else replace(site, heads=heads), live=True), live)
        tensors = {name: local_tensor(live[name]) for name in names}
        return copy(Share(place, local_site(site, heads, live), live=False), tensors)


def _refuse_parts_of_a_model(missing: Sequence[Sequence[str]]) -> None:
    rank, names = next(((rank, names) for rank, names in enumerate(missing) if names), (0, ()))
    if names:
        raise ValueError(
            f"rank {rank} does not have {names[0]} and {len(names) - 1} more that rank 0 watches: ranks hold different "
            "layers (pipeline parallelism), which headwatch does not put together. Measure its checkpoints instead, "
            "with headwatch replay, or leave the callback out."
        )
