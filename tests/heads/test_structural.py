"""Heads by rule, without a probe; what rules find is what behaviour finds."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
import torch
from heads_homemade import Linear as LinearAttention
from heads_zoo import FAMILIES, GPT2, LLAMA, B, H, N, NanoAttention, T, noise, on_noise, stack, transformers_model
from torch import nn

from headwatch.heads import NoAttentionError, find_heads, named_parameters, read_factors

UNKNOWN_TO_RULES = {
    "TransformerLens bridge, llama",  # the same weights stand under several modules
    "TransformerLens bridge, gpt2",
    "x-transformers grouped",  # key heads in tiled order: no name tells
    "siglip",  # its pooling head is an nn.MultiheadAttention, and no name tells that its query is learned
    "timm ViT qk_norm", "qwen3", "gemma3", "olmo2", "cohere", "stablelm",  # rules do not see gains
}  # fmt: skip


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in UNKNOWN_TO_RULES])
def test_rules_read_the_factors_that_brute_force_reads(family):
    built = FAMILIES[family]()
    found = find_heads(built.model)

    assert len(found.sites) == built.sites
    assert all(site.status == "structural" for site in found.sites)
    parameters, modules = named_parameters(built.model), dict(built.model.named_modules())
    for site in found.sites:
        module = next(m for name, m in modules.items() if name.replace("_orig_mod.", "") == site.module)
        W_Q, W_K = built.expected(module)
        factors = read_factors(site, parameters)
        assert torch.allclose(factors.W_Q.float(), W_Q, rtol=1e-5, atol=1e-7)
        assert torch.allclose(factors.W_K.float(), W_K, rtol=1e-5, atol=1e-7)


def test_layers_line_up_with_and_without_a_probe():
    built = FAMILIES["bart"]()
    by_rule, proven = find_heads(built.model), find_heads(built.model, probe=built.probe)
    assert [(s.layer, s.module) for s in by_rule.sites] == [(s.layer, s.module) for s in proven.sites]
    assert {item.module for item in by_rule.left_out} == {item.module for item in proven.left_out}


def test_no_head_is_an_error_that_says_what_to_do():
    with pytest.raises(NoAttentionError, match=r"Linear: expected self-attention.*\n.*probe_fn=.*heads="):
        find_heads(nn.Linear(3, 3))


class Uncounted(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(N, 3 * N)


def test_a_fused_weight_without_a_head_count_is_left_out_by_name():
    model = nn.ModuleDict({"known": NanoAttention(), "unknown": Uncounted()})
    found = find_heads(model)
    assert [site.module for site in found.sites] == ["known"]
    (left_out,) = found.left_out
    assert left_out.module == "unknown"
    assert "no attribute or configuration tells the number of heads" in left_out.reason


def test_a_module_that_no_probe_reaches_stays_structural_and_says_so():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = NanoAttention(), NanoAttention()

        def forward(self, x):
            return self.used(x)

    found = find_heads(model := Partly(), probe=on_noise(model, B, T, N))
    assert [(s.module, s.status, s.flags) for s in found.sites] == [
        ("used", "proven", ()),
        ("unused", "structural", ("not_reached",)),
    ]


def test_frozen_layers_are_flagged():
    model = stack(NanoAttention)
    model[0].attn.c_attn.weight.requires_grad_(False)
    assert [site.flags for site in find_heads(model).sites] == [("frozen",), ()]


def test_a_shared_module_is_one_site_with_its_other_names():
    shared = NanoAttention()
    model = nn.ModuleDict({"a": shared, "b": nn.ModuleList([shared])})
    model.forward = lambda x: model["b"][0](model["a"](x))
    for probe in (None, on_noise(model, B, T, N)):
        (site,) = find_heads(model, probe=probe).sites
        assert (site.module, site.aliases, site.flags) == ("a", ("b.0",), ("tied",))


def test_a_lightning_style_holder_keeps_the_users_names():
    built = LLAMA()
    holder = nn.Module()
    holder.net = built.model
    found = find_heads(holder, probe=built.probe)
    assert [site.module for site in found.sites] == ["net.layers.0.self_attn", "net.layers.1.self_attn"]
    assert found.sites[0].W_Q.terms[0].rows[0].parameter == "net.layers.0.self_attn.q_proj.weight"


def test_a_compiled_model_has_the_names_of_the_plain_one():
    plain, compiled = stack(NanoAttention), torch.compile(stack(NanoAttention), backend="eager")
    assert [s.module for s in find_heads(compiled).sites] == [s.module for s in find_heads(plain).sites]


def test_linear_attention_and_convolutions_in_a_hybrid_are_left_out_by_name():
    class ShortConv(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(N, N, 3, padding=1)

        def forward(self, x):
            return self.conv(x.mT).mT

    class Fast(LinearAttention):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(N, N) for _ in range(3))

        def forward(self, x):
            q, k, v = (f(x).unflatten(-1, (H, 16)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
            return (q @ (k.mT @ v)).transpose(1, 2).reshape_as(x)

    model = nn.Sequential(NanoAttention(), ShortConv(), Fast(), NanoAttention())
    found = find_heads(model, probe=on_noise(model, B, T, N))
    assert [site.module for site in found.sites] == ["0", "3"]
    reasons = {item.module: item.reason for item in found.left_out}
    assert set(reasons) == {"1", "2"}
    assert reasons["1"].startswith("ShortConv holds no softmax attention")
    assert "linear attention" in reasons["2"]


def test_state_space_blocks_of_a_hybrid_are_left_out_by_name():
    settings = {"hidden_size": N, "num_attention_heads": H, "num_key_value_heads": 2, "intermediate_size": 64}
    model = transformers_model(
        "JambaModel", "JambaConfig", **settings, vocab_size=60, pad_token_id=0, num_hidden_layers=2,
        attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4, mamba_dt_rank=4,
        num_experts=1,
    )  # fmt: skip
    found = find_heads(model)
    assert [site.module for site in found.sites] == ["layers.1.self_attn"]
    assert any("Mamba" in item.reason and item.module.startswith("layers.0") for item in found.left_out)


def test_mamba_alone_has_no_heads():
    model = transformers_model(
        "MambaModel", "MambaConfig", vocab_size=60, hidden_size=N, num_hidden_layers=1, state_size=4
    )
    with pytest.raises(NoAttentionError):
        find_heads(model)


def test_cross_attention_by_name_and_by_input():
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(N, H, 64, batch_first=True), 1)
    x = noise(1, B, T, N)
    for probe in (None, [lambda: model(x, noise(2, B, T, N))], [lambda: model(x, x)]):
        found = find_heads(model, probe=probe)
        assert [site.module for site in found.sites] == ["layers.0.self_attn"]
        assert [item.module for item in found.left_out] == ["layers.0.multihead_attn"]
        assert "cross-attention" in found.left_out[0].reason


def test_gpt2_is_read_transposed():
    built = GPT2()
    site = find_heads(built.model).sites[0]
    W = built.model.h[0].attn.c_attn.weight
    assert torch.equal(read_factors(site, named_parameters(built.model)).W_K[1], W[:, N + 16 : N + 32].T)


class OfOneHead(nn.Module):
    """A head that is a module of its own."""

    def __init__(self, width, head):
        super().__init__()
        self.key, self.query = nn.Linear(width, head, bias=False), nn.Linear(width, head, bias=False)


def test_modules_of_one_head_are_not_split_by_the_count_of_their_list():
    model = nn.Module()
    model.config = SimpleNamespace(n_heads=4)
    model.heads = nn.ModuleList(OfOneHead(32, 8) for _ in range(4))
    found = find_heads(model)
    assert [(site.n_heads, site.d_head) for site in found.sites] == [(1, 8)] * 4
    parameters = named_parameters(model)
    for site, module in zip(found.sites, model.heads, strict=True):
        assert torch.equal(read_factors(site, parameters).W_Q[0], module.query.weight)


def test_the_error_is_the_same_in_another_process():
    with pytest.raises(NoAttentionError) as raised:
        find_heads(nn.Linear(3, 3))
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
