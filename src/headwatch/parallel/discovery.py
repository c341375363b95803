"""Find the heads of a model whose weights are sharded."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from headwatch.heads.errors import NoAttentionError
from headwatch.heads.headmap import HeadMap, LeftOut, Projection, Rows, Site
from headwatch.heads.names import named_parameters
from headwatch.parallel.layout import Layout, layout_of
from headwatch.probe.call import AttentionCall
from headwatch.probe.capture import capture
from headwatch.probe.quiet import quiet_probe

__all__ = ["Forwards", "can_prove", "discover"]

Forwards = Sequence[Callable[[], object]]
Find = Callable[["Forwards | None"], HeadMap]


def can_prove(layout: Layout) -> bool:
    """Whether a forward can show whose rows an attention call uses; else heads are read by rule."""
    return layout in ("whole", "fsdp2")


def discover(model: nn.Module, root: nn.Module | None, find: Find, forwards: Forwards | None) -> HeadMap:
    """The heads of a model, rows counted in the whole parameters; all ranks look together.

    Args:
        model: the model.
        root: the wrapped model of the strategy.
        find: finds the heads, proving them by the forwards that it is given.
        forwards: functions that each run one forward.

    Raises:
        NoAttentionError: no head can be watched.
        ValueError: weights that are not there yet.
    """
    layout = layout_of(model, root)
    if can_prove(layout):
        return find(forwards)
    if layout == "tensor_parallel":
        found = find(None)
        return found if not forwards else _as_called(model, found, forwards[0])
    with _whole_on_rank_0(root or model) if layout == "fsdp1" else _whole_shapes(model):
        return find(None)


def _whole_on_rank_0(root: nn.Module) -> Any:
    """FSDP1's own call; what other ranks find inside does not count, for they have no weights there."""
    fsdp: Any = importlib.import_module("torch.distributed.fsdp").FullyShardedDataParallel
    offload = next(root.parameters()).device.type != "cpu"
    return fsdp.summon_full_params(root, writeback=False, offload_to_cpu=offload, rank0_only=offload)


@contextmanager
def _whole_shapes(model: nn.Module) -> Iterator[None]:
    """ZeRO-3 keeps the shape of what it took away as ``ds_shape``; rules need no more."""
    tables: list[dict[str, Any]] = [module._parameters for module in model.modules()]
    taken = [(table, key, value) for table in tables for key, value in dict.items(table) if hasattr(value, "ds_shape")]
    try:
        for table, key, parameter in taken:
            shape = torch.empty(tuple(parameter.ds_shape), dtype=parameter.dtype, device="meta")
            dict.__setitem__(table, key, nn.Parameter(shape, requires_grad=parameter.requires_grad))
        yield
    finally:
        for table, key, parameter in taken:
            dict.__setitem__(table, key, parameter)


def _as_called(model: nn.Module, found: HeadMap, forward: Callable[[], object]) -> HeadMap:
    """Hold the rules' counts against the attention calls: a module may count the heads of its own rank or all."""
    called: dict[str, tuple[int, int]] = {}

    def note(call: AttentionCall) -> None:
        site = found.site_of(call.module)
        if site is not None:
            called[site.module] = (call.q.shape[1], call.q.shape[3])

    with quiet_probe(model), capture(model, note):
        forward()
    parameters = named_parameters(model)
    sites, left_out = [], list(found.left_out)
    for site in found.sites:
        rows = len(parameters[site.W_Q.terms[0].rows[0].parameter]) if site.layout == "separate" else 0
        fitted = _fitted(site, called.get(site.module), rows)
        if fitted is None:
            left_out.append(LeftOut(site.module, _unclear(site, called.get(site.module))))
        else:
            sites.append(fitted)
    if not sites:
        raise NoAttentionError(type(model).__name__, left_out)
    return HeadMap(tuple(sites), tuple(left_out))


def _fitted(site: Site, called: tuple[int, int] | None, rows: int) -> Site | None:
    """The site with the d_head that its attention call shows."""
    if called is None:
        return site
    heads, d_head = called
    if d_head == site.d_head and site.n_heads % heads == 0:
        return site
    if rows % d_head or site.d_head % d_head or rows // d_head % heads or len(site.heads) != site.n_heads:
        return None
    times = site.d_head // d_head
    n_heads, n_kv_heads = site.n_heads * times, site.n_kv_heads * times
    group = n_heads // n_kv_heads
    return replace(
        site,
        d_head=d_head,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        W_Q=_recut(site.W_Q, n_heads),
        W_K=_recut(site.W_K, n_kv_heads),
        kv_head=tuple(head // group for head in range(n_heads)),
        heads=tuple(range(n_heads)),
    )


def _recut(projection: Projection, n_heads: int) -> Projection:
    """The same rows in more, smaller heads."""

    def cut(rows: Rows) -> Rows:
        return rows if rows.index is None else replace(rows, index=rows.index.reshape(n_heads, -1))

    terms = tuple(replace(term, rows=(cut(term.rows[0]), *term.rows[1:])) for term in projection.terms)
    return replace(projection, terms=terms, bias=None if projection.bias is None else cut(projection.bias))


def _unclear(site: Site, called: tuple[int, int] | None) -> str:
    heads, d_head = called or (0, 0)
    return (
        f"tensor parallel: the rules read {site.n_heads} heads of {site.d_head} rows, its attention call has {heads} "
        f"heads of {d_head} on this rank; keep the global count as n_heads beside head_dim, or hand the heads over "
        "with heads=[...]"
    )
