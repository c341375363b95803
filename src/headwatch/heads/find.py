"""Find the heads of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from headwatch.heads.errors import NoAttentionError
from headwatch.heads.headmap import HeadMap, Projection, Site
from headwatch.heads.names import named_parameters
from headwatch.heads.selecting import select_heads
from headwatch.heads.structural import structural_sites

__all__ = ["find_heads"]

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

    Args:
        model: the model; names in the result are those of its modules and parameters, without wrappers' segments.
        probe: closures that each run one forward of the model: the first to fit, the second to verify. Without them
            heads are found by rule and are "structural".
        include, exclude: patterns over module names or heads (``"L03.*"``).
        heads: heads handed over by the user, where finding them fails.

    Raises:
        NoAttentionError: no head can be watched.
        ValueError: a pattern that matches nothing.
    """
    sites, left_out = structural_sites(model)
    if not sites:
        raise NoAttentionError(type(model).__name__, left_out)
    parameters = named_parameters(model)
    sites = [_with_state(site, parameters) for site in sites]
    return HeadMap(tuple(select_heads(sites, include, exclude)), tuple(left_out))


def _with_state(site: Site, parameters: Mapping[str, Tensor]) -> Site:
    """The site with what its parameters tell: frozen."""
    used = [parameters[name] for name in _parameters(site.W_Q) | _parameters(site.W_K)]
    return site if any(tensor.requires_grad for tensor in used) else replace(site, flags=(*site.flags, "frozen"))


def _parameters(projection: Projection) -> set[str]:
    return {rows.parameter for term in projection.terms for rows in term.rows}
