"""Heads by rule: the names and shapes that families share. Right for most, proven for none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, nn

from headwatch.heads import layouts
from headwatch.heads.counts import Counts, count_heads
from headwatch.heads.headmap import FLAT, Gain, LeftOut, Projection, Rows, Site, Term
from headwatch.heads.linear import is_linear, projection, shape
from headwatch.heads.names import canonical_names, dotted, named_modules

__all__ = ["structural_sites"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# One convention per column: a query name pairs with the key name at the same place.
_QUERY = _words(
    "q_proj query q_lin query_proj to_q wq q W_q w_q Wq linear_q queries q_linear proj_q fc_q query_layer q_net "
    "query_projection"
)
_KEY = _words(
    "k_proj key k_lin key_proj to_k wk k W_k w_k Wk linear_k keys k_linear proj_k fc_k key_layer k_net key_projection"
)
_KEY_VALUE = ["to_kv", "kv_proj", "kv", "Wkv", "wkv"]
_FUSED = _words(
    "c_attn qkv qkv_proj Wqkv in_proj to_qkv in_proj_qkv qkv_linear query_key_value qkv_projection proj_qkv wqkv"
)
_TENSORS = [
    *(("W_Q", "_W_K"), ("W_Q", "W_K"), ("W_q", "W_k"), ("w_q", "w_k"), ("wq", "wk"), ("Wq", "Wk")),
    *(("q_weight", "k_weight"), ("query", "key")),
]
_LATENT_SIZES = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_heads", "kv_lora_rank")
_RECURRENT = ("A_log", "dt_proj", "dt_bias", "x_proj", "conv1d")  # state-space mixers have an in_proj as well
_CROSS = ("cross", "encoder_attn", "enc_dec", "encdec", "encoder_decoder", "multihead_attn", "q_attn")


@dataclass(frozen=True)
class _Found:
    """W_Q and W_K of one module with the counts that the rule read."""

    n_heads: int
    n_kv_heads: int
    d_head: int
    W_Q: Projection
    W_K: Projection
    d_model: int
    layout: str
    flags: tuple[str, ...] = ()


class _Unclear(ValueError):
    """A module looks like attention, but its heads cannot be told apart by rule."""


_Rule = Callable[[nn.Module, str, Counts], "_Found | None"]


def structural_sites(model: nn.Module) -> tuple[list[Site], list[LeftOut]]:
    """Every self-attention module that the rules know, in registration order, and by name what they do not take."""
    sites: list[Site] = []
    left_out: list[LeftOut] = []
    seen: dict[int, int | None] = {}
    canonical = canonical_names(model)
    above: dict[str, nn.Module] = {}
    for name, module in named_modules(model):
        above[name] = module
        if id(module) in seen:
            _add_alias(sites, seen[id(module)], name)
            continue
        seen[id(module)] = None
        holders = [above[holder] for holder in _holders(name)]
        try:
            found = _read(module, name, count_heads(holders))
        except _Unclear as reason:
            left_out.append(LeftOut(name, str(reason)))
            continue
        if found is None:
            continue
        reason_to_skip = _not_self(module, name)
        if reason_to_skip:
            left_out.append(LeftOut(name, reason_to_skip))
            continue
        seen[id(module)] = len(sites)
        sites.append(_site(found, canonical[id(module)], len(sites)))
    return sites, left_out


def _holders(name: str) -> list[str]:
    """The module and all that hold it, innermost first.

    >>> _holders("a.b")
    ['a.b', 'a', '']
    """
    parts = name.split(".") if name else []
    return [".".join(parts[:length]) for length in range(len(parts), -1, -1)]


def _add_alias(sites: list[Site], place: int | None, name: str) -> None:
    if place is not None:
        site = sites[place]
        flags = site.flags if "tied" in site.flags else (*site.flags, "tied")
        sites[place] = replace(site, aliases=(*site.aliases, name), flags=flags)


def _read(module: nn.Module, name: str, counts: Counts) -> _Found | None:
    if any(hasattr(module, name) for name in _RECURRENT):
        return None
    for rule in (_torch_mha, _latent, _separate, _query_and_pair, _fused, _einsum):
        found = rule(module, name, counts)
        if found is not None:
            return found
    return None


def _not_self(module: nn.Module, name: str) -> str | None:
    own = name.rsplit(".", 1)[-1].lower()
    path = name.lower()
    if (
        getattr(module, "is_cross_attention", False)
        or any(part in own for part in _CROSS)
        or "cross" in path
        or "encdec" in path
    ):
        return "cross-attention: query and key come from different spaces"
    return None


def _site(found: _Found, name: str, layer: int) -> Site:
    group = found.n_heads // found.n_kv_heads
    return Site(
        layer=layer,
        module=name,
        d_model=found.d_model,
        d_head=found.d_head,
        n_heads=found.n_heads,
        n_kv_heads=found.n_kv_heads,
        W_Q=found.W_Q,
        W_K=found.W_K,
        kv_head=tuple(head // group for head in range(found.n_heads)),
        heads=tuple(range(found.n_heads)),
        status="structural",
        flags=found.flags,
        layout=found.layout,
    )


def _child(module: nn.Module, names: Sequence[str]) -> tuple[str, nn.Module] | None:
    children = ((name, module._modules.get(name)) for name in names)
    return next(((name, child) for name, child in children if child is not None and is_linear(child)), None)


def _resolve(counts: Counts, q_rows: int, k_rows: int) -> tuple[int, int, int]:
    """(n_heads, n_kv_heads, d_head) of projections with this many rows."""
    if counts.n_heads and q_rows % counts.n_heads == 0:
        d_head = q_rows // counts.n_heads
    elif counts.d_head and q_rows % counts.d_head == 0:
        d_head = counts.d_head
    else:
        raise _Unclear(
            f"{q_rows} query rows, but no count that divides them (n_heads={counts.n_heads}, d_head={counts.d_head})"
        )
    if k_rows % d_head or q_rows % k_rows:
        raise _Unclear(f"{q_rows} query rows and {k_rows} key rows do not fit heads of {d_head} rows")
    return q_rows // d_head, k_rows // d_head, d_head


def _holds_one_head(name: str, q_rows: int, k_rows: int, N: int, counts: Counts) -> bool:
    """One module of a list of n_heads, each with a head's share of the rows: the count is that of the list."""
    in_a_list = name.rpartition(".")[2].isdecimal()
    return in_a_list and counts.n_heads is not None and q_rows == k_rows and q_rows * counts.n_heads == N


