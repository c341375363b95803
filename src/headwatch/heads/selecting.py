"""Include and exclude heads by pattern: module names, or heads as they are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from headwatch.heads.headmap import Site
from headwatch.snapshot import head_label

__all__ = ["select_heads"]


def select_heads(sites: Sequence[Site], include: Sequence[str], exclude: Sequence[str]) -> list[Site]:
    """Keep the heads that some ``include`` pattern matches (all when none is given) and no ``exclude`` pattern does.

    A pattern is shell style (``*``, ``?``, ``[..]``) and speaks of a module (``"net.blocks.0*"``) or of heads
    (``"L03.*"``, ``"L*.H07"``).

    Raises:
        ValueError: a pattern that matches nothing (the message lists what exists), or patterns that leave nothing.
    """
    include, exclude = _patterns(include), _patterns(exclude)
    for pattern in (*include, *exclude):
        if not any(_matches(site, head, pattern) for site in sites for head in site.heads):
            raise ValueError(_nothing(pattern, sites))
    kept = [replace(site, heads=_kept(site, include, exclude)) for site in sites]
    if not any(site.heads for site in kept):
        raise ValueError(
            f"include={list(include)} and exclude={list(exclude)} leave no head of {len(sites)} layers to watch"
        )
    return [site for site in kept if site.heads]


def _patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _kept(site: Site, include: Sequence[str], exclude: Sequence[str]) -> tuple[int, ...]:
    return tuple(
        head
        for head in site.heads
        if (not include or any(_matches(site, head, pattern) for pattern in include))
        and not any(_matches(site, head, pattern) for pattern in exclude)
    )


def _matches(site: Site, head: int, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (site.module, *site.aliases, head_label(site.layer, head)))


def _nothing(pattern: str, sites: Sequence[Site]) -> str:
    exists = "".join(f"\n  {_heads(site)}  {site.module}" for site in sites)
    return f"pattern {pattern!r} matches no head; expected a module or heads (shell style, as 'L03.*') of:{exists}"


def _heads(site: Site) -> str:
    first, last = site.heads[0], site.heads[-1]
    return head_label(site.layer, first) if first == last else f"{head_label(site.layer, first)}…H{last:02d}"
