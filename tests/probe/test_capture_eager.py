"""Attention that python computes step by step: followed from q·kᵀ to the softmax."""

from __future__ import annotations

import math

import pytest
import torch
from test_capture import B, H, Holder, N, T, attention_of, calls_of, qkv
from torch import nn
from torch.nn import functional as F

n = N // H
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()


def matmul(q, k):
    return torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(n)


def at_swapped(q, k):
    return (q @ k.mT).mul_(0.5)


def einsum(q, k):
    return torch.einsum("bhid,bhjd->bhij", q, k) * 0.5


def einsum_other_order(q, k):
    return torch.einsum("bhjd,bhid->bhij", k, q) / 2


def flattened_bmm(q, k):
    flat = torch.bmm(q.reshape(-1, T, n), k.reshape(-1, T, n).transpose(1, 2)) * 0.5
    return flat.view(B, H, T, T)


def flattened_baddbmm(q, k):
    start = torch.zeros(B * H, T, T)
    return torch.baddbmm(start, q.reshape(-1, T, n), k.reshape(-1, T, n).mT, beta=1.0, alpha=0.5).view(B, H, T, T)


def masked_fill(q, k):
    return (q @ k.mT / 2).masked_fill(~CAUSAL, float("-inf"))


def where(q, k):
    return torch.where(CAUSAL, q @ k.mT / 2, torch.finfo(torch.float32).min)


def additive(q, k):
    return q @ k.mT * 0.5 + torch.zeros(T, T).masked_fill(~CAUSAL, -1e4)


def by_a_hundred(q, k):
    """Swin's mask, added in a view of windows."""
    scores = (q @ k.mT * 0.5).view(1, B, H, T, T) + (-100.0 * (~CAUSAL)).expand(B, 1, T, T)
    return scores.view(B, H, T, T)


def soft_capped(q, k):
    return (torch.tanh(q @ k.mT * 0.5 / 3.0) * 3.0).masked_fill(~CAUSAL, float("-inf"))


def in_float32(q, k):
    return (q.double() @ k.double().mT).to(torch.float32) / 2.0


FORMS = [
    matmul, at_swapped, einsum, einsum_other_order, flattened_bmm, flattened_baddbmm, masked_fill, where, additive,
    by_a_hundred, soft_capped, in_float32,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("softmax", [torch.Tensor.softmax, F.softmax, lambda x, dim: nn.Softmax(dim)(x)])
def test_every_way_to_write_it(form, softmax):
    q, k, _ = qkv()
    model = Holder(lambda: softmax(form(q, k), -1))
    (call,), refused = calls_of(model)

    assert refused == []
    assert (call.module, call.kind) == ("attn", "eager")
    assert tuple(call.q.shape) == (B, H, T, n)
    assert tuple(call.k.shape) == (B, H, T, n)
    assert call.scale == pytest.approx(0.5)
    assert torch.equal(call.weights, model().view(B, H, T, T))
    assert torch.allclose(attention_of(call), call.weights.double(), atol=1e-6)
    hides = form in (masked_fill, where, additive, by_a_hundred, soft_capped)
    assert (call.mask is not None) is hides
    if hides:
        assert torch.equal(call.mask, CAUSAL.expand(B, H, T, T))


def test_a_position_bias_is_in_the_scores_and_hides_nothing():
    q, k, _ = qkv()
    bias = -torch.arange(T).float().mul(30)[None, :].expand(H, T, T)
    (call,), _ = calls_of(Holder(lambda: (q @ k.mT + bias).softmax(-1)))
    assert call.mask is None
    assert torch.allclose(call.scores, q @ k.mT + bias)


def test_content_and_position_scores_keep_the_keys_of_the_content():
    """DeBERTa and XLNet add products with embeddings of positions."""
    q, k, _ = qkv()
    positions = torch.randn(H, T, n)

    def forward():
        by_position = torch.gather(q @ positions.mT, -1, torch.arange(T).flip(0).expand(B, H, T, T))
        return (q @ k.mT + by_position).softmax(-1)

    (call,), _ = calls_of(Holder(forward))
    assert torch.equal(call.k, k)
    assert torch.equal(call.q, q)


def test_grouped_heads_by_broadcasting():
    q, k, _ = qkv(kv=2)
    (call,), _ = calls_of(Holder(lambda: (q.view(B, 2, 2, T, n) @ k[:, :, None].mT / 2).softmax(-1)))
    assert torch.equal(call.q, q)
    assert torch.equal(call.k, k)
    assert torch.allclose(attention_of(call), call.weights.double(), atol=1e-6)


def test_heads_flattened_into_documents_are_counted_by_the_input():
    q, k, _ = qkv()

    def forward(x):
        return torch.bmm(q.reshape(-1, T, n), k.reshape(-1, T, n).mT).softmax(-1)

    (call,), _ = calls_of(Holder(forward), torch.zeros(B, T, N))
    assert torch.equal(call.q, q)
    assert tuple(call.weights.shape) == (B, H, T, T)


def test_a_learned_sink_takes_part_and_says_so():
    q, k, _ = qkv()
    sink = torch.randn(B, H, T, 1)
    (call,), _ = calls_of(Holder(lambda: torch.cat([q @ k.mT / 2, sink], dim=-1).softmax(-1)[..., :-1]))
    assert call.complete is False
    assert tuple(call.scores.shape) == (B, H, T, T)
    assert torch.allclose(call.scores, q @ k.mT / 2)


def test_a_softmax_whose_scores_were_lost_is_refused_by_name():
    q, k, _ = qkv()
    model = Holder(lambda: torch.cumsum(q @ k.mT, dim=1).softmax(-1))
    seen, refused = calls_of(model)
    assert seen == []
    assert [item.module for item in refused] == ["attn"]
    assert "could not be followed back" in refused[0].reason


@pytest.mark.parametrize(
    "forward",
    [
        lambda x, W: F.linear(x, W).softmax(-1),  # a router
        lambda x, W: (x @ x.mT).tanh() @ x,  # attention without softmax
        lambda x, W: ((x @ x.mT) @ x).softmax(-1),  # a softmax over features
    ],
)
def test_other_softmaxes_and_products_are_not_attention(forward):
    x, W = torch.randn(B, T, N), nn.Parameter(torch.randn(8, N))
    seen, refused = calls_of(Holder(lambda: forward(x, W)))
    assert (seen, refused) == ([], [])
