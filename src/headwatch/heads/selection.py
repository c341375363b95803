"""From Jacobian entries to rows: which channel of which cut every coordinate is, and which pairs of them rotate."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headwatch.heads.jacobian import Entries, Untraceable
from headwatch.heads.layout import Layout

__all__ = ["Rotation", "Selection", "Source", "select"]


_STRETCH = 16  # neighbouring positions that read the same pair


@dataclass(frozen=True)
class Source:
    """A coordinate is ``factor`` times this channel of this cut (after any rotation is undone)."""

    cut: int
    channel: int
    factor: float


@dataclass
class Rotation:
    """Pairs of coordinates that turn with the position.

    Attributes:
        pairs: coordinates (x, y) within a head, x < y, in order of x; the same in every head.
        angles: (token, pair, angle) as measured, in radians.
        width: coordinates of a head.
    """

    pairs: list[tuple[int, int]]
    angles: list[tuple[int, int, float]]
    width: int


@dataclass(frozen=True)
class Selection:
    """Sources of every channel of a tensor, and its rotation."""

    sources: list[tuple[Source, ...]]
    rotation: Rotation | None


Reader = Callable[[np.ndarray], Sequence[Entries]]
_Block = dict[int, dict[int, float]]  # token -> leaf channel -> value, for one coordinate
_Turned = dict[tuple[int, int], list[tuple[int, float]]]  # pair of channels -> (token, angle)


def select(reader: Reader, layout: Layout, length: int, tolerance: float) -> Selection:
    """Sources and rotation of every channel, from few readings where the tokens suffice, else from all.

    Args:
        reader: runs a plan of backward passes, see ``jacobian.read``.
        layout: tokens and channels of the tensor.
        length: tokens per document.
        tolerance: relative; what the tensor's dtype allows.

    Raises:
        Untraceable: a channel is not one channel of a cut, or two that rotate.
    """
    few = sparse_plan(layout, length)
    if len(few) < layout.width:
        try:
            return _select(reader, layout, length, few, tolerance)
        except Untraceable:  # too few tokens turned: read all
            pass
    return _select(reader, layout, length, full_plan(layout), tolerance)


def sparse_plan(layout: Layout, length: int) -> np.ndarray:
    """Every channel read at three tokens that are not first in their document, as scattered as they come."""
    tokens = np.flatnonzero(np.arange(layout.n_tokens) % length > 0) if length > 1 else np.arange(layout.n_tokens)
    generator = np.random.default_rng(0)
    passes = max(3, -(-3 * layout.n_channels // len(tokens)))
    plan = np.full((passes, layout.n_tokens), -1, dtype=np.int64)
    for turn in range(passes):
        reads = (np.arange(len(tokens)) + turn * len(tokens)) % layout.n_channels
        plan[turn, generator.permutation(tokens)] = reads
    return plan


def full_plan(layout: Layout) -> np.ndarray:
    """Every token reads a whole head, and in later rounds others, until each head was read at three tokens."""
    tokens, groups = np.arange(layout.n_tokens), layout.n_groups
    rounds = max(min(3, groups), -(-3 * groups // layout.n_tokens))
    return np.stack(
        [(tokens + r) % groups * layout.width + place for r in range(rounds) for place in range(layout.width)]
    )


def _select(reader: Reader, layout: Layout, length: int, plan: np.ndarray, tolerance: float) -> Selection:
    blocks = [_blocks(part, layout.n_channels) for part in reader(plan)]
    partner = _partners(blocks, layout)
    if partner and len(plan) < layout.width:
        second = np.vectorize(lambda channel: partner.get(channel, -1))(plan)
        for block, part in zip(blocks, reader(second), strict=True):
            _merge(block, _blocks(part, layout.n_channels))
    sources: list[list[Source]] = [[] for _ in range(layout.n_channels)]
    turned: _Turned = {}
    for cut, each in enumerate(blocks):
        for channel, source, pair in _sources(cut, each, layout, partner, tolerance):
            sources[channel].append(source)
            if pair is not None:
                turned.setdefault(*pair)
    if not all(sources):
        raise Untraceable(f"coordinate {sources.index([])} comes from no weight of the model")
    selection = Selection([tuple(each) for each in sources], _rotation(turned, layout.width))
    if selection.rotation is not None:
        selection.rotation.angles.extend(_angles(reader, layout, length, selection))
    return selection


def _blocks(entries: Entries, n_channels: int) -> list[_Block]:
    blocks: list[_Block] = [{} for _ in range(n_channels)]
    columns = (entries.channel, entries.token, entries.source, entries.value)
    for channel, token, leaf_channel, value in zip(*(column.tolist() for column in columns), strict=True):
        blocks[channel].setdefault(token, {})[leaf_channel] = value
    return blocks


def _merge(blocks: list[_Block], more: list[_Block]) -> None:
    for block, other in zip(blocks, more, strict=True):
        for token, by_leaf in other.items():
            block.setdefault(token, {}).update(by_leaf)


def _fed_by(block: _Block) -> frozenset[int]:
    fed: set[int] = set()
    for by_leaf in block.values():
        fed.update(by_leaf)
    return frozenset(fed)


def _partners(blocks: Sequence[list[_Block]], layout: Layout) -> dict[int, int]:
    """The other channel of every channel that rotates: both are mixed from the same two channels of a cut.

    Raises:
        Untraceable: channels are mixed in another way.
    """
    partner: dict[int, int] = {}
    for each in blocks:
        by_set: dict[tuple[int, frozenset[int]], list[int]] = defaultdict(list)
        for channel, block in enumerate(each):
            fed = _fed_by(block)
            if len(fed) > 2:
                head, coordinate = divmod(channel, layout.width)
                raise Untraceable(f"coordinate {coordinate} of head {head} mixes {len(fed)} channels of a projection")
            if len(fed) == 2:
                by_set[channel // layout.width, fed].append(channel)
        for channels in by_set.values():
            if len(channels) != 2:
                raise Untraceable("channels are mixed in another way than by rotating pairs")
            partner.update({channels[0]: channels[1], channels[1]: channels[0]})
    return partner


def _sources(
    cut: int, blocks: list[_Block], layout: Layout, partner: Mapping[int, int], tolerance: float
) -> Iterator[tuple[int, Source, tuple[tuple[int, int], list[tuple[int, float]]] | None]]:
    """(channel, source, (pair, angles) or None) of every channel that the cut feeds."""
    for channel, block in enumerate(blocks):
        fed = _fed_by(block)
        if len(fed) == 1:
            yield channel, Source(cut, next(iter(fed)), _constant(block, tolerance)), None
        elif len(fed) == 2 and channel < partner[channel]:
            yield from _pair(cut, (channel, partner[channel]), sorted(fed), blocks, tolerance)


def _constant(block: _Block, tolerance: float) -> float:
    values = [value for by_leaf in block.values() for value in by_leaf.values()]
    low, high = min(values), max(values)
    middle = (low + high) / 2
    if high - low > 2 * tolerance * abs(middle):
        raise Untraceable("channels are scaled differently from token to token")
    return middle


def _pair(
    cut: int, channels: tuple[int, int], leaves: list[int], blocks: list[_Block], tolerance: float
) -> Iterator[tuple[int, Source, tuple[tuple[int, int], list[tuple[int, float]]]]]:
    x, y = channels
    tokens = sorted(set(blocks[x]) & set(blocks[y]))
    mixed = [[[blocks[c][t].get(leaf, 0.0) for leaf in leaves] for c in channels] for t in tokens]
    M = np.array(mixed).reshape(-1, 2, 2)  # (token, channel, leaf)
    if not _all_rotations(M, tolerance):
        leaves, M = leaves[::-1], M[:, :, ::-1]
        if not _all_rotations(M, tolerance):
            raise Untraceable("two channels are mixed by something that is no rotation")
    sizes = np.hypot(M[:, 0, 0], M[:, 1, 0])
    low, high = float(sizes.min()), float(sizes.max())
    factor = (low + high) / 2
    if high - low > 2 * tolerance * factor:
        raise Untraceable("rotated channels are scaled differently from token to token")
    turned = np.arctan2(M[:, 1, 0] - M[:, 0, 1], M[:, 0, 0] + M[:, 1, 1])
    angles = list(zip(tokens, turned.tolist(), strict=True))
    yield x, Source(cut, leaves[0], factor), (channels, angles)
    yield y, Source(cut, leaves[1], factor), (channels, angles)


def _all_rotations(M: np.ndarray, tolerance: float) -> bool:
    """Whether M (any, 2, 2) holds positive multiples of [[cos, −sin], [sin, cos]], one at least."""
    off = np.abs(M[:, 0, 0] - M[:, 1, 1]) + np.abs(M[:, 0, 1] + M[:, 1, 0])
    return len(M) > 0 and bool((off <= 2 * tolerance * np.abs(M).max((1, 2))).all())


def _rotation(turned: Mapping[tuple[int, int], list[tuple[int, float]]], width: int) -> Rotation | None:
    """The rotation that all heads share.

    Raises:
        Untraceable: heads pair their coordinates differently.
    """
    if not turned:
        return None
    by_head: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for x, y in turned:
        by_head[x // width].add((x % width, y % width))
    union = sorted(set().union(*by_head.values()))
    if len({coordinate for pair in union for coordinate in pair}) != 2 * len(union):
        raise Untraceable("heads rotate different pairs of coordinates")
    place = {pair: i for i, pair in enumerate(union)}
    angles = [(t, place[x % width, y % width], a) for (x, y), each in turned.items() for t, a in each]
    return Rotation(union, angles, width)


def _angles(reader: Reader, layout: Layout, length: int, selection: Selection) -> Iterator[tuple[int, int, float]]:
    """Angles of every pair of the first head along stretches of neighbouring positions: (token, pair, angle)."""
    assert selection.rotation is not None
    pairs = selection.rotation.pairs
    stretch = np.arange(layout.n_tokens) // length * -(-length // _STRETCH)
    stretch += np.arange(layout.n_tokens) % length // _STRETCH
    passes = -(-len(pairs) // (int(stretch.max()) + 1))
    plan = (stretch[None, :] + (int(stretch.max()) + 1) * np.arange(passes)[:, None]) % len(pairs)
    entries = reader(np.array([x for x, _ in pairs])[plan])
    blocks = [_blocks(part, layout.n_channels) for part in entries]
    for place, (x, y) in enumerate(pairs):
        for source in selection.sources[x]:
            other = next(each for each in selection.sources[y] if each.cut == source.cut)
            for token, by_leaf in blocks[source.cut][x].items():
                yield token, place, math.atan2(-by_leaf.get(other.channel, 0.0), by_leaf.get(source.channel, 0.0))
