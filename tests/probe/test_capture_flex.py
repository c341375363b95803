"""flex_attention: masks and score_mods become masks of rows, soft-caps and refusals."""

from __future__ import annotations

import pytest
import torch
from test_capture import B, H, Holder, T, attention_of, calls_of, qkv

flex = pytest.importorskip("torch.nn.attention.flex_attention")


def causal(b, h, q, k):
    return q >= k


def relative(score, b, h, q, k):
    return score + 0.1 * (k - q) * (h + 1)


def capped(score, b, h, q, k):
    return 5.0 * torch.tanh(score / 5.0)


def capped_and_relative(score, b, h, q, k):
    return 5.0 * torch.tanh(score / 5.0) + 0.2 * (k - q)


@pytest.mark.parametrize("score_mod", [None, relative, capped, capped_and_relative])
@pytest.mark.parametrize("masked", [False, True])
def test_the_attention_is_rebuilt(score_mod, masked):
    q, k, v = qkv(kv=2)
    mask = flex.create_block_mask(causal, None, None, T, T, device="cpu") if masked else None
    model = Holder(lambda: flex.flex_attention(q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=True))
    (call,), refused = calls_of(model)

    assert refused == []
    assert (call.module, call.kind, call.complete) == ("attn", "flex", True)
    assert (call.softcap is not None) is (score_mod in (capped, capped_and_relative))
    expected = model().double()
    assert torch.allclose(attention_of(call) @ v.double().repeat_interleave(2, 1), expected, atol=1e-5)


def test_rows_are_given_in_chunks():
    q, k, v = qkv()
    (call,), _ = calls_of(Holder(lambda: flex.flex_attention(q, k, v, score_mod=relative)))
    whole = call.mask_chunk(0, T)
    assert tuple(whole.shape) == (B, H, T, T)
    assert torch.equal(call.mask_chunk(2, 5), whole[:, :, 2:5])


def test_a_score_mod_that_is_neither_is_refused_and_q_and_k_still_given():
    q, k, v = qkv()
    (call,), refused = calls_of(Holder(lambda: flex.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * s)))
    assert call.complete is False
    assert torch.equal(call.q, q)
    assert "neither a bias nor a soft-cap" in refused[0].reason
