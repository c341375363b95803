"""Reading factors: rows, biases, gains, displacement, subsets, products of several weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from heads_zoo import GPT2, LLAMA, B, H, N, NanoAttention, T, noise, on_noise, stack
from torch import nn

from headwatch.heads import copy_factors, find_heads, named_parameters, read_factors
from headwatch.heads.headmap import Gain, Projection, Rope, Rows, Site, Term

PARAMETERS = {
    "W": torch.arange(24.0).view(6, 4),
    "down": torch.arange(8.0).view(2, 4),
    "up": torch.arange(12.0).view(6, 2),
    "b": torch.arange(6.0),
    "gain": torch.tensor([2.0, 3.0]),
    "norm": torch.tensor([1.0, 10.0, 100.0, 1000.0]),
}
Q, K = np.array([[0, 1], [2, 3]]), np.array([[4, 5]])


def site(W_Q=None, W_K=None, **more):
    plain = Projection((Term((Rows("W", index=Q),)),)), Projection((Term((Rows("W", index=K),)),))
    given = {"layer": 0, "module": "attn", "d_model": 4, "d_head": 2, "n_heads": 2, "n_kv_heads": 1, "kv_head": (0, 0)}
    return Site(
        **{**given, "heads": (0, 1), "status": "proven", "W_Q": W_Q or plain[0], "W_K": W_K or plain[1], **more}
    )


def test_key_rows_are_expanded_to_query_heads_on_reading_only():
    copied = copy_factors(site(), PARAMETERS)
    factors = copied.factors()
    W = PARAMETERS["W"]
    assert copied.key.terms[0][0].shape == (1, 2, 4)
    assert torch.equal(factors.W_Q, W[:4].view(2, 2, 4))
    assert torch.equal(factors.W_K, W[4:].expand(2, 2, 4))


def test_a_copy_no_longer_follows_the_weights():
    parameters = {name: value.clone() for name, value in PARAMETERS.items()}
    copied = copy_factors(site(), parameters)
    parameters["W"].zero_()
    assert copied.factors().W_Q.abs().sum() > 0


def test_a_rank_may_hold_some_heads_only():
    factors = read_factors(site(heads=(1,)), PARAMETERS)
    assert torch.equal(factors.W_Q, PARAMETERS["W"][None, 2:4])
    assert torch.equal(factors.W_K, PARAMETERS["W"][None, 4:])


def test_biases_are_a_last_column():
    biased = Projection((Term((Rows("W", index=Q),)),), bias=Rows("b", "flat", Q))
    factors = read_factors(site(W_Q=biased), PARAMETERS, bias=True)
    assert torch.equal(factors.W_Q[..., -1], torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    assert torch.equal(factors.W_K[..., -1], torch.zeros(2, 2))


def test_gains_scale_rows_and_columns():
    gained = Projection((Term((Rows("W", index=Q),)),), gain=Gain("gain", np.array([0, 1]), offset=1.0))
    one = site(W_Q=gained, norm=Gain("norm"))
    W = PARAMETERS["W"][:4].view(2, 2, 4)
    rows = torch.tensor([3.0, 4.0])[None, :, None]
    assert torch.equal(read_factors(one, PARAMETERS).W_Q, W * rows)
    assert torch.equal(read_factors(one, PARAMETERS, qk_gain=False, norm_gain=True).W_Q, W * PARAMETERS["norm"])


def test_a_layer_norm_takes_the_mean_over_rows_away():
    centred = Projection((Term((Rows("W", index=Q),)),), centred=True)
    W = PARAMETERS["W"][:4].view(2, 2, 4)
    assert torch.equal(read_factors(site(W_Q=centred), PARAMETERS).W_Q, W - W.mean(1, keepdim=True))


def test_terms_are_summed_products():
    low_rank = Term((Rows("up", index=Q), Rows("down")), scale=0.5, gain=Gain("gain"))
    summed = Projection((Term((Rows("W", index=Q),)), low_rank))
    expected = PARAMETERS["W"] + 0.5 * PARAMETERS["up"] @ torch.diag(PARAMETERS["gain"]) @ PARAMETERS["down"]
    assert torch.equal(read_factors(site(W_Q=summed), PARAMETERS).W_Q, expected[:4].view(2, 2, 4).double())


def test_rows_of_several_weights_lie_under_one_another():
    both = Projection((Term((Rows("down", index=np.array([[0, 2], [1, 7]]), more=("W",)),)),))
    stacked = torch.cat([PARAMETERS["down"], PARAMETERS["W"]])
    assert torch.equal(read_factors(site(W_Q=both), PARAMETERS).W_Q, stacked[[0, 2, 1, 7]].view(2, 2, 4))


@pytest.mark.parametrize("pattern", ["half", "interleaved"])
def test_a_displacement_turns_the_query(pattern):
    """k_sᵀ q_t with both rotated is k · R(t − s) q."""
    rope = Rope(pattern, 0, 2, (0.7,))
    u, v = noise(1, 4), noise(2, 4)
    factors = read_factors(site(rope=rope), PARAMETERS, displacement=3)

    def turned(x, position):
        c, s = np.cos(0.7 * position), np.sin(0.7 * position)
        return torch.stack([x[0] * c - x[1] * s, x[1] * c + x[0] * s])

    W = PARAMETERS["W"].view(3, 2, 4)
    for head in range(2):
        score = turned(W[2] @ u, 5) @ turned(W[head] @ v, 8)
        assert torch.allclose(u @ factors.W_K[head].T @ factors.W_Q[head] @ v, score, rtol=1e-4)


def test_displacement_without_positions_changes_nothing_and_without_measurement_is_refused():
    plain = read_factors(site(), PARAMETERS)
    assert torch.equal(read_factors(site(), PARAMETERS, displacement=3).W_Q, plain.W_Q)
    with pytest.raises(ValueError, match="displacement=3 needs measured rotary positions"):
        read_factors(site(status="structural"), PARAMETERS, displacement=3)


def test_low_precision_is_widened_exactly():
    parameters = {name: value.bfloat16() for name, value in PARAMETERS.items()}
    copied = copy_factors(site(), parameters)
    assert copied.query.terms[0][0].dtype == torch.bfloat16
    assert copied.eps == torch.finfo(torch.bfloat16).eps
    assert torch.equal(copied.factors().W_Q, parameters["W"][:4].view(2, 2, 4).float())


def test_a_parameter_that_is_gone_is_named():
    with pytest.raises(KeyError, match="'W' of a watched head is gone"):
        read_factors(site(), {})


def test_the_form_gives_the_models_own_scores():
    """(u·L·v, biases and all) is the score that the model softmaxes, through LayerNorm's output."""
    model = stack(NanoAttention, depth=1)
    (found,) = find_heads(model, probe=on_noise(model, B, T, N)).sites
    factors = read_factors(found, named_parameters(model), bias=True)
    x = torch.cat([model[0].ln(noise(1, T, N)), torch.ones(T, 1)], dim=1)
    q, k, _ = (y.view(T, H, 16).transpose(0, 1) for y in model[0].attn.c_attn(x[:, :N]).split(N, dim=1))
    predicted = torch.einsum("si,hni,hnj,tj->hts", x, factors.W_K, factors.W_Q, x)
    assert torch.allclose(predicted, q @ k.mT, atol=1e-5)


