"""Measuring signatures leaves training bit-identical: checkpointing, autocast, dropout, compiled code."""

import hashlib
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headwatch.heads import find_heads
from headwatch.probe.documents import probe_batches
from headwatch.probe.measure import SignatureMeasure

transformers = pytest.importorskip("transformers")
STEPS = 5
DOCUMENTS = torch.randint(40, (4, 12), generator=torch.Generator().manual_seed(5))


def build(checkpointing=None):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).train()
    if checkpointing is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
    return model


def fingerprint(model, optimizer):
    h = hashlib.sha256()
    for _, value in sorted(model.state_dict().items()):
        h.update(value.detach().float().numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        h.update(state["exp_avg_sq"].numpy().tobytes())
    h.update(torch.get_rng_state().numpy().tobytes())
    h.update(repr((random.getstate(), np.random.get_state())).encode())
    return h.hexdigest()


def train(model, call, probing, autocast, more=None):
    random.seed(0), np.random.seed(0), torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    measure = SignatureMeasure(model, find_heads(model), probe_batches({"input_ids": DOCUMENTS, **(more or {})}))
    losses, snapshots = [], []
    for step in range(STEPS):
        ids = torch.randint(40, (4, 12))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = call(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if probing:
            snapshots.append(measure.take(step)(step))
    return losses, fingerprint(model, optimizer), snapshots


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("checkpointing", [None, True, False])
def test_training_is_identical_with_dropout_and_checkpointing(checkpointing, autocast):
    plain, probed = build(checkpointing), build(checkpointing)
    losses, state, _ = train(plain, plain, False, autocast)
    probed_losses, probed_state, snapshots = train(probed, probed, True, autocast)
    assert probed_losses == losses
    assert probed_state == state
    assert len(snapshots) == STEPS
    assert np.isfinite(snapshots[-1].heads["n_eff"].to_numpy()).all()
    assert all(c.use_cache for c in [probed.config])


class Small(nn.Module):
    """A layer that compiles quickly."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.dropout = nn.Embedding(40, 16), nn.Dropout(0.2)
        self.n_heads = 2
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, input_ids, labels):
        x = self.dropout(self.embed(input_ids))
        q, k, v = (p(x).unflatten(-1, (2, 8)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        logits = self.o_proj(y.transpose(1, 2).flatten(2)) @ self.embed.weight.T
        return SimpleNamespace(loss=F.cross_entropy(logits.flatten(0, 1), labels.flatten()))


def test_a_compiled_model_is_measured_and_not_compiled_again():
    from torch._dynamo.testing import CompileCounter

    counts, runs = [], []
    for probing in (False, True):
        torch._dynamo.reset()
        counter, model = CompileCounter(), Small()
        compiled = torch.compile(model, backend=counter)
        runs.append(train(model, compiled, probing, False, {"labels": DOCUMENTS}))
        counts.append(counter.frame_count)
    torch._dynamo.reset()
    assert counts[0] == counts[1] > 0
    assert runs[0][:2] == runs[1][:2]
    assert np.isfinite(runs[1][2][-1].heads["n_eff"].to_numpy()).all()
