"""Prove rows that were given (by rule, or by the user) where the forward could not be followed: by values alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headwatch.heads.headmap import Projection, Site
from headwatch.heads.proof import Evidence, score_errors, score_tolerance, scores
from headwatch.heads.recipe import Recipe
from headwatch.heads.roots import inputs_of
from headwatch.heads.trace import Cut, Tracer
from headwatch.heads.verdict import Verdict
from headwatch.probe.call import AttentionCall

__all__ = ["prove_by_value"]


def prove_by_value(site: Site, tracer: Tracer, call: AttentionCall, parameters: Mapping[str, Tensor]) -> Verdict | None:
    """Compare q·k of a call with what a site's rows predict, up to one common factor; None where that is not possible.

    Tried in turn: tokens document by document and position by position; all pairs of tokens, and (for rotary positions)
    each token with itself.
    """
    pair = _recipes(site, call)
    cuts = _cut(tracer, site.W_Q), _cut(tracer, site.W_K)
    if pair is None or cuts[0] is None or cuts[1] is None:
        return None
    x = inputs_of(cuts[0])
    other = inputs_of(cuts[1])
    if x.shape[1] != site.d_model or x.shape != other.shape or not torch.equal(x, other):
        return None
    best: Verdict | None = None
    tried: list[str] = []
    tolerance = score_tolerance(call.q, call.k, cuts[0].leaf, cuts[1].leaf)
    for name, evidence in _orders(call, x, tolerance):
        for diagonal in (False, True):
            used, predicted = scores(evidence, *pair, None, parameters, diagonal=diagonal)
            factor = (used * predicted).sum() / predicted.square().sum().clamp(min=1e-300)
            errors = score_errors(used, predicted * factor)
            tried.append(f"{'each token with itself' if diagonal else 'all pairs'}, tokens {name}")
            verdict = Verdict(errors, evidence.tolerance, diagonal=diagonal)
            if verdict.holds:
                return replace(verdict, tried=tuple(tried))
            best = verdict if best is None or errors.max() < best.errors.max() else best
    return None if best is None else replace(best, tried=tuple(tried))


def _recipes(site: Site, call: AttentionCall) -> tuple[Recipe, Recipe] | None:
    heads, kv_heads, width = call.q.shape[1], call.k.shape[1], call.q.shape[3]
    if heads != site.n_heads or width != site.d_head or kv_heads not in (site.n_kv_heads, site.n_heads):
        return None
    key_heads = tuple(range(kv_heads)) if kv_heads == site.n_kv_heads else site.kv_head
    return _recipe(site.W_Q, tuple(range(heads)), width), _recipe(site.W_K, key_heads, width)


def _recipe(projection: Projection, heads: tuple[int, ...], width: int) -> Recipe:
    return Recipe(projection, heads, tuple(range(width)), 1.0, projection.terms[0].rows[-1].parameter)


def _cut(tracer: Tracer, projection: Projection) -> Cut | None:
    """The latest projection by the parameter that meets the input."""
    name = projection.terms[0].rows[-1].parameter
    return next(
        (cut for cut in tracer.recent() if cut.linear is not None and cut.linear.matrix.parameter == name), None
    )


def _orders(call: AttentionCall, x: Tensor, tolerance: float) -> Iterator[tuple[str, Evidence]]:
    B, _, T, _ = call.q.shape
    if call.k.shape[2] != T or len(x) != B * T:
        return
    for name, rows in (
        ("by document", np.arange(B * T).reshape(B, T)),
        ("by position", np.arange(B * T).reshape(T, B).T),
    ):
        yield name, Evidence(call.q.detach(), call.k.detach(), x, rows, rows, tolerance)