def _torch_mha(module: nn.Module, name: str, counts: Counts) -> _Found | None:
    if not isinstance(module, nn.MultiheadAttention):
        return None
    heads, d_head, N = module.num_heads, module.head_dim, module.embed_dim
    q_index, k_index = layouts.concatenated(heads, heads, d_head)
    bias = None if module.in_proj_bias is None else dotted(name, "in_proj_bias")
    biases = [None if bias is None else Rows(bias, FLAT, index) for index in (q_index, k_index)]
    if module.in_proj_weight is not None:
        weight = dotted(name, "in_proj_weight")
        parts = [Rows(weight, index=q_index), Rows(weight, index=k_index)]
        layout = "fused-concat"
    else:
        if module.kdim != N:
            raise _Unclear(f"cross-attention: keys come from a space of {module.kdim} dimensions, queries of {N}")
        plain = layouts.separate(heads, d_head)
        parts = [Rows(dotted(name, f"{letter}_proj_weight"), index=plain) for letter in "qk"]
        layout = "separate"
    W_Q, W_K = (Projection((Term((rows,)),), b) for rows, b in zip(parts, biases, strict=True))
    return _Found(heads, heads, d_head, W_Q, W_K, N, layout)


def _separate(module: nn.Module, name: str, counts: Counts) -> _Found | None:
    query, key = _child(module, _QUERY), _child(module, _KEY)
    if query is None or key is None or _QUERY.index(query[0]) != _KEY.index(key[0]):
        return None
    (q_rows, N), (k_rows, key_N) = shape(query[1]), shape(key[1])
    if key_N != N:
        raise _Unclear(f"cross-attention: keys come from a space of {key_N} dimensions, queries of {N}")
    heads, kv_heads, d_head = (
        (1, 1, q_rows) if _holds_one_head(name, q_rows, k_rows, N, counts) else _resolve(counts, q_rows, k_rows)
    )
    W_Q = projection(query[1], dotted(name, query[0]), layouts.separate(heads, d_head))
    W_K = projection(key[1], dotted(name, key[0]), layouts.separate(kv_heads, d_head))
    return _Found(heads, kv_heads, d_head, W_Q, W_K, N, "separate", _lora(W_Q, W_K))


