"""Every attention call of a model is seen, with the scores that it really uses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from headwatch.probe.call import fold_heads
from headwatch.probe.capture import capture

B, T, N, H = 3, 6, 16, 4


class Holder(nn.Module):
    """A model that runs a function, in a module named ``attn``."""

    def __init__(self, function):
        super().__init__()
        self.attn = _Runs(function)

    def forward(self, *args, **kwargs):
        return self.attn(*args, **kwargs)


class _Runs(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def calls_of(model, *args, **kwargs):
    """Calls with their tensors cloned (a handler of the library keeps none), and the refusals."""
    seen = []
    with torch.no_grad(), capture(model, seen.append) as captured:
        model(*args, **kwargs)
    return seen, captured.refused


def attention_of(call):
    """The attention that a call describes, from q, k and what stands beside them alone, in float64."""
    k = call.k.double().repeat_interleave(call.group, 1)
    scores = call.q.double() @ k.mT * call.scale
    if call.softcap is not None:
        scores = call.softcap * (scores / call.softcap).tanh()
    mask = call.mask if call.mask_chunk is None else call.mask_chunk(0, call.q.shape[2])
    if call.is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1)


def qkv(heads=H, kv=H, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(B, h, T, N // H, generator=generator) for h in (heads, kv, kv)]


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "bool": {"attn_mask": torch.rand(B, 1, T, T).add(torch.eye(T)) > 0.4},
    "float": {"attn_mask": torch.randn(1, H, T, T)},
    "scale": {"scale": 0.77},
}


@pytest.mark.parametrize("case", MASKS)
def test_sdpa_with_every_argument(case):
    q, k, v = qkv()
    model = Holder(lambda: F.scaled_dot_product_attention(q, k, v, **MASKS[case]))
    (call,), refused = calls_of(model)
    assert (call.module, call.kind, call.ordinal, refused) == ("attn", "sdpa", 0, [])
    assert torch.allclose(attention_of(call) @ v.double(), model().double(), atol=1e-6)


def test_grouped_keys_are_not_repeated():
    q, k, v = qkv(kv=2)
    (call,), _ = calls_of(Holder(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)))
    assert (call.q.shape[1], call.k.shape[1], call.group) == (H, 2, 2)


def test_calls_of_one_module_are_counted():
    q, k, v = qkv()
    model = Holder(lambda: [F.scaled_dot_product_attention(q, k, v) for _ in range(3)])
    assert [call.ordinal for call in calls_of(model)[0]] == [0, 1, 2]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_multihead_attention(need_weights, batch_first):
    torch.manual_seed(0)
    model = nn.Sequential(nn.MultiheadAttention(N, H, batch_first=batch_first))
    x = torch.randn(*((B, T) if batch_first else (T, B)), N)
    model.forward = lambda x: model[0](x, x, x, need_weights=need_weights, average_attn_weights=False)
    (call,), _ = calls_of(model, x)
    W, b = model[0].in_proj_weight.chunk(3), model[0].in_proj_bias.chunk(3)
    rows = x if batch_first else x.transpose(0, 1)
    q, k = (F.linear(rows, W[i], b[i]).view(B, T, H, -1).transpose(1, 2) for i in range(2))
    assert (call.module, call.kind) == ("0", "mha")
    assert tuple(call.q.shape) == (B, H, T, N // H)
    assert torch.allclose(attention_of(call), (q @ k.mT / 2).softmax(-1).double(), atol=1e-6)
    assert (call.weights is not None) is need_weights


def test_the_encoder_fast_path_is_captured_and_set_back():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(N, H, 16, batch_first=True), 2).eval()
    torch.backends.mha.set_fastpath_enabled(True)
    seen, _ = calls_of(model, torch.randn(B, T, N))
    assert [call.module for call in seen] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("compiled", ["whole", "part"])
def test_compiled_models_run_eagerly_inside_and_keep_their_names(compiled):
    q, k, v = qkv()
    model = Holder(lambda: F.scaled_dot_product_attention(q, k, v))
    if compiled == "whole":
        model = torch.compile(model, backend="eager")
    else:
        model.attn = torch.compile(model.attn, backend="eager")
    (call,), _ = calls_of(model)
    assert call.module == "attn"


def test_the_operator_of_flash_attn_is_seen_within_an_autograd_function():
    @torch.library.custom_op("flash_attn_stand_in::_flash_attn_forward", mutates_args=())
    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, p: float, scale: float, causal: bool) -> torch.Tensor:
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale).transpose(1, 2).contiguous()

    class Flash(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            return torch.ops.flash_attn_stand_in._flash_attn_forward(q, k, v, 0.0, 0.3, True)

    q, k, v = (each.transpose(1, 2) for each in qkv())
    (call,), refused = calls_of(model := Holder(lambda: Flash.apply(q, k, v)))
    assert refused == []
    assert (call.scale, call.is_causal) == (0.3, True)
    assert torch.allclose(attention_of(call) @ v.transpose(1, 2).double(), model().transpose(1, 2).double(), atol=1e-6)


def test_a_model_computes_the_same_while_it_is_watched():
    torch.manual_seed(0)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(N, H, 16, batch_first=True, dropout=0.0), 2)
    x, memory = torch.randn(B, T, N), torch.randn(B, T, N)
    expected = model(x, memory)
    with capture(model, lambda call: None):
        assert torch.allclose(model(x, memory), expected, atol=1e-6)


@pytest.mark.parametrize("fails", ["handler", "model", "nothing"])
def test_nothing_is_left_behind(fails):
    def handle(call):
        if fails == "handler":
            raise ZeroDivisionError

    def forward():
        F.scaled_dot_product_attention(*qkv())
        if fails == "model":
            raise ZeroDivisionError

    tables = (torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks)
    before = [dict(table) for table in tables]
    model = Holder(forward)
    try:
        with capture(model, handle):
            model()
    except ZeroDivisionError:
        assert fails != "nothing"
    assert [dict(table) for table in tables] == before
    assert torch.overrides._get_current_function_mode_stack() == []
    assert torch.compiler.is_compiling() is False
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)) == 2


@pytest.mark.parametrize(
    ("q", "k", "documents", "shapes"),
    [
        ((5, 8), (6, 8), None, ((1, 1, 5, 8), (1, 1, 6, 8))),
        ((6, 5, 8), (6, 7, 8), 2, ((2, 3, 5, 8), (2, 3, 7, 8))),
        ((6, 5, 8), (6, 7, 8), None, ((6, 1, 5, 8), (6, 1, 7, 8))),
        ((2, 4, 5, 8), (2, 1, 7, 8), None, ((2, 4, 5, 8), (2, 1, 7, 8))),
        ((2, 2, 3, 5, 8), (2, 2, 1, 7, 8), None, ((2, 6, 5, 8), (2, 2, 7, 8))),
        ((2, 2, 3, 5, 8), (2, 1, 3, 7, 8), None, ((2, 6, 5, 8), (2, 6, 7, 8))),
    ],
)
def test_heads_are_folded_so_that_a_key_head_serves_neighbours(q, k, documents, shapes):
    folded = fold_heads(torch.zeros(q), torch.zeros(k), documents)
    assert tuple(tuple(each.shape) for each in folded) == shapes
