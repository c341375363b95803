"""Build the recipes of W_Q and W_K from the trails of q and k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headwatch.heads.headmap import FLAT, Gain, Projection, Rows, Term
from headwatch.heads.jacobian import Untraceable
from headwatch.heads.layout import Layout
from headwatch.heads.norms import NormFormula, trailing_places
from headwatch.heads.recipe import Recipe
from headwatch.heads.resolve import Channel, Link, Trail
from headwatch.heads.roots import Paths, Under
from headwatch.heads.trace import Cut

__all__ = ["kept_places", "make_recipe"]

_UNEVEN = 1e-2


def kept_places(key: Trail, width: int, paths: Paths) -> tuple[int, ...]:
    """Coordinates of a head that make one form.

    All of them; but where some reach the input through a latent space and others, which rotate, do not (MLA), those
    stand still.

    Raises:
        Untraceable: coordinates reach the input by different ways that cannot be told apart.
    """
    direct = [any(paths.beneath(link.cut) is None for link in channel.links) for channel in key.channels]
    if len(set(direct)) == 1:
        return tuple(range(width))
    turned = {place for pair in key.rotation.pairs for place in pair} if key.rotation is not None else set()
    if any(is_direct != (i % width in turned) for i, is_direct in enumerate(direct)):
        raise Untraceable("coordinates of one head reach the input by different ways")
    return tuple(place for place in range(width) if place not in turned)


def make_recipe(trail: Trail, layout: Layout, places: tuple[int, ...], paths: Paths, distinct: bool) -> Recipe:
    """The recipe of one side.

    Args:
        trail: of q or k.
        layout: its tokens and channels.
        places: coordinates of a head to keep.
        paths: how projections reach the shared input.
        distinct: merge heads with the same rows (key heads that were repeated).

    Raises:
        Untraceable: the parts do not fit a sum of products of indexed parameters.
    """
    heads = [[trail.channels[h * layout.width + p] for p in places] for h in range(layout.n_groups)]
    order, kept = _distinct(heads) if distinct else (list(range(len(heads))), heads)
    norm = _norm(kept, trail)
    columns = _columns(kept, paths)
    primary = _even([link.factor for head in columns[0] for link in head])
    terms = [_term(column, paths, 1.0 if norm else primary) for column in columns]
    gain, norm_bias = _gains(kept, norm) if norm else (None, None)
    return Recipe(
        projection=Projection(
            terms=tuple(term for term, _ in terms),
            bias=_bias(kept, columns[0], 1.0 if norm else primary),
            gain=gain,
            centred=norm is not None and norm.kind == "layer" and norm.size == len(places),
        ),
        heads=tuple(order),
        places=places,
        factor=_even([c.factor for head in kept for c in head]) if norm else primary,
        root=terms[0][0].rows[-1].parameter,
        norm=norm,
        norm_bias=norm_bias,
        inner=tuple(formula for _, formula in terms),
    )


def _distinct(heads: list[list[Channel]]) -> tuple[list[int], list[list[Channel]]]:
    """Which distinct head every head is, and these, in the order of their rows."""
    signature = [tuple((id(link.cut), link.channel) for c in head for link in c.links) for head in heads]
    rows = [tuple((link.channel,) for c in head for link in c.links) for head in heads]
    unique = sorted(
        {s: (rows[i], i) for i, s in reversed(list(enumerate(signature)))}.items(), key=lambda item: item[1]
    )
    names = [name for name, _ in unique]
    return [names.index(s) for s in signature], [heads[i] for _, (_, i) in unique]


def _columns(heads: list[list[Channel]], paths: Paths) -> list[list[list[Link]]]:
    """Links of all coordinates, one column per term: the projection of the root first.

    Raises:
        Untraceable: coordinates are sums of different projections.
    """
    count = {len(c.links) for head in heads for c in head}
    if len(count) != 1:
        raise Untraceable("coordinates of one head are sums of different numbers of projections")
    ordered = [[sorted(c.links, key=lambda k: (paths.beneath(k.cut) is not None, id(k.cut))) for c in h] for h in heads]
    return [[[links[i] for links in head] for head in ordered] for i in range(count.pop())]


def _term(column: list[list[Link]], paths: Paths, primary: float) -> tuple[Term, NormFormula | None]:
    scale = _snap(_even([link.factor for head in column for link in head]) / primary)
    cuts = list(dict.fromkeys(link.cut for head in column for link in head))
    rows = _stacked_rows(column, cuts)
    under = [paths.beneath(cut) for cut in cuts]
    if all(each is None for each in under):
        return Term((rows,), scale), None
    if len(under) > 1 or under[0] is None:
        raise Untraceable("heads take their rows from several weights through a latent space")
    return _product(rows, under[0], paths, scale)


def _stacked_rows(column: list[list[Link]], cuts: list[Cut]) -> Rows:
    """Rows of one parameter, or of several laid under one another."""
    matrices = [cut.linear.matrix for cut in cuts if cut.linear is not None]
    starts = np.cumsum([0, *(matrix.n_rows for matrix in matrices)])
    if len({matrix.pattern for matrix in matrices}) > 1:
        raise Untraceable("heads take their rows from weights of different layouts")
    place = {cut: (matrix, int(start)) for cut, matrix, start in zip(cuts, matrices, starts, strict=False)}
    index = [[place[link.cut][1] + place[link.cut][0].rows[link.channel] for link in head] for head in column]
    return Rows(matrices[0].parameter, matrices[0].pattern, np.array(index), tuple(m.parameter for m in matrices[1:]))


def _product(rows: Rows, under: Under, paths: Paths, scale: float) -> tuple[Term, NormFormula | None]:
    """A term of two factors: a low-rank update, or a projection out of a latent space."""
    assert under.cut.linear is not None
    if under.cut.linear.bias is not None or not under.cut.linear.known_bias:
        raise Untraceable(f"{under.cut.module}: a bias inside of a product of projections")
    below = under.cut.linear.matrix
    inner = Rows(below.parameter, below.pattern, below.rows[[c.links[0].channel for c in under.channels]])
    if under.norm is None:
        return Term((rows, inner), scale), None
    formula = paths.formula(under.norm)
    if formula.bias is not None or any(abs(c.factor - 1) > _UNEVEN for c in under.channels):
        raise Untraceable(f"{under.norm.module}: a norm with a bias inside of a product of projections")
    if formula.gain is None:
        return Term((rows, inner), scale), formula
    gain = Gain(formula.gain, _gain_places(under.channels, under.norm, formula.gain), formula.offset)
    return Term((rows, inner), scale, gain), formula


def _gain_places(channels: Sequence[Channel], norm: Cut, parameter: str) -> np.ndarray:
    places = trailing_places(norm.tensors[parameter].shape, norm.leaf.shape).reshape(-1)
    return np.asarray(places[[channel.place for channel in channels]])


def _norm(heads: list[list[Channel]], trail: Trail) -> NormFormula | None:
    """The formula of the norm that all coordinates pass, with the parameters of the first head.

    Raises:
        Untraceable: heads pass different norms.
    """
    cuts = [{c.norm for c in head} for head in heads]
    if any(len(each) != 1 for each in cuts):
        raise Untraceable("coordinates of one head pass different norms")
    formulas = [None if (cut := next(iter(each))) is None else trail.formulas[cut] for each in cuts]
    shapes = {
        None if f is None else (f.kind, f.eps, f.size, f.offset, f.gain is None, f.bias is None) for f in formulas
    }
    if len(shapes) != 1:
        raise Untraceable("heads pass norms of different kinds")
    return formulas[0]


def _gains(heads: list[list[Channel]], norm: NormFormula) -> tuple[Gain | None, tuple[str, np.ndarray] | None]:
    gain = None
    if norm.gain is not None:
        names, index = _places_in(heads, norm.gain)
        shared = len(names) == 1 and all(np.array_equal(index[0], row) for row in index)
        gain = Gain(names[0], index[0] if shared else index, norm.offset, names[1:])
    if norm.bias is None:
        return gain, None
    names, index = _places_in(heads, norm.bias)
    if len(names) > 1:
        raise Untraceable("a QK-norm of every head with a bias of its own")
    return gain, (names[0], index)


def _places_in(heads: list[list[Channel]], parameter: str) -> tuple[tuple[str, ...], np.ndarray]:
    """Parameters of this role in the heads' norms, and places in all of them laid end to end, shape (heads, n)."""
    first = heads[0][0].norm
    assert first is not None
    role = list(first.tensors).index(parameter)
    names: list[str] = []
    starts: dict[str, int] = {}
    total = 0
    rows = []
    for head in heads:
        cut = head[0].norm
        assert cut is not None
        name = list(cut.tensors)[role]
        if name not in starts:
            starts[name] = total
            total += cut.tensors[name].numel()
            names.append(name)
        rows.append(starts[name] + _gain_places(head, cut, name))
    return tuple(names), np.stack(rows)


