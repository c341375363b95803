"""DeepSpeed ZeRO-3: the documented gather call, with DeepSpeed itself where it is installed, else with a stand-in."""

import importlib.util
import sys
import types
from contextlib import contextmanager

import numpy as np
import pytest
import scenarios
import torch
from launching import launch, results
from torch import nn

import headwatch
from headwatch.heads import find_heads, named_parameters
from headwatch.measure import ProfileMeasure
from headwatch.parallel import Source
from headwatch.parallel.discovery import discover
from headwatch.parallel.layout import layout_of
from headwatch.probe.documents import probe_batches
from headwatch.probe.measure import SignatureMeasure

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed; the stand-in is tested below"
)


@needs_deepspeed
def test_numbers_equal_one_process_and_training_is_bit_identical(tmp_path):
    launch(["zero3"], 2, tmp_path)
    for rank in results(tmp_path, "zero3"):
        assert rank["plain"] == rank["watched"]
    net = scenarios.Net()
    net.load_state_dict(torch.load(tmp_path / "zero3" / "weights.pt", weights_only=True))
    profile, signature = torch.load(tmp_path / "zero3" / "snapshots.pt", weights_only=True)
    alone = headwatch.profile(net).to_pandas()
    for key in ("a", "b", "c", "d", "stable_rank", "theta_distance"):
        np.testing.assert_allclose(profile[key], alone[key], atol=1e-10)
    seen = SignatureMeasure(net, find_heads(net), probe_batches(scenarios.probe())).take(0)(0).heads.to_pandas()
    for key in ("n_eff", "row_entropy", "sink_share"):
        np.testing.assert_allclose(signature[key], seen[key], atol=1e-6)


@pytest.fixture
def taken_away(monkeypatch):
    """A model whose weights only stand inside ``deepspeed.zero.GatheredParameters``, and the calls of it."""
    net = scenarios.Net()
    whole, calls = {}, []
    for number, parameter in enumerate(net.parameters()):
        parameter.ds_id, parameter.ds_shape = number, parameter.shape
        whole[number], parameter.data = parameter.data, torch.empty(0)

    @contextmanager
    def gathered(parameters, modifier_rank=0):
        assert modifier_rank is None  # nothing is written back
        calls.append(len(parameters))
        for parameter in parameters:
            parameter.data = whole[parameter.ds_id]
        yield
        for parameter in parameters:
            parameter.data = torch.empty(0)

    deepspeed = types.ModuleType("deepspeed")
    deepspeed.zero = types.SimpleNamespace(GatheredParameters=gathered)
    monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)
    return net, calls


def test_heads_are_found_by_shape_and_read_one_site_at_a_time(taken_away):
    net, calls = taken_away
    assert layout_of(net) == "zero3"
    found = discover(net, None, lambda probe: find_heads(net, probe=probe), None)
    assert [site.module for site in found.sites] == [f"blocks.{i}.attention" for i in range(scenarios.LAYERS)]
    assert calls == []
    assert all(isinstance(p, nn.Parameter) and p.numel() == 0 for p in net.parameters())  # put back as they were
    parameters = lambda: named_parameters(net)  # noqa: E731
    measure = ProfileMeasure(found, parameters, null=False, source=Source(found, parameters))
    rows = measure.take(0)(0).heads.to_pandas()
    assert calls == [4] * scenarios.LAYERS  # two weights and two biases at a time
    alone = headwatch.profile(scenarios.Net()).to_pandas()
    np.testing.assert_allclose(rows[list("abcd")], alone[list("abcd")], atol=1e-12)
