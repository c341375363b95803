"""Run a probe and examine every attention call of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from headwatch.heads.byvalue import prove_by_value
from headwatch.heads.examine import Examination, examine
from headwatch.heads.headmap import Projection, Site
from headwatch.heads.jacobian import Untraceable
from headwatch.heads.proof import Evidence, score_errors, scores
from headwatch.heads.recipe import Recipe
from headwatch.heads.roots import CrossAttention
from headwatch.heads.trace import Tracer
from headwatch.heads.verdict import Verdict
from headwatch.probe.call import AttentionCall
from headwatch.probe.capture import installed
from headwatch.probe.quiet import quiet_probe

__all__ = ["Call", "Key", "Survey", "run_survey"]

Key = tuple[str, int]  # caller, ordinal of the call within it


@dataclass(frozen=True)
class Call:
    """One attention call of a probe: an examination, or why there is none.

    Attributes:
        caller: module that made it.
        found: what it told about its heads.
        reason: why it told nothing.
        is_cross: query and key come from different inputs.
        verdict: proof of the recipes of an earlier probe.
        given: proof of rows given for this module, by module name.
    """

    caller: str
    found: Examination | None = None
    reason: str = ""
    is_cross: bool = False
    verdict: Verdict | None = None
    given: Mapping[str, Verdict] = field(default_factory=dict)


@dataclass
class Survey:
    """What a probe showed: its attention calls in order, modules that ran, and attention that could not be captured."""

    calls: dict[Key, Call] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    memory: dict[object, Any] = field(default_factory=dict)


def run_survey(
    model: nn.Module,
    probe: Callable[[], object],
    parameters: Mapping[str, Tensor],
    first: Survey | None = None,
    given: Sequence[Site] = (),
    handed: Sequence[Site] = (),
) -> Survey:
    """Run one probe.

    Args:
        model: the model that it runs.
        probe: runs one forward.
        parameters: the model's, by name.
        first: an earlier survey; its recipes are held against this probe's scores.
        given: sites by rule, held against calls that cannot be followed.
        handed: sites from the user, held against every call of their modules.
    """
    survey = Survey(memory=dict(first.memory) if first else {})

    def handle(call: AttentionCall) -> None:
        tracer.call = key = (call.module, call.ordinal)
        examined, evidence = _examined(tracer, call, parameters, first.calls.get(key) if first else None)
        if first is not None and not examined.is_cross:
            sites = [*handed, *(() if examined.verdict is not None else given)]
            examined = replace(examined, given=_verdicts(sites, tracer, call, parameters, examined, evidence))
        survey.calls[key] = examined
        tracer.new_call()

    tracer = Tracer(model, handle, survey.memory)
    with quiet_probe(model), installed(tracer):
        probe()
    survey.ran = set(tracer.stack.seen)
    survey.refused = {item.module: item.reason for item in tracer.refused}
    return survey


def _examined(
    tracer: Tracer, call: AttentionCall, parameters: Mapping[str, Tensor], earlier: Call | None
) -> tuple[Call, Evidence | None]:
    try:
        found, evidence = examine(tracer, call)
    except CrossAttention as reason:
        return Call(call.module, reason=str(reason), is_cross=True), None
    except Untraceable as reason:
        return Call(call.module, reason=str(reason)), None
    if earlier is None or earlier.found is None:
        return Call(call.module, found), evidence
    return Call(call.module, found, verdict=prove(earlier.found, evidence, parameters)), evidence


def prove(found: Examination, evidence: Evidence, parameters: Mapping[str, Tensor]) -> Verdict:
    """Hold the recipes of an earlier probe against the scores of this one."""
    diagonal = found.turns and found.rope is None
    used, predicted = scores(evidence, found.query, found.key, found.rope, parameters, diagonal=diagonal)
    tried = (
        "scores of each token with itself (positions are irregular)" if diagonal else "scores of all pairs of tokens"
    )
    return Verdict(score_errors(used, predicted), evidence.tolerance, (tried,), diagonal=diagonal)


def _verdicts(
    sites: Sequence[Site],
    tracer: Tracer,
    call: AttentionCall,
    parameters: Mapping[str, Tensor],
    examined: Call,
    evidence: Evidence | None,
) -> dict[str, Verdict]:
    """Proofs of rows that were given for the module of a call."""
    verdicts: dict[str, Verdict] = {}
    for site in sites:
        if not _is_near(site.module, call.module):
            continue
        if examined.found is None or evidence is None:
            verdict = prove_by_value(site, tracer, call, parameters)
        else:
            verdict = prove_in_place(site, call, examined.found, evidence, parameters)
        if verdict is not None:
            verdicts[site.module] = verdict
    return verdicts


def prove_in_place(
    site: Site, call: AttentionCall, found: Examination, evidence: Evidence, parameters: Mapping[str, Tensor]
) -> Verdict | None:
    """Hold given rows against a call that could be followed: its norms, biases, rotation and scale, but these rows."""
    if (site.n_heads, site.d_head) != (call.q.shape[1], len(found.query.places)):
        return None
    if call.k.shape[1] not in (site.n_kv_heads, site.n_heads):
        return None
    key_heads = tuple(range(site.n_kv_heads)) if call.k.shape[1] == site.n_kv_heads else site.kv_head
    query = _with_rows(found.query, site.W_Q, tuple(range(site.n_heads)))
    key = _with_rows(found.key, site.W_K, key_heads)
    return prove(replace(found, query=query, key=key), evidence, parameters)


def _with_rows(recipe: Recipe, given: Projection, heads: tuple[int, ...]) -> Recipe:
    bias = given.bias or recipe.projection.bias
    projection = replace(recipe.projection, terms=given.terms, bias=bias)
    return replace(recipe, projection=projection, heads=heads, inner=())


def _is_near(module: str, caller: str) -> bool:
    return not module or module == caller or caller.startswith(f"{module}.") or module.startswith(f"{caller}.")
