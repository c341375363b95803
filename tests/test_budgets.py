"""KV budgets: the cut, the floor, the export, and the scores from a model."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headwatch.budgets import COMPRESSION, Budgets, DocumentScores, floored, kept_fractions
from headwatch.heads import find_heads
from headwatch.probe.documents import probe_batches
from headwatch.probe.lookback import look_back, measure_budgets

RNG = np.random.default_rng(0)
LAYERS, G, KEYS = 3, 2, 40


def test_one_cut_over_all_heads_by_brute_force():
    scores = [RNG.random((LAYERS, G, KEYS)) * RNG.random((LAYERS, G, 1)) for _ in range(3)]
    sinks = [np.arange(KEYS) < 2] * 3
    found = kept_fractions(scores, sinks)
    for i in (0, 30, 74, 90):
        expected = np.zeros((LAYERS, G))
        for document in scores:
            values = document.copy()
            values[:, :, :2] = np.inf
            count = round((1 - COMPRESSION[i]) * values.size)
            threshold = np.sort(values.ravel())[::-1][count - 1]
            expected += (values >= threshold).mean(-1) / 3 if np.isfinite(threshold) else found[i] / 3
        np.testing.assert_allclose(found[i], expected, atol=1e-9)


def test_fractions_have_the_mean_that_the_rate_asks_for():
    kept = kept_fractions([RNG.random((LAYERS, G, KEYS)) for _ in range(2)])
    assert kept.shape == (99, LAYERS, G)
    np.testing.assert_allclose(kept.mean((1, 2)), 1 - COMPRESSION, atol=0.5 / (LAYERS * G * KEYS) + 1e-9)
    assert (np.diff(kept, axis=0) <= 1e-12).all()


def test_sinks_are_kept_by_every_head_at_any_rate_that_has_room():
    scores = [np.stack([RNG.random((G, KEYS)) + layer for layer in range(LAYERS)])]
    kept = kept_fractions(scores, [np.arange(KEYS) == 0], compression=[0.9])
    assert (kept >= 1 / KEYS).all()


@pytest.mark.parametrize("alpha", [None, 0.0, 0.3, 1.0])
def test_floor_cap_and_mean(alpha):
    kept = kept_fractions([RNG.random((LAYERS, G, KEYS)) ** 3 * RNG.random((LAYERS, G, 1)) ** 4])
    filled = floored(kept, alpha=alpha)
    r = 1 - COMPRESSION
    share = np.where(r < 0.15, 0.5, 0.2) if alpha is None else alpha
    assert (filled <= 1).all()
    assert (filled >= (share * r)[:, None, None] - 1e-12).all()
    np.testing.assert_allclose(filled.mean((1, 2)), r, atol=1e-6)
    order = np.argsort(kept[50].ravel())
    assert (np.diff(filled[50].ravel()[order]) >= -1e-12).all()


def test_heads_that_keep_nothing_share_what_the_cap_leaves():
    kept = np.zeros((1, 1, 4))
    kept[0, 0, 0] = 1
    filled = floored(kept, [0.5], alpha=0.2)
    assert filled[0, 0, 0] == pytest.approx(1)
    np.testing.assert_allclose(filled[0, 0, 1:], 1 / 3, rtol=1e-6)


def test_documents_of_different_models_are_refused():
    with pytest.raises(ValueError, match=r"found \[\(2, 2\), \(3, 2\)\]"):
        kept_fractions([RNG.random((3, 2, 5)), RNG.random((2, 2, 5))])
    with pytest.raises(ValueError, match="found none"):
        kept_fractions([])


def test_export_is_prune_ratios_by_compression(tmp_path):
    documents = [
        DocumentScores(RNG.random((LAYERS, G, KEYS)), RNG.random((LAYERS, G, KEYS)), np.arange(KEYS) == 0)
        for _ in range(4)
    ]
    budgets = Budgets.from_documents(documents, {"model": "Tiny"})
    budgets.save(tmp_path / "budgets")
    ratios = np.load(tmp_path / "budgets" / "prune_ratios.npy")
    assert ratios.shape == (99, LAYERS, G)
    assert ratios.dtype == np.float32
    np.testing.assert_allclose(ratios.mean((1, 2)), COMPRESSION, atol=1e-5)
    described = json.loads((tmp_path / "budgets" / "budgets.json").read_text())
    assert (described["n_layers"], described["n_kv_heads"], described["n_documents"]) == (LAYERS, G, 4)
    again = Budgets.load(tmp_path / "budgets")
    np.testing.assert_array_equal(again.kept, budgets.kept)
    np.testing.assert_array_equal(again.gap(), budgets.gap())
    with pytest.raises(FileNotFoundError, match="Budgets need the model"):
        Budgets.load(tmp_path)


H, N, T = 4, 32, 24


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_heads, self.n_kv_heads = H, G
        self.q_proj, self.o_proj = nn.Linear(N, N), nn.Linear(N, N)
        self.k_proj, self.v_proj = nn.Linear(N, N * G // H), nn.Linear(N, N * G // H)

    def forward(self, x, mask):
        q = 4 * self.q_proj(x).unflatten(-1, (H, -1)).transpose(1, 2)
        k, v = (p(x).unflatten(-1, (G, -1)).transpose(1, 2) for p in (self.k_proj, self.v_proj))
        self.kept = q.detach(), k.detach()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, N)
        self.blocks = nn.ModuleList([Attention() for _ in range(2)])

    def forward(self, input_ids, attention_mask=None):
        x, mask = self.embed(input_ids), None
        if attention_mask is not None:
            mask = torch.ones(T, T, dtype=torch.bool).tril() & attention_mask.bool()[:, None, None]
        for block in self.blocks:
            x = x + block(x, mask)
        return x


@pytest.mark.parametrize("padding", [0, 6])
def test_scores_are_those_of_the_second_half_looking_back_at_the_first(padding):
    model, ids = Net(), torch.randint(1, 11, (3, T), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids}
    if padding:
        batch["attention_mask"] = (torch.arange(T) >= padding).long().expand(3, T)
    documents = look_back(model, find_heads(model), probe_batches(batch))
    half = padding + (T - padding) // 2
    kept = []
    model.blocks[0].register_forward_hook(lambda module, *_: kept.append(module.kept))
    with torch.no_grad():
        model(**batch)
    q, k = kept[0]
    scores = q.double() @ k.double().repeat_interleave(H // G, 1).transpose(-1, -2) * (N // H) ** -0.5
    see = torch.ones(T, T, dtype=torch.bool).tril() & (torch.arange(T) >= padding)
    A = scores.masked_fill(~see, -torch.inf).softmax(-1)
    for b, document in enumerate(documents):
        assert document.look_back.shape == (2, G, half - padding)
        assert document.sinks.tolist() == [True] + [False] * (half - padding - 1)
        for g in range(G):
            back = A[b, 2 * g : 2 * g + 2, half:, padding:half].amax((0, 1))
            np.testing.assert_allclose(document.look_back[0, g], back, rtol=1e-5)
            own = A[b, 2 * g : 2 * g + 2, padding:half, padding:half]
            counts = torch.arange(half - padding, 0, -1)
            np.testing.assert_allclose(document.reading[0, g], (own.sum(1) / counts).amax(0), rtol=1e-5)


def test_budgets_of_a_model_name_it():
    model, ids = Net(), torch.randint(1, 11, (5, T))
    budgets = measure_budgets(model, find_heads(model), probe_batches(ids))
    assert budgets.kept.shape == (99, 2, G)
    assert budgets.metadata["modules"] == ["blocks.0", "blocks.1"]
    assert budgets.metadata["n_documents"] == 5


def test_some_heads_only_are_refused():
    model = Net()
    with pytest.raises(ValueError, match=r"some heads only of blocks\.0"):
        look_back(model, find_heads(model, include=["L00.H01"]), [])
