"""Known roles of heads on a repeated random sequence: previous token, duplicate token, induction.

On a sequence of P random tokens that is repeated, these scores are mean attention weights at a fixed distance:

- previous token: from each token to the one before it (Elhage et al., *A Mathematical Framework for Transformer
  Circuits*, 2021);
- duplicate token: from each token of the second half to its own first occurrence, P tokens back (Wang et al.,
  *Interpretability in the Wild*, arXiv:2211.00593);
- induction, also called prefix matching: from each token of the second half to the token that followed its first
  occurrence, P − 1 tokens back (Olsson et al., *In-context Learning and Induction Heads*, arXiv:2209.11895).

Each lies in [0, 1]. They come from the same pass over blocks of queries as the signatures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headwatch.heads.headmap import HeadMap
from headwatch.marginal.record import Block
from headwatch.probe.call import AttentionCall
from headwatch.probe.calling import ProbeFn, model_call, prepare
from headwatch.probe.capture import capture
from headwatch.probe.documents import Context, within
from headwatch.probe.quiet import quiet_probe
from headwatch.probe.reduction import marginals_of, select_heads

__all__ = ["RoleScores", "head_roles", "repeated_tokens"]


@dataclass(frozen=True)
class RoleScores:
    """Scores of one self-attention module, mean over documents.

    Attributes:
        layer, module: which one.
        heads: its query heads.
        scores: by role, float64, shape (heads,).
    """

    layer: int
    module: str
    heads: tuple[int, ...]
    scores: dict[str, Tensor]


def repeated_tokens(
    n_tokens: int, *, period: int = 50, documents: int = 8, first: int | None = None, seed: int = 0
) -> Tensor:
    """Random sequences, each repeated once: shape (documents, 2 · period), one more with a first token.

    Args:
        n_tokens: size of the vocabulary to draw from.
        period: length P of the random sequence.
        documents: number of sequences.
        first: token to put in front (beginning of sequence), for models that expect one.
        seed: of the draw; no global random state is touched.

    >>> ids = repeated_tokens(100, period=3, documents=1, first=7)[0].tolist()
    >>> ids[0], ids[1:4] == ids[4:7]
    (7, True)
    """
    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(n_tokens, (documents, period), generator=generator)
    twice = torch.cat((once, once), 1)
    return twice if first is None else torch.cat((torch.full((documents, 1), first), twice), 1)


def head_roles(
    model: nn.Module,
    head_map: HeadMap,
    tokens: Any,
    *,
    period: int = 50,
    probe_fn: ProbeFn | None = None,
    context: Context = None,
) -> list[RoleScores]:
    """Role scores of every watched head; the model is probed without a trace.

    Args:
        model: a causal language model.
        head_map: what is watched.
        tokens: from :func:`repeated_tokens` with the same ``period``, or a batch of the model's make that holds them.
        probe_fn: ``probe_fn(model, tokens)`` runs the forward.
        context: makes the context of a forward.
    """
    bare = model_call(model, probe_fn, head_map)
    prepare(bare, tokens)
    call = within(context, bare)
    handler = _Handler(head_map, period)
    with quiet_probe(model), capture(model, handler):
        call(tokens)
    return [
        RoleScores(site.layer, site.module, site.heads, handler.scores[site.module])
        for site in head_map.sites
        if site.module in handler.scores
    ]


class _Handler:
    def __init__(self, head_map: HeadMap, period: int) -> None:
        self._head_map, self._period = head_map, period
        self.scores: dict[str, dict[str, Tensor]] = {}

    def __call__(self, call: AttentionCall) -> None:
        site = self._head_map.site_of(call.module)
        if site is None:
            return
        T, P = call.q.shape[2], self._period
        stripes = {
            "previous_token": _Stripe(1, T - 2 * P + 1, T),
            "duplicate_token": _Stripe(P, T - P, T),
            "induction": _Stripe(P - 1, T - P, T),
        }

        def observe(block: Block, weights: Tensor) -> None:
            for stripe in stripes.values():
                stripe.add(block, weights)

        marginals_of(select_heads(call, site), observe=observe)
        self.scores[site.module] = {role: stripe.mean(len(site.heads)).cpu() for role, stripe in stripes.items()}


@dataclass
class _Stripe:
    """Mean weight from queries start..stop−1 to the key ``distance`` tokens back."""

    distance: int
    start: int
    stop: int
    parts: list[tuple[slice, Tensor]] = field(default_factory=list)
    documents: int = 0

    def add(self, block: Block, weights: Tensor) -> None:
        self.documents = max(self.documents, block.documents.stop)
        first = max(block.queries.start, self.start, block.keys.start + self.distance)
        last = min(block.queries.start + weights.shape[-2], self.stop, block.keys.stop + self.distance)
        if first < last:
            query = torch.arange(first, last, device=weights.device)
            stripe = weights[..., query - block.queries.start, query - self.distance - block.keys.start]
            self.parts.append((block.heads, stripe.double().sum((0, 2))))

    def mean(self, heads: int) -> Tensor:
        total = torch.zeros(heads, dtype=torch.float64)
        for place, part in self.parts:
            total[place] += part.cpu()
        return total / (self.documents * (self.stop - self.start))
