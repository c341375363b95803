"""See every attention call of a model while it runs: SDPA, nn.MultiheadAttention, flex_attention, softmax in python."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headwatch.heads.headmap import LeftOut
from headwatch.marginal.masks import HIDDEN
from headwatch.probe.call import AttentionCall, fold_heads
from headwatch.probe.flex import flex_rows, flex_softcap
from headwatch.probe.functions import (
    FLASH_ARGUMENTS,
    FLASH_PLAIN,
    FLEX_ARGUMENTS,
    SDPA_ARGUMENTS,
    SOFTMAX,
    bound,
    flex_operator,
    is_flash,
    mha_heads,
    reentrant_mha,
    softmax_arguments,
)
from headwatch.probe.products import ScoreTag
from headwatch.probe.scores import Scores
from headwatch.probe.stack import ModuleStack

__all__ = ["Capture", "capture", "installed"]

# what torch says about hooks on compiled modules, and about flex_attention that is not compiled: both are meant here
_EXPECTED = (
    r"Using `torch\.compile\(module\)` when there are global hooks",
    "flex_attention called without torch.compile",
)

Handler = Callable[[AttentionCall], None]
Kind = Literal["sdpa", "mha", "flex", "eager"]


@contextmanager
def capture(model: nn.Module, handler: Handler) -> Iterator[Capture]:
    """Call ``handler`` during the forward for every attention call of ``model``.

    It is called before the attention is computed, or after the softmax where python computes it. Compiled code runs
    eagerly inside; the results of the model do not change. Nothing is left behind, under an exception too.

    Args:
        model: whose module names the calls carry; run it inside, as a whole or in part.
        handler: reduces the call at once and keeps no tensor.

    Yields:
        The capture; ``.refused`` tells what could not be captured and why.
    """
    with installed(Capture(model, handler)) as mode:
        yield mode


@contextmanager
def installed(mode: Capture) -> Iterator[Capture]:
    """A capture at work."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        for message in _EXPECTED:
            warnings.filterwarnings("ignore", message=message)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fastpath)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(mode.stack.watching())
        stack.enter_context(mode)
        yield mode


