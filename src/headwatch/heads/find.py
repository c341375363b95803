"""Find the heads of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor, nn

from headwatch.heads.errors import NoAttentionError
from headwatch.heads.handover import handed_sites
from headwatch.heads.headmap import HeadMap, LeftOut, Projection, Site
from headwatch.heads.hybrid import hybrid_blocks
from headwatch.heads.names import LiveParameters, named_modules, named_parameters
from headwatch.heads.selecting import select_heads
from headwatch.heads.structural import structural_sites

if TYPE_CHECKING:
    from headwatch.heads.behaviour import Behaviour

__all__ = ["find_heads"]

_NO_SOFTMAX = "no softmax attention was seen while it ran in the probe (linear attention, or a kernel of its own)"

Probe = Sequence[Callable[[], object]]


def find_heads(
    model: nn.Module,
    *,
    probe: Probe | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    heads: Sequence[object] | None = None,
) -> HeadMap:
    """Find every self-attention head of a model.

    With a probe, heads are found by what the model does: every attention call is followed back to rows of weights, and
    the scores that these predict on the second probe must be those that the model computes. What fails is left out by
    name.

    Args:
        model: the model; names in the result are those of its modules and parameters, without wrappers' segments.
        probe: closures that each run one forward of the model on a small batch (four documents of 16 tokens do): the
            first to fit, the last to verify. Without them heads are found by rule and are "structural".
        include, exclude: patterns over module names or heads (``"L03.*"``).
        heads: heads handed over by the user, where finding them fails; see ``headwatch.heads.handover``.

    Raises:
        NoAttentionError: no head can be watched.
        ValueError: a pattern that matches nothing.
    """
    parameters = named_parameters(model)
    sites, left_out = structural_sites(model)
    handed = handed_sites(model, heads, parameters) if heads else []
    if probe:
        from headwatch.heads.behaviour import observe  # the probe imports names from here

        seen = observe(model, probe, LiveParameters(model), sites, handed)
        refused = seen.refused
        sites, left_out = _merged(parameters, [*handed, *_others(sites, handed)], left_out, seen)
    else:
        sites, refused = [*handed, *_others(sites, handed)], []
    if not sites:
        raise NoAttentionError(type(model).__name__, left_out)
    sites = _numbered(model, [_with_state(site, parameters) for site in sites], refused)
    blocks = hybrid_blocks(model, sites, left_out, proven=bool(probe))
    return HeadMap(tuple(select_heads(sites, include, exclude)), (*left_out, *blocks))


def _others(sites: Sequence[Site], handed: Sequence[Site]) -> list[Site]:
    return [site for site in sites if all(site.module != own.module for own in handed)]


def _merged(
    parameters: Mapping[str, Tensor], sites: Sequence[Site], left_out: Sequence[LeftOut], seen: Behaviour
) -> tuple[list[Site], list[LeftOut]]:
    """What behaviour proved, what was given where no probe went, and why the rest is left out."""
    used = {id(parameters.get(name)) for site in seen.proven for name in _parameters(site.W_Q)} - {id(None)}
    reasons = {item.module: item for item in (*left_out, *seen.left_out)}
    kept = list(seen.proven)
    done = {*reasons, *(site.module for site in kept)}
    for site in sites:
        if site.module in done or any(id(parameters.get(name)) in used for name in _parameters(site.W_Q)):
            continue
        if any(_within(module, site.module) for module in seen.ran):
            reasons[site.module] = LeftOut(site.module, _NO_SOFTMAX)
        else:
            kept.append(replace(site, flags=(*site.flags, "not_reached")))
    modules = {site.module for site in kept}
    unclear = {item.module for item in left_out if not item.reason.startswith("cross")}
    covered = {name for name in unclear if any(_within(name, module) for module in modules if module)}
    return kept, [item for item in reasons.values() if item.module not in modules | covered]


def _within(module: str, holder: str) -> bool:
    return module == holder or module.startswith(f"{holder}.") or not holder


def _numbered(model: nn.Module, sites: list[Site], refused: Sequence[str]) -> list[Site]:
    """Layers in registration order of all self-attention modules, watched or not, and names of shared modules."""
    names: dict[int, list[str]] = {}
    order: dict[str, int] = {}
    for place, (name, module) in enumerate(named_modules(model)):
        names.setdefault(id(module), []).append(name)
        order[name] = place
    aliases = {own: tuple(other for other in same if other != own) for same in names.values() for own in same}
    counted = dict.fromkeys([*(site.module for site in sites), *refused])
    modules = sorted(counted, key=lambda name: order.get(name, len(order)))
    numbered = [
        replace(
            site,
            layer=modules.index(site.module),
            aliases=aliases.get(site.module, ()),
            flags=_flagged(site, "tied", bool(aliases.get(site.module))),
        )
        for site in sites
    ]
    return sorted(numbered, key=lambda site: site.layer)


def _with_state(site: Site, parameters: Mapping[str, Tensor]) -> Site:
    """The site with what its parameters tell: frozen, or measured because they cannot be named."""
    names = _parameters(site.W_Q) | _parameters(site.W_K)
    measured = {name for name in names if name not in parameters}
    held = tuple(f"{name.rpartition('.')[0]}." for name in measured)
    trains = any(parameters[name].requires_grad for name in names - measured) or any(
        tensor.requires_grad for name, tensor in parameters.items() if name.startswith(held)
    )
    flags = _flagged(site, "measured", bool(measured))
    return replace(site, flags=flags if trains else (*flags, "frozen"))


def _flagged(site: Site, flag: str, holds: bool) -> tuple[str, ...]:
    return (*site.flags, flag) if holds and flag not in site.flags else site.flags


def _parameters(projection: Projection) -> set[str]:
    return {name for term in projection.terms for rows in term.rows for name in (rows.parameter, *rows.more)}
