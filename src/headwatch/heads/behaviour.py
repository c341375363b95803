"""Find heads by what the model does with a probe, and prove them on a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from headwatch.heads.describe import layout_of
from headwatch.heads.examine import Examination
from headwatch.heads.headmap import LeftOut, Projection, Site, Term
from headwatch.heads.jacobian import Untraceable
from headwatch.heads.reading import collect_part, stacked_rows, sum_of_products
from headwatch.heads.recipe import Recipe
from headwatch.heads.survey import Call, Key, Survey, run_survey
from headwatch.heads.verdict import Verdict

__all__ = ["Behaviour", "observe"]


@dataclass
class Behaviour:
    """What two probes proved.

    Attributes:
        proven: sites whose scores were predicted, in the order of their calls.
        left_out: attention that is not watched.
        refused: names of self-attention modules that were seen and refused.
        ran: names of modules that were reached.
    """

    proven: list[Site] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    ran: set[str] = field(default_factory=set)


def observe(
    model: nn.Module,
    probe: Sequence[Callable[[], object]],
    parameters: Mapping[str, Tensor],
    given: Sequence[Site],
    handed: Sequence[Site] = (),
) -> Behaviour:
    """Run the first probe to fit and the last one to verify.

    Args:
        model: the model.
        probe: closures that run it; a single one serves twice.
        parameters: the model's, by name.
        given: sites by rule, for calls that cannot be followed.
        handed: sites from the user; they stand in for whatever would be found in their modules.
    """
    first = run_survey(model, probe[0], parameters)
    second = run_survey(model, probe[-1], parameters, first, given, handed)
    result = Behaviour(ran=first.ran | second.ran)
    groups = _by_module(first)
    for site in handed:
        own = next((module for module in groups if module == site.module or _calls(first, groups[module], site)), None)
        keys = [] if own is None else groups.pop(own)
        _judge_handed(result, site, [(first.calls[key], second.calls.get(key)) for key in keys], parameters)
    for module, keys in groups.items():
        _judge(result, module, [(first.calls[key], second.calls.get(key)) for key in keys], given, parameters)
    for module, reason in {**first.refused, **second.refused}.items():
        result.left_out.append(LeftOut(module, reason))
        result.refused.append(module)
    return result


def _calls(survey: Survey, keys: Sequence[Key], site: Site) -> bool:
    return any(survey.calls[key].caller == site.module for key in keys)


def _judge_handed(
    result: Behaviour,
    site: Site,
    calls: Sequence[tuple[Call, Call | None]],
    parameters: Mapping[str, Tensor],
) -> None:
    """Decide on a site from the user."""
    if not calls:
        return
    verdicts = [second.given.get(site.module) if second else None for _, second in calls]
    reason = next((_handed_doubt(site, verdict) for verdict in verdicts if verdict is None or not verdict.holds), None)
    if reason is not None:
        result.refused.append(site.module)
        result.left_out.append(LeftOut(site.module, f"handed over, but not proven: {reason}"))
        return
    found = calls[0][0].found
    if found is None:
        flags = (*site.flags, *(("rope_irregular",) if any(v is not None and v.diagonal for v in verdicts) else ()))
        result.proven.append(replace(site, status="proven", flags=flags, caller=calls[0][0].caller))
        return
    whole = _site(site.module, [found], parameters)
    W_Q, W_K = (
        replace(seen, terms=own.terms, bias=own.bias or seen.bias)
        for seen, own in ((whole.W_Q, site.W_Q), (whole.W_K, site.W_K))
    )
    result.proven.append(
        replace(
            whole, W_Q=W_Q, W_K=W_K, kv_head=site.kv_head, n_kv_heads=site.n_kv_heads, flags=(*whole.flags, *site.flags)
        )
    )


def _handed_doubt(site: Site, verdict: Verdict | None) -> str:
    if verdict is not None:
        return verdict.failure()
    return (
        f"its {site.n_heads} query heads and {site.n_kv_heads} key heads of {site.d_head} rows, with an input of "
        f"{site.d_model}, do not fit the attention call"
    )


def _by_module(survey: Survey) -> dict[str, list[Key]]:
    grouped: dict[str, list[Key]] = {}
    for key, call in survey.calls.items():
        grouped.setdefault(call.found.module if call.found else call.caller, []).append(key)
    return grouped


def _judge(
    result: Behaviour,
    module: str,
    calls: Sequence[tuple[Call, Call | None]],
    given: Sequence[Site],
    parameters: Mapping[str, Tensor],
) -> None:
    """Decide on all calls that one module makes."""
    crossed = [first for first, _ in calls if first.is_cross]
    calls = [pair for pair in calls if not pair[0].is_cross]
    if crossed:
        result.left_out.append(LeftOut(module, crossed[0].reason))
    if not calls:
        return
    reasons = [reason for first, second in calls if (reason := _doubt(first, second))]
    if not reasons:
        try:
            result.proven.append(_site(module, [first.found for first, _ in calls if first.found], parameters))
            return
        except ValueError as reason:
            reasons = [str(reason)]
    site = _given(calls, given)
    if site is not None:
        result.proven.append(site)
        return
    result.refused.append(module)
    result.left_out.append(LeftOut(module, f"not proven: {reasons[0]}"))


def _doubt(first: Call, second: Call | None) -> str:
    """Why a call does not count as proven; empty when it does."""
    if first.found is None:
        given = next(iter(second.given.values()), None) if second else None
        return first.reason if given is None or given.holds else f"{first.reason}; rows by rule: {given.failure()}"
    if second is None:
        return "it does not run on every document of the probe"
    if second.verdict is None:
        return second.reason or "the probe's other documents tell nothing of it"
    return "" if second.verdict.holds else second.verdict.failure()


def _given(calls: Sequence[tuple[Call, Call | None]], given: Sequence[Site]) -> Site | None:
    """The site that was given, when its scores hold in every call."""
    for site in given:
        verdicts = [second.given.get(site.module) if second else None for _, second in calls]
        if all(verdict is not None and verdict.holds for verdict in verdicts):
            turned = any(verdict is not None and verdict.diagonal for verdict in verdicts)
            flags = (*site.flags, "by_value", *(("rope_irregular",) if turned else ()))
            return replace(site, status="proven", flags=flags, caller=calls[0][0].caller)
    return None


def _site(module: str, found: list[Examination], parameters: Mapping[str, Tensor]) -> Site:
    """The site of one module; several calls with rows of their own are heads of one site.

    Raises:
        Untraceable: the calls cannot be told as one sum of products.
    """
    distinct = list({_signature(each): each for each in found}.values())
    first = distinct[0]
    W_Q = _joined([each.query.projection for each in distinct], parameters)
    W_K = _joined([each.key.projection for each in distinct], parameters)
    n_kv_heads = [each.key.n_heads for each in distinct]
    starts = np.cumsum([0, *n_kv_heads])
    if len(distinct) > 1:
        _check_joined(W_Q, [each.query for each in distinct], parameters)
        _check_joined(W_K, [each.key for each in distinct], parameters)
    kv_head = tuple(int(starts[i]) + kv for i, each in enumerate(distinct) for kv in each.kv_head)
    return Site(
        layer=-1,
        module=module,
        d_model=first.d_model,
        d_head=len(first.query.places),
        n_heads=len(kv_head),
        n_kv_heads=sum(n_kv_heads),
        W_Q=W_Q,
        W_K=W_K,
        kv_head=kv_head,
        heads=tuple(range(len(kv_head))),
        status="proven",
        flags=_flags(first, W_Q, W_K),
        rope=first.rope,
        norm=first.norm,
        caller="" if first.caller == module else first.caller,
        layout=layout_of(W_Q, W_K),
    )


def _signature(found: Examination) -> tuple[object, ...]:
    rows = [term.rows[0] for side in (found.query, found.key) for term in side.projection.terms]
    return tuple((each.parameter, each.index.tobytes()) for each in rows if each.index is not None)


def _joined(projections: Sequence[Projection], parameters: Mapping[str, Tensor]) -> Projection:
    """One projection whose heads are those of all, one after the other."""
    if len(projections) == 1:
        return projections[0]
    shapes = {(len(each.terms), each.bias is None, each.gain is None, each.centred) for each in projections}
    if len(shapes) > 1 or any(len(term.rows) > 1 for each in projections for term in each.terms):
        raise Untraceable("several attention calls of one module with projections of different kinds")
    terms = tuple(
        replace(same[0], rows=(stacked_rows([term.rows[0] for term in same], parameters),))
        for same in zip(*(each.terms for each in projections), strict=True)
    )
    biases = [each.bias for each in projections if each.bias is not None]
    gains = {None if each.gain is None else (each.gain.parameter, each.gain.more) for each in projections}
    if gains != {None}:
        raise Untraceable("several attention calls of one module with a QK-norm")
    return replace(projections[0], terms=terms, bias=stacked_rows(biases, parameters) if biases else None)


def _check_joined(whole: Projection, recipes: Sequence[Recipe], parameters: Mapping[str, Tensor]) -> None:
    """What is stored must be what was proven.

    Raises:
        Untraceable: the joined projection reads other rows than the proven ones.
    """
    starts = np.cumsum([0, *(recipe.n_heads for recipe in recipes)])
    for start, recipe in zip(starts, recipes, strict=False):
        heads = [int(start) + head for head in range(recipe.n_heads)]
        stored = sum_of_products(whole, collect_part(whole, heads, int(starts[-1]), parameters))
        own = recipe.projection
        proven = sum_of_products(own, collect_part(own, list(range(recipe.n_heads)), recipe.n_heads, parameters))
        if not torch.equal(stored, proven):
            raise Untraceable("several attention calls of one module whose rows cannot be joined")


def _flags(found: Examination, W_Q: Projection, W_K: Projection) -> tuple[str, ...]:
    norm = found.query.norm or found.key.norm
    terms: tuple[Term, ...] = (*W_Q.terms, *W_K.terms)
    said = {
        "qk_norm": norm is not None and norm.kind != "gain",
        "qk_gain": norm is not None and norm.kind == "gain",
        "rope": found.rope is not None,
        "rope_irregular": found.turns and found.rope is None,
        "mla_nope": any(term.gain is not None or len(term.rows) > 1 for term in (W_Q.terms[0], W_K.terms[0])),
        "lora": len(terms) > 2,
        "tied_qk": layout_of(W_Q, W_K) == "shared by query and key",
    }
    return tuple(name for name, holds in said.items() if holds)
