"""Follow q or k of an attention call back to rows of weights: through rotation, norms, sums and added parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headwatch.heads.jacobian import Untraceable, read
from headwatch.heads.layout import Layout
from headwatch.heads.norms import NormFormula, fit_norm, trailing_places
from headwatch.heads.selection import Rotation, Source, select
from headwatch.heads.tokenmap import leaf_layouts
from headwatch.heads.trace import Cut, Tracer

__all__ = ["Channel", "Link", "Shift", "Trail", "follow", "tolerance_of"]

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def tolerance_of(*tensors: Tensor) -> float:
    """Relative error that rounding to the coarsest of the tensors' dtypes may cause in a few operations."""
    return max(_TOLERANCE.get(tensor.dtype, 4e-2) for tensor in tensors)


@dataclass(frozen=True)
class Link:
    """factor × one output channel of one projection."""

    cut: Cut
    channel: int
    factor: float


@dataclass(frozen=True)
class Shift:
    """factor × one place of a parameter that was added."""

    parameter: str
    place: int
    factor: float


@dataclass(frozen=True)
class Channel:
    """One coordinate: a sum of links and shifts, then a norm.

    Attributes:
        links: projections that are summed.
        shifts: parameters added outside of projections.
        norm: the norm after the sum, None without one.
        place: flat place of this coordinate in the norm's output, to look its gain up.
        factor: what multiplies it after the norm.
    """

    links: tuple[Link, ...]
    shifts: tuple[Shift, ...] = ()
    norm: Cut | None = None
    place: int = 0
    factor: float = 1.0


@dataclass(frozen=True)
class Trail:
    """All coordinates of a tensor, what rotates, and which row of a projection's input every token is.

    Attributes:
        channels: one per channel of the layout.
        rotation: pairs and angles, or None.
        rows: by projection, row of its input for every token (−1: none).
        formulas: by norm.
    """

    channels: list[Channel]
    rotation: Rotation | None
    rows: dict[Cut, np.ndarray]
    formulas: dict[Cut, NormFormula]


def follow(tracer: Tracer, tensor: Tensor, layout: Layout, length: int, path: tuple[object, ...] = ()) -> Trail:
    """The trail of a tensor back to the nearest projections.

    Args:
        tracer: the running trace.
        tensor: q, k, or what a norm was given.
        layout: its tokens and channels.
        length: tokens per document.
        path: name of this stretch within the attention call, under which its selection is remembered.

    Raises:
        Untraceable: something on the way is no projection, norm, sum, scale, rotation or view.
    """
    cuts = tracer.cuts_behind(tensor)
    if not cuts:
        raise Untraceable("no projection by a weight of the model was seen before the attention call")
    leaves = [cut.leaf for cut in cuts]
    tolerance = tolerance_of(tensor, *leaves)
    layouts = leaf_layouts(tensor, layout, cuts, length)
    kinds = tuple((cut.kind, cut.module) for cut in cuts)
    selection = tracer.recalled(
        (*path, kinds, layout.n_channels, layout.width),
        lambda: select(lambda plan: read(tensor, layout, leaves, layouts, plan), layout, length, tolerance),
    )
    inner = {
        i: follow(tracer, cut.input, _inner_layout(cut, layouts[i], layout), length, (*path, i))
        for i, cut in enumerate(cuts)
        if cut.kind != "linear" and any(s.cut == i for sources in selection.sources for s in sources)
    }
    formulas = {cut: fit_norm(cut, tolerance) for i, cut in enumerate(cuts) if i in inner and cut.kind == "norm"}
    merged = _merge_gains(cuts, inner, formulas)
    channels = [_channel(sources, cuts, inner, layouts, merged) for sources in selection.sources]
    rows = {cut: _rows(cut, each) for cut, each in zip(cuts, layouts, strict=True) if cut.kind == "linear"}
    for trail in inner.values():
        rows.update(trail.rows)
        formulas.update(trail.formulas)
    turned = {cuts[i]: trail for i, trail in inner.items()}
    return Trail(channels, _turning(selection.rotation, turned, formulas), rows, formulas)


