"""Watching a plain loop, and the profile of a model in a notebook."""

import numpy as np
import pytest
import torch
from torch import nn

import headwatch
from headwatch.heads import NoAttentionError
from headwatch.notices import HeadwatchWarning


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(1, steps + 1):
        loss = model(torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(step))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, loss


def test_three_lines_in_a_plain_loop(tmp_path):
    model = encoder()
    with headwatch.Monitor(model, dirpath=tmp_path, every_n_train_steps=5, on_error="raise") as monitor:
        for step, loss in train(model, 12):
            monitor.step(step, loss=loss)
    run = headwatch.load(tmp_path)
    assert run.path == monitor.path
    assert run.steps() == [0, 1, 2, 4, 5, 8, 10, 12]
    assert run.complete
    assert (run.to_pandas().groupby("step").size() == 4).all()


def test_resumes_from_a_step(tmp_path):
    model = encoder()
    with headwatch.Monitor(model, dirpath=tmp_path, every_n_train_steps=5) as monitor:
        for step, _ in train(model, 12):
            monitor.step(step)
    again = headwatch.Monitor(model, dirpath=tmp_path, every_n_train_steps=5, run_id=monitor.run_id, resume_from=8)
    for step in range(9, 17):
        again.step(step)
    again.close()
    assert headwatch.load(tmp_path).steps() == [0, 1, 2, 4, 5, 8, 10, 15, 16]


def test_an_exception_in_the_loop_ends_the_run_as_failed(tmp_path):
    with pytest.raises(KeyError), headwatch.Monitor(encoder(), dirpath=tmp_path):
        raise KeyError("mine")
    assert headwatch.load(tmp_path).info["status"] == "failed"


def test_profile_of_a_model_equals_brute_force():
    model = encoder()
    table = headwatch.profile(model).to_pandas()
    weight = model.layers[1].self_attn.in_proj_weight.detach().double()
    W_Q, W_K = weight[8:16], weight[24:32]  # head 1 of the thirds [Q; K; V], 8 rows a head
    L = (W_K.T @ W_Q).numpy()
    row = table[(table.layer == 1) & (table["head"] == 1)].iloc[0]
    np.testing.assert_allclose(row.norm, np.linalg.norm(L))
    np.testing.assert_allclose(row.trace_ratio, np.trace(L) / np.linalg.norm(L))
    np.testing.assert_allclose(row.a, np.linalg.norm((L - L.T) / 2) ** 2 / np.linalg.norm(L) ** 2)
    np.testing.assert_allclose(row.stable_rank, (np.linalg.norm(L) / np.linalg.norm(L, 2)) ** 2)
    assert row.status == "structural"


def test_the_table_prints_and_converts():
    table = headwatch.profile(encoder())
    text = repr(table).splitlines()
    assert text[0].split()[:5] == ["head", "a", "b", "c", "d"]
    assert text[1].startswith("L00.H00")
    assert len(text) == 5
    assert len(table) == len(table.to_pandas()) == len(table.to_polars()) == 4


def test_a_model_without_attention_is_refused():
    with pytest.raises(NoAttentionError, match=r"What to do: give a batch, probe=batch: .*probe_fn=") as raised:
        headwatch.profile(nn.Linear(3, 3))
    assert "heads=[" not in str(raised.value)
    with pytest.raises(NoAttentionError, match=r"What to do: give a batch on which model\(batch\) runs .*probe_fn="):
        headwatch.profile(nn.Linear(3, 3), probe=torch.randn(4, 3, 3))


def messages(tmp_path, model, **settings):
    with headwatch.Monitor(model, dirpath=tmp_path, **settings) as monitor:
        pass
    return headwatch.load(monitor.path).info["messages"]


def test_heads_read_by_rule_are_said_once_with_the_remedy(tmp_path):
    with pytest.warns(HeadwatchWarning, match="2 of 2 attention modules were read by rule and not proven"):
        said = messages(tmp_path, encoder())
    assert [message for message in said if "read by rule" in message] == said
    assert len(said) == 1
    assert "probe=batch" in said[0]
    assert messages(tmp_path, encoder(), probe=torch.randn(4, 5, 16)) == []


