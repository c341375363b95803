"""The measurement of signatures: tables, summary, flags, and what it leaves behind."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headwatch.heads import find_heads
from headwatch.marginal import column_statistics, consistency, dispersion, drift, drift_noise_floor, signatures
from headwatch.metrics import SIGNATURE_KEYS
from headwatch.notices import HeadwatchWarning
from headwatch.probe.calling import ProbeError
from headwatch.probe.capture import capture
from headwatch.probe.documents import probe_batches
from headwatch.probe.measure import SignatureMeasure

H, N, T, D = 4, 32, 20, 6


class Attention(nn.Module):
    def __init__(self, hidden_kernel=False):
        super().__init__()
        self.n_heads = H
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(N, N) for _ in range(4))
        self.hidden_kernel = hidden_kernel

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (H, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.hidden_kernel:  # computed where no torch function is seen
            with torch._C.DisableTorchFunction():
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(3 * q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self, hidden_kernel=False, shared=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, N)
        first = Attention()
        self.blocks = nn.ModuleList([first, first if shared else Attention(hidden_kernel)])
        self.dropout = nn.Dropout(0.5)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + self.dropout(block(x))
        return x


IDS = torch.randint(1, 11, (D, T), generator=torch.Generator().manual_seed(0))


def measure_of(model, ids=IDS, include=(), **options):
    return SignatureMeasure(model, find_heads(model, include=include), probe_batches(ids), **options)


def expected(model, ids=IDS):
    """Signatures (documents, heads) of both layers from the queries and keys that the model makes itself."""
    calls = []
    with torch.no_grad(), capture(model.eval(), lambda call: calls.append((call.q, call.k, call.scale))):
        model(ids)
    found = [signatures(column_statistics(q, k, scale=scale, is_causal=True)) for q, k, scale in calls]
    return {key: np.concatenate([f[key].numpy() for f in found], 1) for key in SIGNATURE_KEYS}


def test_table_has_mean_and_deviation_over_documents():
    model = Net().train()
    table = measure_of(model).take(7)(7).heads.to_pandas()
    assert model.training
    assert table["step"].tolist() == [7] * 8
    assert list(zip(table["layer"], table["head"], strict=True)) == [(layer, h) for layer in range(2) for h in range(H)]
    for key, values in expected(model).items():
        centre = values.max(0) if key == "max_logit" else values.mean(0)
        np.testing.assert_allclose(table[key], centre, rtol=1e-5, err_msg=key)
        np.testing.assert_allclose(
            table[f"{key}_std"], np.sqrt(((values - values.mean(0)) ** 2).mean(0)), rtol=1e-4, atol=1e-9, err_msg=key
        )


def test_several_batches_are_more_documents():
    whole = measure_of(Net()).take(0)(0)
    parts = measure_of(Net(), [IDS[:2], IDS[2:]]).take(0)(0)
    for key in SIGNATURE_KEYS:
        np.testing.assert_allclose(parts.heads[key], whole.heads[key], rtol=1e-6)
    assert parts.summary == pytest.approx(whole.summary, rel=1e-4)


def test_summary_has_consistency_beside_dispersion_and_drift_beside_its_floor():
    model = Net()
    measure = measure_of(model)
    first = measure.take(0)(0)
    before = expected(model)
    for key in SIGNATURE_KEYS:
        assert first.summary[f"{key}_consistency"] == pytest.approx(consistency(before[key]), rel=1e-4)
    assert first.summary["n_eff_dispersion"] == pytest.approx(dispersion(before["n_eff"].mean(0)), rel=1e-4)
    assert "n_eff_drift" not in first.summary
    assert measure.take(1)(1).summary["n_eff_drift"] == pytest.approx(0, abs=1e-9)
    with torch.no_grad():
        model.blocks[0].q_proj.weight.normal_()
    second = measure.take(2)(2)
    after = expected(model)
    moved = drift(after["n_eff"].mean(0), before["n_eff"].mean(0))
    assert second.summary["n_eff_drift"] == pytest.approx(moved, rel=1e-3)
    floor = drift_noise_floor(D, consistency(after["n_eff"]))
    assert second.summary["n_eff_noise_floor"] == pytest.approx(floor, rel=1e-3)


def test_drift_goes_on_after_a_resume():
    model = Net()
    first = measure_of(model).take(3)(3)
    with torch.no_grad():
        model.blocks[1].k_proj.weight.mul_(4)
    resumed = measure_of(model)
    resumed.restore(first.heads)
    before = np.array(first.heads["n_eff"].to_pylist())
    now = resumed.take(4)(4)
    assert now.summary["n_eff_drift"] == pytest.approx(drift(now.heads["n_eff"].to_pylist(), before), rel=1e-6)


def test_watched_heads_alone():
    model = Net()
    whole = measure_of(model).take(0)(0).heads.to_pandas()
    some = measure_of(model, include=["L01.H02", "L00.H01"]).take(0)(0).heads.to_pandas()
    assert list(zip(some["layer"], some["head"], strict=True)) == [(0, 1), (1, 2)]
    for key in SIGNATURE_KEYS:
        np.testing.assert_allclose(some[key], whole[key].to_numpy()[[1, 6]], rtol=1e-5)


def test_attention_that_cannot_be_seen_is_empty_flagged_and_named():
    model = Net(hidden_kernel=True)
    measure = measure_of(model)
    with pytest.warns(HeadwatchWarning, match=r"attention of blocks\.1 was not captured at step 5: no attention call"):
        finish = measure.take(5)
    snapshot = finish(5)
    table = snapshot.heads.to_pandas()
    assert table["n_eff"].isna().tolist() == [False] * H + [True] * H
    assert ["not_captured" in flags for flags in table["flags"]] == [False] * H + [True] * H
    assert np.isfinite(snapshot.summary["n_eff_consistency"])
    assert set(snapshot.tokens["layer"].to_pylist()) == {0}


def test_a_shared_module_gives_the_mean_over_its_calls():
    model = Net(shared=True)
    table = measure_of(model).take(0)(0).heads.to_pandas()
    assert len(table) == H
    values = expected(model)["n_eff"].mean(0)
    np.testing.assert_allclose(table["n_eff"], (values[:H] + values[H:]) / 2, rtol=1e-5)


def test_special_tokens_are_ignored_keys():
    ids = IDS.clone()
    ids[:, 9] = 0
    model = Net()
    table = measure_of(model, ids, special_tokens=[0]).take(0)(0).heads.to_pandas()
    plain = measure_of(model, ids).take(0)(0).heads.to_pandas()
    assert (table["sink_share"] > plain["sink_share"]).all()
    np.testing.assert_allclose(table["row_entropy"], plain["row_entropy"])


def test_token_signals_are_the_mean_lift_of_a_layer():
    model = Net()
    tokens = measure_of(model, token_documents=2).take(0)(0).tokens.to_pandas()
    assert sorted(tokens["document"].unique()) == [0, 1]
    assert len(tokens) == 2 * 2 * T
    calls = []
    with torch.no_grad(), capture(model.eval(), lambda call: calls.append((call.q, call.k, call.scale))):
        model(IDS)
    q, k, scale = calls[1]
    lift = column_statistics(q, k, scale=scale, is_causal=True).lift.mean(1)
    found = tokens[(tokens.layer == 1) & (tokens.document == 1)].sort_values("position")["lift"]
    np.testing.assert_allclose(found, lift[1], rtol=1e-5)


def test_an_error_in_the_forward_leaves_no_trace():
    model = Net().train()

    def failing(model, batch):
        model(batch)
        raise ZeroDivisionError

    measure = measure_of(model, probe_fn=failing)
    state = torch.get_rng_state()
    with pytest.raises(ProbeError, match="ZeroDivisionError") as raised:
        measure.take(0)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


def test_windows_of_a_document_are_averaged():
    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Net()

        def forward(self, ids):
            return self.inner(ids.reshape(-1, T // 2))

    model = Windows()
    table = measure_of(model).take(0)(0).heads.to_pandas()
    halves = expected(model.inner, IDS.reshape(-1, T // 2))["peak_mean"]
    documents = halves.reshape(D, 2, -1).mean(1)
    np.testing.assert_allclose(table["peak_mean_std"], documents.std(0), rtol=1e-4)