def _bias(heads: list[list[Channel]], column: list[list[Link]], primary: float) -> Rows | None:
    """The one bias of every coordinate, from the projection or added after it.

    Raises:
        Untraceable: there are several, or one that is no parameter.
    """
    calls = {link.cut: link.cut.linear for head in column for link in head if link.cut.linear is not None}
    if not all(call.known_bias for call in calls.values()):
        raise Untraceable("the bias of a projection is computed, no parameter")
    given = {cut: call.bias for cut, call in calls.items() if call.bias is not None}
    shifts = {len(c.shifts) for head in heads for c in head}
    if shifts != {0}:
        return _shift(heads, primary, bool(given), shifts)
    if not given:
        return None
    if len(given) != len(calls):
        raise Untraceable("some heads have a bias and others have none")
    names = list(dict.fromkeys(name for name, _ in given.values()))
    sizes = {name: 1 + max(int(places.max()) for n, places in given.values() if n == name) for name in names}
    if len(names) > 1 and any(sizes[name] != _whole(given, name) for name in names):
        raise Untraceable("heads take their biases from parts of several parameters")
    starts = dict(zip(names, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    index = [[starts[given[k.cut][0]] + given[k.cut][1][k.channel] for k in head] for head in column]
    return Rows(names[0], FLAT, np.array(index), tuple(names[1:]))


def _whole(given: Mapping[Cut, tuple[str, np.ndarray]], name: str) -> int:
    """Places of a bias that projections use."""
    return len(np.unique(np.concatenate([places for n, places in given.values() if n == name])))


def _shift(heads: list[list[Channel]], primary: float, given: bool, counts: set[int]) -> Rows:
    """The parameter that was added outside of the projection."""
    names = {s.parameter for head in heads for c in head for s in c.shifts}
    if counts != {1} or len(names) != 1 or given:
        raise Untraceable("several biases are added to one projection")
    if abs(_even([s.factor for head in heads for c in head for s in c.shifts]) / primary - 1) > _UNEVEN:
        raise Untraceable("a bias is scaled apart from its projection")
    return Rows(names.pop(), FLAT, np.array([[c.shifts[0].place for c in head] for head in heads]))


def _even(factors: Sequence[float]) -> float:
    """The factor that all coordinates share.

    Raises:
        Untraceable: coordinates are scaled unevenly.
    """
    middle = float(np.median(factors))
    if np.abs(np.array(factors) - middle).max() > _UNEVEN * abs(middle):
        raise Untraceable("coordinates are scaled unevenly by something that is no norm")
    return middle


def _snap(scale: float) -> float:
    """A measured factor, with rounding taken off.

    >>> _snap(1.9999999), _snap(0.144)
    (2.0, 0.144)
    """
    return float(f"{scale:.6g}")