def test_what_is_left_out_is_said(tmp_path):
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, batch_first=True), 1)
    with pytest.warns(HeadwatchWarning, match=r"left out: layers\.0\.multihead_attn: cross-attention"):
        messages(tmp_path, decoder)


class Head(nn.Module):
    """One head to a module, as in A. Karpathy's lectures."""

    def __init__(self):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(16, 4, bias=False) for _ in range(3))

    def forward(self, x):
        return (self.query(x) @ self.key(x).mT / 2).softmax(-1) @ self.value(x)


class ManyHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(4))

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], -1)


def test_modules_of_one_head_each_are_said_to_count_as_layers(tmp_path):
    with pytest.warns(HeadwatchWarning, match="of these 4 modules holds one head and counts as a layer of its own"):
        messages(tmp_path, ManyHeads(), probe=torch.randn(4, 6, 16))


def test_unknown_public_name():
    with pytest.raises(AttributeError, match=r"it has FormOptions, .*Monitor"):
        _ = headwatch.Montior


def test_with_probe_documents_heads_are_proven_and_signatures_measured(tmp_path):
    model = encoder()
    documents = torch.randn(6, 5, 16, generator=torch.Generator().manual_seed(2))
    with headwatch.Monitor(
        model, dirpath=tmp_path, every_n_train_steps=5, probe=documents, on_error="raise"
    ) as monitor:
        for step, loss in train(model, 6):
            monitor.step(step, loss=loss)
    run = headwatch.load(tmp_path)
    assert run.steps("profile") == run.steps("signature") == [0, 1, 2, 4, 5, 6]
    assert set(run.profile["status"].to_pylist()) == {"proven"}
    assert run.to_pandas("signature").n_eff.between(0.2, 1.001).all()
    assert set(headwatch.profile(model, probe=documents)["status"].to_pylist()) == {"proven"}


def test_a_loop_that_forgot_to_close_leaves_a_readable_run(tmp_path):
    monitor = headwatch.Monitor(encoder(), dirpath=tmp_path)
    del monitor
    run = headwatch.load(tmp_path)
    assert run.info["status"] == "failed"
    assert run.steps() == [0]


def test_fabric(tmp_path):
    fabric = pytest.importorskip("lightning_fabric", reason="Lightning Fabric is not installed").Fabric(
        accelerator="cpu"
    )
    torch.manual_seed(0)
    bare = encoder()
    model, optimizer = fabric.setup(bare, torch.optim.SGD(bare.parameters(), 0.1))
    documents = torch.randn(6, 5, 16, generator=torch.Generator().manual_seed(2))
    with headwatch.Monitor(
        model, dirpath=tmp_path, every_n_train_steps=3, probe=documents, on_error="raise"
    ) as monitor:
        for step in range(1, 5):
            loss = model(torch.randn(4, 6, 16)).square().mean()
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            monitor.step(step, loss=loss)
    run = headwatch.load(tmp_path)
    assert run.steps() == [0, 1, 2, 3, 4]
    assert set(run.profile["status"].to_pylist()) == {"proven"}
    assert [site["module"] for site in run.info["heads"]] == ["layers.0.self_attn", "layers.1.self_attn"]


def test_profile_of_a_state_dict_is_that_of_its_model():
    model = encoder()
    weights = headwatch.profile(model.state_dict(), n_heads=2).to_pandas()
    live = headwatch.profile(model).to_pandas()
    np.testing.assert_allclose(weights[["a", "b", "c", "d", "norm"]], live[["a", "b", "c", "d", "norm"]], rtol=1e-12)


def test_a_step_that_goes_back_is_said_and_left_out(tmp_path):
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, batch_first=True), 1)
    monitor = headwatch.Monitor(model, dirpath=tmp_path, early_steps=(), every_n_train_steps=1)
    monitor.step(5)
    with pytest.warns(HeadwatchWarning, match=r"step\(3\) was called after step\(5\)"):
        monitor.step(3)
    monitor.close()
    assert headwatch.load(monitor.path).steps() == [0, 5]
