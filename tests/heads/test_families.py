"""Every family: heads proven, and factors equal to W_Q and W_K written down by hand."""

from __future__ import annotations

import pytest
import torch
from families_table import DOCS, row
from heads_zoo import FAMILIES

from headwatch.heads import copy_factors, find_heads, named_modules, named_parameters, read_factors


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_proven_and_equals_brute_force(family):
    built = FAMILIES[family]()
    found = find_heads(built.model, probe=built.probe)

    assert [site.status for site in found.sites] == ["proven"] * built.sites
    assert [site.layer for site in found.sites] == list(range(built.sites))
    assert {site.layout for site in found.sites} == {built.layout}
    assert {frozenset(site.flags) for site in found.sites} == {frozenset(built.flags)}
    assert {site.n_kv_heads for site in found.sites} == {built.n_kv_heads}
    parameters, modules = named_parameters(built.model), dict(named_modules(built.model))
    for site in found.sites:
        W_Q, W_K = (W.detach().double() for W in built.expected(modules[site.module]))
        expected = W_K.mT @ W_Q
        for factors in (read_factors(site, parameters), copy_factors(site, parameters).factors()):
            form = factors.W_K.double().mT @ factors.W_Q.double()
            assert form.shape == expected.shape
            assert torch.allclose(form, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    assert row(family, found) in DOCS.read_text()


def test_the_docs_name_every_family():
    named = [line.split("|")[1].strip() for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    assert named[1:] == list(FAMILIES)