def _query_and_pair(module: nn.Module, name: str, counts: Counts) -> _Found | None:
    query, pair = _child(module, _QUERY), _child(module, _KEY_VALUE)
    if query is None or pair is None or shape(query[1])[1] != shape(pair[1])[1]:
        return None
    (q_rows, N), (pair_rows, _) = shape(query[1]), shape(pair[1])
    heads, kv_heads, d_head = _resolve(counts, q_rows, pair_rows // 2)
    W_Q = projection(query[1], dotted(name, query[0]), layouts.separate(heads, d_head))
    W_K = projection(pair[1], dotted(name, pair[0]), layouts.separate(kv_heads, d_head))
    return _Found(heads, kv_heads, d_head, W_Q, W_K, N, "separate, keys fused with values", _lora(W_Q, W_K))


def _fused(module: nn.Module, name: str, counts: Counts) -> _Found | None:
    fused = _child(module, _FUSED)
    if fused is None:
        return None
    rows, N = shape(fused[1])
    heads, kv_heads, d_head = _fused_counts(counts, rows, N)
    (q_index, k_index), layout = _fused_layout(module, fused[0], heads, kv_heads, d_head)
    W_Q, W_K = (projection(fused[1], dotted(name, fused[0]), index) for index in (q_index, k_index))
    return _Found(heads, kv_heads, d_head, W_Q, W_K, N, layout, _lora(W_Q, W_K))


def _fused_counts(counts: Counts, rows: int, N: int) -> tuple[int, int, int]:
    """Counts of a fused weight: rows = (n_heads + 2 n_kv_heads) · d_head."""
    heads = counts.n_heads
    if heads is None:
        raise _Unclear(f"a fused weight of {rows} rows, but no attribute or configuration tells the number of heads")
    for kv_heads in dict.fromkeys(kv for kv in (counts.n_kv_heads, heads, 1) if kv and heads % kv == 0):
        d_head, rest = divmod(rows, heads + 2 * kv_heads)
        if not rest and d_head == (counts.d_head or N // heads):
            return heads, kv_heads, d_head
    raise _Unclear(
        f"a fused weight of {rows} rows does not split into queries, keys and values of {heads} heads "
        f"(n_kv_heads={counts.n_kv_heads}, d_head={counts.d_head})"
    )


def _fused_layout(
    module: nn.Module, child: str, heads: int, kv_heads: int, d_head: int
) -> tuple[tuple[np.ndarray, np.ndarray], str]:
    """Thirds, unless the name is Megatron's, whose weights are interleaved per head."""
    if child != "query_key_value":
        return layouts.concatenated(heads, kv_heads, d_head), "fused-concat"
    if getattr(module, "new_decoder_architecture", False):
        return layouts.grouped(heads, kv_heads, d_head), "fused-grouped"
    if kv_heads == 1 and heads > 1:
        return layouts.concatenated(heads, kv_heads, d_head), "fused-concat"
    if kv_heads == heads:
        return layouts.interleaved(heads, d_head), "fused-interleaved-per-head"
    raise _Unclear("a fused weight of grouped heads: grouped or concatenated cannot be told by rule")


def _latent(module: nn.Module, name: str, counts: Counts) -> _Found | None:
    """DeepSeek's multi-head latent attention: the part of every head that carries no position."""
    down = module._modules.get("kv_a_proj_with_mqa")
    if down is None or not is_linear(down) or not is_linear(module._modules.get("kv_b_proj")):
        return None
    nope, rope, value, heads, rank = (int(getattr(module, key)) for key in _LATENT_SIZES)
    q_index = np.arange(heads * (nope + rope)).reshape(heads, nope + rope)[:, :nope]
    k_index = np.arange(heads * (nope + value)).reshape(heads, nope + value)[:, :nope]
    query = _query_of_latent(module, name, q_index)
    if query is None:
        return None
    latent = Rows(dotted(name, "kv_a_proj_with_mqa.weight"), index=np.arange(rank))
    key = Term(
        (Rows(dotted(name, "kv_b_proj.weight"), index=k_index), latent),
        gain=Gain(dotted(name, "kv_a_layernorm.weight")),
    )
    N = shape(down)[1]
    return _Found(heads, heads, nope, query, Projection((key,)), N, "multi-source (MLA)", ("mla_nope",))


def _query_of_latent(module: nn.Module, name: str, index: np.ndarray) -> Projection | None:
    direct, up = module._modules.get("q_proj"), module._modules.get("q_b_proj")
    if direct is not None and is_linear(direct):
        return projection(direct, dotted(name, "q_proj"), index)
    if up is None or not is_linear(up):
        return None
    factors = (Rows(dotted(name, "q_b_proj.weight"), index=index), Rows(dotted(name, "q_a_proj.weight")))
    return Projection((Term(factors, gain=Gain(dotted(name, "q_a_layernorm.weight"))),))


def _einsum(module: nn.Module, name: str, counts: Counts) -> _Found | None:
    """Weights kept per head: (head, d_model, d_head), as in an einsum over heads."""
    for q_name, k_name in _TENSORS:
        query, key = (module._parameters.get(each) for each in (q_name, k_name))
        if query is not None and key is not None and query.dim() == key.dim() == 3:
            return _per_head(query, key, dotted(name, q_name), dotted(name, k_name), counts)
    return None


def _per_head(query: Tensor, key: Tensor, q_name: str, k_name: str, counts: Counts) -> _Found:
    heads, N, d_head = query.shape
    kv_heads = key.shape[0]
    if counts.n_heads not in (None, heads) or heads % kv_heads or tuple(key.shape[1:]) != (N, d_head):
        raise _Unclear(f"weights of shape {tuple(query.shape)} and {tuple(key.shape)} are not (head, d_model, d_head)")
    pattern = "h i n -> (h n) i"
    W_Q, W_K = (
        Projection((Term((Rows(parameter, pattern, layouts.separate(count, d_head)),)),))
        for parameter, count in ((q_name, heads), (k_name, kv_heads))
    )
    return _Found(heads, kv_heads, d_head, W_Q, W_K, N, "3-D einsum separate")


def _lora(*projections: Projection) -> tuple[str, ...]:
    return ("lora",) if any(len(each.terms) > 1 for each in projections) else ()