def test_the_gain_of_the_norm_in_front_is_found_and_folded():
    model = stack(NanoAttention)
    model[1].ln.weight.data += noise(3, N)
    found = find_heads(model, probe=on_noise(model, B, T, N)).sites[1]
    parameters = named_parameters(model)
    assert found.norm.parameter == "1.ln.weight"
    plain, folded = (read_factors(found, parameters, norm_gain=on) for on in (False, True))
    assert torch.equal(folded.W_K, plain.W_K * model[1].ln.weight)


@pytest.mark.parametrize("build", [GPT2, LLAMA])
def test_every_read_follows_training(build):
    built = build()
    found = find_heads(built.model, probe=built.probe).sites[0]
    parameters = named_parameters(built.model)
    before = read_factors(found, parameters).W_Q
    with torch.no_grad():
        for parameter in built.model.parameters():
            parameter += 1.0
    assert torch.allclose(read_factors(found, named_parameters(built.model)).W_Q, before + 1.0)


def test_names_are_those_without_wrappers():
    model = nn.Sequential(nn.Linear(2, 2))
    wrapped = nn.ModuleDict({"net": torch.compile(model)})
    assert list(named_parameters(wrapped)) == ["net.0.weight", "net.0.bias"]


def test_a_parametrised_weight_stands_under_its_own_name():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    assert torch.equal(named_parameters(model)["0.weight"], model[0].weight)
