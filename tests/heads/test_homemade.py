"""Home-made architectures that no rule was written for: proven where they are bilinear, refused by name where not."""

from __future__ import annotations

import heads_homemade as own
import numpy as np
import pytest
import torch

from headwatch.heads import NoAttentionError, find_heads, named_parameters, read_factors


def probe(model, dtype=torch.float32, batch=4):
    def run(seed):
        return model(torch.randn(batch, 9, own.N, dtype=dtype, generator=torch.Generator().manual_seed(seed)))

    return [lambda: run(1), lambda: run(2)]


def forms(model, site):
    factors = read_factors(site, named_parameters(model))
    return factors.W_K.mT @ factors.W_Q


@pytest.mark.parametrize("cls", [own.Odd, own.Differential, own.Shared])
def test_bilinear_heads_are_proven(cls):
    torch.manual_seed(0)
    model = cls()
    found = find_heads(model, probe=probe(model))

    (site,) = found.sites
    W_Q, W_K = model.expected()
    assert site.status == "proven"
    assert torch.equal(forms(model, site), W_K.mT @ W_Q)


def test_norms_as_functions_give_the_numerator_and_tiled_key_heads_their_own_order():
    torch.manual_seed(0)
    model = own.OneByOne()
    (site,) = find_heads(model, probe=probe(model, torch.float64)).sites

    W_Q, W_K = model.expected()
    assert site.flags == ("qk_norm",)
    assert site.kv_head == (0, 1, 0, 1)
    assert torch.equal(forms(model, site), W_K.mT @ W_Q)


def test_partial_rotary_in_the_middle_of_a_head_is_measured():
    torch.manual_seed(0)
    model = own.Odd()
    rope = find_heads(model, probe=probe(model)).sites[0].rope

    assert (rope.pairing, rope.start, rope.stop) == ("interleaved", 2, 10)
    assert np.allclose(rope.frequencies, 50.0 ** (-np.arange(4) / 4), rtol=1e-6)


def test_positions_that_start_elsewhere_have_the_same_frequencies():
    torch.manual_seed(0)
    model = own.Shared()
    (site,) = find_heads(model, probe=probe(model, batch=1)).sites

    assert {"rope", "tied_qk"} <= set(site.flags)
    assert np.allclose(site.rope.frequencies, 50.0 ** (-np.arange(6) / 6), rtol=1e-6)


def test_heads_that_are_modules_of_their_own_are_one_layer_each():
    torch.manual_seed(0)
    model = own.Lecture()
    found = find_heads(model, probe=probe(model))

    assert [site.module for site in found.sites] == [f"heads.{i}" for i in range(own.H)]
    for site, head in zip(found.sites, model.heads, strict=True):
        assert torch.equal(forms(model, site)[0], head.key.weight.T @ head.query.weight)


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (own.TwoLayerQuery, "not proven"),
        (own.Featured, "scaled differently from token to token"),
        (own.Mixed, "tokens are mixed"),
        (own.Linear, "no softmax attention"),
    ],
)
def test_what_is_not_bilinear_is_refused_by_name(cls, why):
    torch.manual_seed(0)
    model = cls()
    with pytest.raises(NoAttentionError, match=why):
        find_heads(model, probe=probe(model))


class Packed(torch.nn.Module):
    """A quantised layer: integers and a scale per row, unpacked in an autograd function of its own."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, codes, scale):
            return x @ (codes.to(x.dtype) * scale).T

    def __init__(self, linear):
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x):
        return self.Product.apply(x, self.weight, self.scale)


def test_quantised_projections_are_measured_and_proven():
    torch.manual_seed(0)
    model = own.Shared()
    model.qk = Packed(torch.nn.Linear(own.N, own.N))
    (site,) = find_heads(model, probe=probe(model)).sites

    assert site.status == "proven"
    assert {"measured", "frozen"} <= set(site.flags)
    W = (model.qk.weight.float() * model.qk.scale).view(own.H, own.n, own.N)
    assert torch.allclose(forms(model, site), W.mT @ W, atol=1e-6)


@pytest.mark.parametrize("parametrise", ["weight_norm", "low rank"])
def test_parametrised_weights_are_read_with_their_present_value(parametrise):
    class LowRank(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.A, self.B = (torch.nn.Parameter(torch.randn(*shape)) for shape in ((3, own.N), (own.N, 3)))

        def forward(self, W):
            return W + 0.1 * self.B @ self.A

    torch.manual_seed(0)
    model = own.Shared()
    if parametrise == "weight_norm":
        torch.nn.utils.parametrizations.weight_norm(model.qk)
    else:
        torch.nn.utils.parametrize.register_parametrization(model.qk, "weight", LowRank())
    (site,) = find_heads(model, probe=probe(model)).sites
    with torch.no_grad():
        for parameter in model.qk.parameters():
            parameter += 0.1

    W = model.qk.weight.view(own.H, own.n, own.N)
    assert site.status == "proven"
    assert "frozen" not in site.flags
    assert torch.allclose(forms(model, site), W.mT @ W, rtol=1e-4, atol=1e-6)


def test_a_projection_written_as_a_sum_is_measured():
    class Slow(torch.nn.Linear):
        def forward(self, x):
            return (x.unsqueeze(-2) * self.weight).sum(-1) + self.bias

    torch.manual_seed(0)
    model = own.Shared()
    model.qk = Slow(own.N, own.N)
    (site,) = find_heads(model, probe=probe(model)).sites
    W = model.qk.weight.view(own.H, own.n, own.N)
    assert "measured" in site.flags
    assert torch.allclose(forms(model, site), W.mT @ W, atol=1e-5)
