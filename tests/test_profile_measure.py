"""Which form is measured: biases, norm gain, rotary displacements, grouped queries, against dense matrices."""

import numpy as np
import pytest
import torch
from torch import nn

from headwatch.heads import find_heads, named_parameters
from headwatch.measure import ProfileMeasure
from headwatch.options import FormOptions
from headwatch.probe.documents import probe_forwards

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
TOKENS = torch.randint(0, 64, (8, 12), generator=torch.Generator().manual_seed(0))


def measured(model, **options):
    head_map = find_heads(model, probe=probe_forwards(model, TOKENS))
    measure = ProfileMeasure(head_map, lambda: named_parameters(model), options=FormOptions(**options), null=False)
    table = measure.take(0)(0).heads.to_pandas()
    assert set(table.status) == {"proven"}
    return table.set_index(["layer", "head", "displacement"])


def dense(W_Q, W_K):
    """(a, b, c, d), tr L/‖L‖ and stable rank from the whole matrix L = W_Kᵀ W_Q."""
    L = W_K.T @ W_Q
    S, A = (L + L.T) / 2, (L - L.T) / 2
    w = np.linalg.eigvalsh(S)
    alpha, beta = np.sort(np.clip(w, 0, None))[::-1], np.sort(np.clip(-w, 0, None))[::-1]
    parts = [(A**2).sum(), 2 * alpha @ beta, (np.clip(alpha - beta, 0, None) ** 2).sum()]
    parts.append((np.clip(beta - alpha, 0, None) ** 2).sum())
    square = (L**2).sum()
    return [*(np.array(parts) / square), np.trace(L) / square**0.5, square / np.linalg.norm(L, 2) ** 2]


def row_of(table, layer, head, d=0):
    return table.loc[(layer, head, d)][["a", "b", "c", "d", "trace_ratio", "stable_rank"]].to_numpy(float)


def array(tensor):
    return tensor.detach().double().numpy()


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4)
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.bias.normal_(0, 0.1)
            block.ln_1.weight.uniform_(0.5, 2)
    return model


def gpt2_head(model, layer, head):
    attention = model.transformer.h[layer].attn.c_attn
    weight, bias = array(attention.weight).T, array(attention.bias)
    rows = slice(8 * head, 8 * head + 8)
    return (weight[:32][rows], bias[:32][rows]), (weight[32:64][rows], bias[32:64][rows])


def test_biases_make_the_homogenised_form():
    model = gpt2()
    table = measured(model, biases=True)
    for layer, head in ((0, 0), (1, 3)):
        (W_Q, b_Q), (W_K, b_K) = gpt2_head(model, layer, head)
        expected = dense(np.c_[W_Q, b_Q], np.c_[W_K, b_K])
        np.testing.assert_allclose(row_of(table, layer, head), expected, atol=1e-9)
    assert set(table["flags"]) == {"with_biases"}


def test_norm_gain_is_folded_in_from_both_sides():
    model = gpt2()
    table = measured(model, norm_gain=True)
    for layer, head in ((0, 1), (1, 2)):
        (W_Q, _), (W_K, _) = gpt2_head(model, layer, head)
        g = array(model.transformer.h[layer].ln_1.weight)
        np.testing.assert_allclose(row_of(table, layer, head), dense(W_Q * g, W_K * g), atol=1e-9)
    assert set(table["flags"]) == {"norm_gain_folded_in"}


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return transformers.LlamaForCausalLM(config).apply(_rough)


def _rough(module):
    if isinstance(module, nn.Linear):
        module.weight.data.normal_(0, 0.2)


def rotation(d, n=8, theta=10000.0):
    """R(d) of Llama: coordinates i and i + n/2 turn together by d·θ^(−2i/n)."""
    R = np.zeros((n, n))
    for i in range(n // 2):
        angle = d * theta ** (-2 * i / n)
        R[i, i] = R[i + n // 2, i + n // 2] = np.cos(angle)
        R[i, i + n // 2], R[i + n // 2, i] = -np.sin(angle), np.sin(angle)
    return R


def test_rotary_displacements_give_one_profile_each_and_query_heads_share_keys():
    model = llama()
    table = measured(model, displacements=(0, 1, 5))
    assert len(table) == 2 * 4 * 3
    for layer, head, d in ((0, 0, 0), (0, 1, 1), (1, 2, 5), (1, 3, 5)):
        attention = model.model.layers[layer].self_attn
        W_Q = array(attention.q_proj.weight)[8 * head : 8 * head + 8]
        W_K = array(attention.k_proj.weight)[8 * (head // 2) : 8 * (head // 2) + 8]
        np.testing.assert_allclose(row_of(table, layer, head, d), dense(rotation(d) @ W_Q, W_K), atol=1e-6)
        assert table.loc[(layer, head, d)]["kv_head"] == head // 2


def test_displacements_are_checked():
    with pytest.raises(ValueError, match=r"displacements: expected whole numbers ≥ 0, found \(0, -1\)"):
        FormOptions(displacements=(0, -1))