def _inner_layout(cut: Cut, own: Layout, outer: Layout) -> Layout:
    if cut.input.shape != cut.leaf.shape:
        raise Untraceable(f"{cut.module} changes the shape of what it normalises")
    return replace(own, width=outer.width if own.n_channels % outer.width == 0 else own.n_channels)


def _channel(
    sources: Sequence[Source],
    cuts: list[Cut],
    inner: dict[int, Trail],
    layouts: list[Layout],
    merged: dict[int, Cut],
) -> Channel:
    """Join the sources of one coordinate.

    Raises:
        Untraceable: several norms are summed, or a parameter is added after a norm.
    """
    links: list[Link] = []
    shifts: list[Shift] = []
    for source in sources:
        cut = cuts[source.cut]
        if cut.kind == "linear":
            links.append(Link(cut, source.channel, source.factor))
            continue
        under = inner[source.cut].channels[source.channel]
        place = layouts[source.cut].place_of(source.channel)
        if cut.kind == "norm":
            if len(sources) > 1:
                raise Untraceable(f"{cut.module}: a sum of norms between projection and attention")
            return Channel(under.links, under.shifts, merged[source.cut], place, source.factor * _inner(under))
        if under.norm is not None:
            raise Untraceable(f"{cut.module}: a parameter is added after a norm")
        name, parameter = next(iter(cut.tensors.items()))
        index = int(trailing_places(parameter.shape, cut.leaf.shape).reshape(-1)[place])
        links += [Link(link.cut, link.channel, link.factor * source.factor) for link in under.links]
        shifts += [Shift(s.parameter, s.place, s.factor * source.factor) for s in under.shifts]
        shifts.append(Shift(name, index, source.factor))
    return Channel(tuple(links), tuple(shifts))


def _inner(under: Channel) -> float:
    return under.factor if under.norm is not None else 1.0


def _merge_gains(cuts: list[Cut], inner: dict[int, Trail], formulas: dict[Cut, NormFormula]) -> dict[int, Cut]:
    """Norms as one step each: a gain that follows a norm without gains is that norm's own.

    Raises:
        Untraceable: a norm follows a norm.
    """
    merged: dict[int, Cut] = {}
    for i, cut in ((i, cuts[i]) for i in inner if cuts[i].kind == "norm"):
        below = {channel.norm for channel in inner[i].channels}
        merged[i] = cut
        if below == {None}:
            continue
        first = next(iter(below))
        under = inner[i].formulas.get(first) if first is not None and len(below) == 1 else None
        if under is None or under.gain or under.bias or formulas[cut].kind != "gain":
            raise Untraceable(f"{cut.module}: a norm of a norm between projection and attention")
        merged[i] = replace(cut)
        outer = formulas[cut]
        formulas[merged[i]] = replace(under, gain=outer.gain, offset=outer.offset, bias=outer.bias)
    return merged


def _rows(cut: Cut, layout: Layout) -> np.ndarray:
    """Row of a projection's input for every token, −1 where there is none."""
    assert cut.linear is not None
    some = layout.some_element()
    return np.where(some >= 0, cut.linear.locate(layout.shape, np.maximum(some, 0))[0], -1)


def _turning(outer: Rotation | None, inner: dict[Cut, Trail], formulas: dict[Cut, NormFormula]) -> Rotation | None:
    """The one rotation on the way; a norm without gain may follow it, for the two commute.

    Raises:
        Untraceable: a norm with gains, or an added parameter, stands after a rotation.
    """
    turned = {cut: trail.rotation for cut, trail in inner.items() if trail.rotation is not None}
    if not turned:
        return outer
    for cut in turned:
        formula = formulas.get(cut)
        if formula is None or formula.kind not in ("rms", "l2") or formula.gain or formula.bias:
            raise Untraceable("a norm with gains, or an added parameter, stands after the rotation of positions")
    if outer is not None or len(turned) > 1:
        raise Untraceable("positions rotate twice")
    return next(iter(turned.values()))