class Capture(TorchFunctionMode):
    """The function mode of ``capture``.

    Attributes:
        stack: the modules that are running.
        refused: attention that was seen but could not be captured.
    """

    def __init__(self, model: nn.Module, handler: Handler) -> None:
        super().__init__()
        self.stack = ModuleStack(model, on_exit=lambda frame: self._forget(frame.name))
        self.refused: list[LeftOut] = []
        self._handler = handler
        self._scores = Scores()
        self._products: dict[str, list[ScoreTag]] = {}
        self._mha_heads: int | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return self._mha(args, kwargs)
        if func is F.scaled_dot_product_attention:
            self._sdpa(bound(SDPA_ARGUMENTS, args, kwargs))
        elif func is flex_operator():
            self._flex(bound(FLEX_ARGUMENTS, args, kwargs))
        elif is_flash(func):
            self._flash(bound(FLASH_ARGUMENTS, args, kwargs))
        elif func in SOFTMAX:
            return self._softmax(func, args, kwargs)
        out = self.run(func, args, kwargs)
        product = self._scores.follow(func, args, kwargs, out)
        if product is not None:
            self._products.setdefault(self.stack.owner, []).append(product)
        return out

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Execute one torch function."""
        return func(*args, **kwargs)

    def _mha(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        outer, self._mha_heads = self._mha_heads, mha_heads(args, kwargs)
        try:
            with self:
                return reentrant_mha()(*args, **kwargs)
        finally:
            self._mha_heads = outer

    def _sdpa(self, named: Mapping[str, Any]) -> None:
        raw_q, raw_k = named["query"], named["key"]
        q, k = fold_heads(raw_q, raw_k, self._documents(raw_q)) if raw_q.dim() != 4 else (raw_q, raw_k)
        mask = named.get("attn_mask")
        if mask is not None and mask.dim() > 4:
            mask = mask.expand(*raw_q.shape[:-1], raw_k.shape[-2]).reshape(*q.shape[:3], k.shape[2])
        elif mask is not None and mask.dim() == 3 and raw_q.dim() == 3:
            mask = mask.expand(raw_q.shape[0], *mask.shape[1:]).unflatten(0, (q.shape[0], -1))
        scale = named.get("scale")
        self._call(
            "sdpa",
            q=q,
            k=k,
            scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
            is_causal=bool(named.get("is_causal", False)),
            mask=mask,
        )

    def _flex(self, named: Mapping[str, Any]) -> None:
        q, k, score_mod, block_mask = (named[name] for name in ("query", "key", "score_mod", "block_mask"))
        shape = (*q.shape[:3], k.shape[2])
        softcap, known = flex_softcap(score_mod, shape, q.device)
        if not known:
            self._refuse("flex_attention with a score_mod that is neither a bias nor a soft-cap")
        rows = flex_rows(score_mod, block_mask[-1], shape, q.device)
        self._call("flex", q=q, k=k, scale=float(named["scale"]), softcap=softcap, mask_chunk=rows, complete=known)

    def _softmax(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        scores, dim = softmax_arguments(args, kwargs)
        out = self.run(func, args, kwargs)
        tag = self._scores.get(scores)
        if tag is not None and tag.labels[dim] == "S":
            self._eager(tag, scores, out)
        elif self._lost(scores, dim):
            self._refuse("a softmax of scores that could not be followed back to q·kᵀ")
        return out

    def _eager(self, tag: ScoreTag, scores: Tensor, weights: Tensor) -> None:
        self._products[self.stack.owner] = [t for t in self._products.get(self.stack.owner, []) if t.q is not tag.q]
        flat, flat_weights = tag.canonical(scores), tag.canonical(weights)
        q, k = fold_heads(tag.q, tag.k, self._documents(tag.q, flat))
        S = k.shape[2]
        shape = (*q.shape[:3], S + tag.extra)
        hidden = flat <= HIDDEN
        if tag.hidden is not None:
            hidden = hidden | tag.canonical(tag.hidden)
        self._call(
            "eager",
            q=q,
            k=k,
            scale=tag.total_scale,
            softcap=tag.softcap,
            mask=~hidden.reshape(shape)[..., :S] if bool(hidden.any()) else None,
            scores=flat.reshape(shape)[..., :S],
            weights=flat_weights.reshape(shape)[..., :S],
            complete=tag.extra == 0,
        )

    def _flash(self, named: Mapping[str, Any]) -> None:
        """The operator of the flash-attn package: documents, tokens, heads."""
        q, k = (named[name].transpose(1, 2) for name in ("q", "k"))
        if q.dim() != 4:
            self._refuse("flash-attn on packed sequences of unequal length")
            return
        plain = all(named.get(name) in expected for name, expected in FLASH_PLAIN.items())
        if not plain:
            self._refuse("flash-attn with a window or ALiBi slopes: its mask cannot be rebuilt")
        scale = named.get("softmax_scale")
        self._call(
            "sdpa",
            q=q,
            k=k,
            scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
            is_causal=bool(named.get("causal", False)),
            softcap=named.get("softcap") or None,
            complete=plain,
        )

    def _documents(self, q: Tensor, scores: Tensor | None = None) -> int | None:
        """Number of documents B where q has one batch dimension only."""
        if q.dim() != 3:
            return None
        if self._mha_heads:
            return q.shape[0] // self._mha_heads
        if scores is not None and scores.dim() > 3:
            return scores.shape[0]
        return self.stack.documents(q.shape[0], q.shape[1])

    def _call(self, kind: Kind, **what: Any) -> None:
        owner = self.stack.owner
        kind = "mha" if self._mha_heads else kind
        self._handler(AttentionCall(module=owner, kind=kind, ordinal=self.stack.count(owner), **what))

    def _lost(self, scores: Tensor, dim: int) -> bool:
        """Whether a softmax reads scores of a product seen in this module, by a way that was lost in between."""
        products = self._products.get(self.stack.owner, [])
        return scores.dim() > 2 and any(
            scores.shape[dim] == tag.k.shape[-2] and scores.numel() == math.prod(tag.q.shape[:-1]) * tag.k.shape[-2]
            for tag in products
        )

    def _refuse(self, reason: str) -> None:
        item = LeftOut(self.stack.owner, reason)
        if item not in self.refused:
            self.refused.append(item)

    def _forget(self, name: str) -> None:
        self._products.pop(name, None)
