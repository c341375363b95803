"""What a reader of a head map must be told: heads that are not proven, modules of one head, what is left out."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from headwatch.heads.headmap import HeadMap

__all__ = ["heads_apart", "notes_on"]

_SHOWN = 4


def notes_on(head_map: HeadMap, remedy: str = "") -> list[tuple[str, str]]:
    """Notices for :meth:`headwatch.notices.Notices.say`, as (key, text), in the order in which they are said.

    Args:
        head_map: the heads that were found.
        remedy: what proves heads that were read by rule, where the user can do something about it.
    """
    apart = heads_apart((site.module, site.n_heads) for site in head_map.sites)
    said = [(f"apart {apart}", apart)] if apart else []
    return [*_structural(head_map, remedy), *said, *_left_out(head_map)]


def heads_apart(modules: Iterable[tuple[str, int]]) -> str:
    """What is said of lists whose modules hold one head each, from (module, number of heads) in order; "" of none.

    >>> heads_apart([("sa.heads.0", 1), ("sa.heads.1", 1), ("blocks.0.attn", 4)])
    'sa.heads.0 … sa.heads.1: each of these 2 modules holds one head and counts as a layer of its own.'
    """
    single = [name for name, n_heads in modules if n_heads == 1 and name.rpartition(".")[2].isdecimal()]
    lists = [list(names) for _, names in groupby(single, key=lambda name: name.rpartition(".")[0])]
    apart = [name for names in lists if len(names) > 1 for name in names]
    if not apart:
        return ""
    return (
        f"{apart[0]} … {apart[-1]}: each of these {len(apart)} modules holds one head and counts as a layer of its own."
    )


def _structural(head_map: HeadMap, remedy: str) -> list[tuple[str, str]]:
    modules = [site.module for site in head_map.sites if site.status == "structural"]
    if not modules:
        return []
    text = (
        f"{len(modules)} of {len(head_map.sites)} attention modules were read by rule and not proven on a forward pass "
        f"({modules[0]} …); they are marked 'structural' in every table and picture."
    )
    return [(f"structural {modules}", f"{text} {remedy}".strip())]


def _left_out(head_map: HeadMap) -> list[tuple[str, str]]:
    if not head_map.left_out:
        return []
    names = "; ".join(f"{item.module}: {item.reason}" for item in head_map.left_out[:_SHOWN])
    rest = len(head_map.left_out) - _SHOWN
    return [(f"left out {names}", f"left out: {names}{f'; and {rest} more in run.json' if rest > 0 else ''}.")]
