"""Examine one attention call: recipes of W_Q and W_K, key heads, rotary positions, the norm in front."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from headwatch.heads.assemble import kept_places, make_recipe
from headwatch.heads.headmap import Gain, Rope
from headwatch.heads.jacobian import Untraceable
from headwatch.heads.layout import Layout
from headwatch.heads.norms import fit_norm
from headwatch.heads.proof import Evidence, score_tolerance
from headwatch.heads.recipe import Recipe
from headwatch.heads.resolve import Trail, follow, tolerance_of
from headwatch.heads.roots import Paths
from headwatch.heads.rotary import fit_rope, turns_alike
from headwatch.heads.trace import Cut, Tracer
from headwatch.probe.call import AttentionCall

__all__ = ["Examination", "examine"]


@dataclass(frozen=True)
class Examination:
    """What one attention call told about its heads; no tensor.

    Attributes:
        module: innermost module that holds both the call and its projections.
        caller: module that made the call.
        query, key: recipes.
        kv_head: distinct key head of every query head.
        d_model: width of the shared input.
        rope: rotary positions, None without or where they are not linear in the position.
        turns: whether coordinates rotate with the position at all.
        norm: gain of the norm in front.
    """

    module: str
    caller: str
    query: Recipe
    key: Recipe
    kv_head: tuple[int, ...]
    d_model: int
    rope: Rope | None
    turns: bool
    norm: Gain | None


def examine(tracer: Tracer, call: AttentionCall) -> tuple[Examination, Evidence]:
    """Examine a call while it happens.

    Raises:
        CrossAttention: query and key come from different inputs.
        Untraceable: q or k cannot be written as rows of weights.
    """
    layouts = _layout(call.q), _layout(call.k)
    q, k = (
        follow(tracer, tensor, layout, tensor.shape[2], (side,))
        for side, tensor, layout in zip("qk", (call.q, call.k), layouts, strict=True)
    )
    paths = Paths(tracer, _cuts(q), _cuts(k))
    places = kept_places(k, call.k.shape[-1], paths)
    query = make_recipe(q, layouts[0], places, paths, distinct=False)
    key = make_recipe(k, layouts[1], places, paths, distinct=True)
    whole = len(places) == call.k.shape[-1]
    rope, turns = _rope(q, k, call) if whole else (None, False)
    found = Examination(
        module=_common([call.module, *(cut.module for cut in (*q.rows, *k.rows))]),
        caller=call.module,
        query=query,
        key=key,
        kv_head=tuple(key.heads[h // call.group] for h in range(call.q.shape[1])),
        d_model=paths.root.shape[1],
        rope=rope,
        turns=turns,
        norm=_norm_in_front(tracer, paths.entry),
    )
    return found, _evidence(call, q, k, paths)


def _layout(x: Tensor) -> Layout:
    """Tokens and channels of q or k, shape (B, H, T, n)."""
    return Layout.regular(x.shape, (0, 2), (1, 3), np.arange(x.shape[0] * x.shape[2]), x.shape[3])


def _cuts(trail: Trail) -> set[Cut]:
    return {link.cut for channel in trail.channels for link in channel.links}


def _rope(q: Trail, k: Trail, call: AttentionCall) -> tuple[Rope | None, bool]:
    """Rotary positions that q and k share.

    Raises:
        Untraceable: only one of them rotates.
    """
    if (q.rotation is None) != (k.rotation is None):
        raise Untraceable("only one of query and key rotates with the position")
    if q.rotation is None or k.rotation is None:
        return None, False
    tolerance = max(1e-3, 2 * tolerance_of(call.q, *(cut.leaf for cut in (*q.rows, *k.rows))))
    rope = fit_rope(q.rotation, call.q.shape[2], tolerance)
    if rope is None or not turns_alike(k.rotation, rope, call.k.shape[2], tolerance):
        return None, True
    return rope, True


def _common(names: list[str]) -> str:
    """The longest dotted prefix of all names.

    >>> _common(["a.b.c", "a.b.d"])
    'a.b'
    """
    parts = [name.split(".") if name else [] for name in names]
    shared = []
    for segments in zip(*parts, strict=False):
        if len(set(segments)) > 1:
            break
        shared.append(segments[0])
    return ".".join(shared)


def _norm_in_front(tracer: Tracer, entry: Cut) -> Gain | None:
    """Gain of the norm whose output is the shared input."""
    assert entry.linear is not None
    x = entry.linear.x
    cuts = tracer.cuts_behind(x) if x.requires_grad else []
    if len(cuts) != 1 or cuts[0].kind != "norm" or cuts[0].leaf.numel() != x.numel():
        return None
    if not bool((cuts[0].leaf.reshape(-1) == x.reshape(-1)).all()):
        return None
    try:
        formula = fit_norm(cuts[0], tolerance_of(x, cuts[0].leaf))
    except Untraceable:
        return None
    return None if formula.gain is None else Gain(formula.gain, offset=formula.offset)


def _evidence(call: AttentionCall, q: Trail, k: Trail, paths: Paths) -> Evidence:
    def rows(trail: Trail, x: Tensor) -> np.ndarray:
        known = [rows for cut, rows in trail.rows.items() if cut in _cuts(trail)]
        return np.max(known, axis=0).reshape(x.shape[0], x.shape[2])

    used = [call.q, call.k, *(cut.leaf for cut in (*q.rows, *k.rows))]
    return Evidence(
        call.q.detach(), call.k.detach(), paths.root, rows(q, call.q), rows(k, call.k), score_tolerance(*used)
    )
