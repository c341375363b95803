"""Run a probe and examine every attention call of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from headwatch.heads.byvalue import prove_by_value
from headwatch.heads.examine import Examination, examine
from headwatch.heads.headmap import Site
from headwatch.heads.jacobian import Untraceable
from headwatch.heads.proof import Evidence, score_errors, score_tolerance, scores
from headwatch.heads.roots import CrossAttention
from headwatch.heads.trace import Tracer
from headwatch.heads.verdict import Verdict
from headwatch.probe.call import AttentionCall
from headwatch.probe.capture import installed
from headwatch.probe.quiet import quiet_probe

__all__ = ["Call", "Survey", "run_survey"]

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


def run_survey(
    model: nn.Module,
    probe: Callable[[], object],
    parameters: Mapping[str, Tensor],
    first: Survey | None = None,
    given: Sequence[Site] = (),
) -> Survey:
    """Run one probe.

    Args:
        model: the model that it runs.
        probe: runs one forward.
        parameters: the model's, by name.
        first: an earlier survey; its recipes are held against this probe's scores.
        given: sites by rule or from the user, held against calls that cannot be followed.
    """
    survey = Survey()

    def handle(call: AttentionCall) -> None:
        key = (call.module, call.ordinal)
        examined = _examined(tracer, call, parameters, first.calls.get(key) if first else None)
        if first is not None and examined.verdict is None:
            examined = replace(examined, given=_by_value(tracer, call, parameters, given))
        survey.calls[key] = examined
        tracer.new_call()

    tracer = Tracer(model, handle)
    with quiet_probe(model), installed(tracer):
        probe()
    survey.ran = set(tracer.stack.seen)
    survey.refused = {item.module: item.reason for item in tracer.refused}
    return survey


def _examined(tracer: Tracer, call: AttentionCall, parameters: Mapping[str, Tensor], earlier: Call | None) -> Call:
    try:
        found, evidence = examine(tracer, call)
    except CrossAttention as reason:
        return Call(call.module, reason=str(reason), is_cross=True)
    except Untraceable as reason:
        return Call(call.module, reason=str(reason))
    if earlier is None or earlier.found is None:
        return Call(call.module, found)
    return Call(call.module, found, verdict=prove(earlier.found, evidence, parameters))


def prove(found: Examination, evidence: Evidence, parameters: Mapping[str, Tensor]) -> Verdict:
    """Hold the recipes of an earlier probe against the scores of this one."""
    diagonal = found.turns and found.rope is None
    used, predicted = scores(evidence, found.query, found.key, found.rope, parameters, diagonal=diagonal)
    tried = (
        "scores of each token with itself (positions are irregular)" if diagonal else "scores of all pairs of tokens"
    )
    return Verdict(score_errors(used, predicted), score_tolerance(evidence.q.dtype), (tried,), diagonal=diagonal)


def _by_value(
    tracer: Tracer, call: AttentionCall, parameters: Mapping[str, Tensor], given: Sequence[Site]
) -> dict[str, Verdict]:
    near = [site for site in given if _is_near(site.module, call.module)]
    verdicts = {site.module: prove_by_value(site, tracer, call, parameters) for site in near}
    return {module: verdict for module, verdict in verdicts.items() if verdict is not None}


def _is_near(module: str, caller: str) -> bool:
    return not module or module == caller or caller.startswith(f"{module}.") or module.startswith(f"{caller}.")
