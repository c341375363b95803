"""Training with the probe equals training without it, bit for bit."""

import hashlib
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from headwatch.probe.quiet import quiet_probe


class Nasty(nn.Module):
    """Everything that a naive eval/no_grad/train probe disturbs."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(use_cache=True, text_config=SimpleNamespace(use_cache=True))
        self.embed = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.frozen = nn.BatchNorm1d(8).eval()
        self.dropout = nn.Dropout(0.3)
        self.out = nn.Linear(8, 1)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("late", None)
        self.count, self.table, self.train_calls, self.seen_cache = 0, None, 0, []

    def train(self, mode=True):
        self.train_calls += 1
        super().train(mode)
        self.frozen.training = False
        return self

    def forward(self, x):
        self.calls += 1
        self.calls.data.add_(0.5)
        self.count += 1
        self.seen_cache = [*self.seen_cache[-1:], self.config.use_cache]
        if self.table is None:
            self.table = torch.randn(8) * 0.01
            self.late = torch.randn(8) * 0.01
        scale = 1 + 0.01 * (random.random() + np.random.rand() + torch.rand(()).item()) + 0.001 * self.count
        if self.training:
            self.frozen.running_mean.data.mul_(1.01)
        h = self.dropout(self.frozen(self.norm(self.embed(x)))) * scale + self.table + self.late
        return self.out(h.relu()) + 0.001 * self.calls


def digest(model, optimizer):
    h = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        h.update(name.encode())
        h.update(value.detach().numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        h.update(state["exp_avg"].numpy().tobytes())
    h.update(torch.get_rng_state().numpy().tobytes())
    h.update(repr(random.getstate()).encode())
    h.update(repr(np.random.get_state()).encode())
    return h.hexdigest()


def train(probe, place="after", autocast=False, steps=20):
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    model = Nasty()
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            x = torch.randn(16, 6)
            if place == "before":
                probe(model, x)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            if place == "inside":
                probe(model, x)
        loss.backward()
        if place == "between":
            probe(model, x)
        optimizer.step()
        optimizer.zero_grad()
        if place == "after":
            probe(model, x)
        losses.append(loss.item())
    return losses, digest(model, optimizer), model


def quietly(model, x):
    with quiet_probe(model):
        model(x)


def nothing(model, x):
    pass


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("place", ["before", "inside", "between", "after"])
def test_twenty_steps_are_identical(place, autocast):
    losses, state, model = train(nothing, place, autocast)
    probed_losses, probed_state, probed = train(quietly, place, autocast)
    assert probed_losses == losses
    assert probed_state == state
    assert probed.train_calls == model.train_calls == 1
    assert probed.count == model.count == 20


def test_a_naive_probe_is_seen_by_this_proof():
    def naive(model, x):
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()

    assert train(naive)[0] != train(nothing)[0]


def _raise(_output):
    raise ZeroDivisionError


def test_an_exception_inside_leaves_no_trace_either():
    def failing(model, x):
        with pytest.raises(ZeroDivisionError), quiet_probe(model):
            _raise(model(x))

    losses, state, _ = train(nothing)
    assert train(failing)[:2] == (losses, state)
    assert torch.is_grad_enabled()


def test_inside_everything_evaluates_and_no_cache_is_kept():
    model = Nasty().train()
    flags = {name: module.training for name, module in model.named_modules()}
    with quiet_probe(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        assert not model.config.use_cache
        assert not model.config.text_config.use_cache
        model(torch.randn(3, 6))
        assert model.table is not None
    assert {name: module.training for name, module in model.named_modules()} == flags
    assert model.config.use_cache
    assert model.config.text_config.use_cache
    assert model.table is None
    assert model.late is None


def test_a_buffer_that_did_not_change_is_not_written():
    model = Nasty().train()
    versions = {name: b._version for name, b in model.named_buffers()}
    with quiet_probe(model):
        pass
    assert {name: b._version for name, b in model.named_buffers()} == versions


def test_a_probe_that_touches_gradients_is_refused():
    model = Nasty().train()
    model(torch.randn(4, 6)).sum().backward()
    grads = [p.grad for p in model.parameters()]
    with pytest.raises(RuntimeError, match="no backward and no zero_grad"), quiet_probe(model):
        model.zero_grad()
    assert all(p.grad is grad for p, grad in zip(model.parameters(), grads, strict=True))


def test_a_compiled_model_is_not_compiled_again():
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 1)).train()
    model = torch.compile(inner, backend=counter)
    x = torch.randn(4, 6)
    model(x).sum().backward()
    compiled = counter.frame_count
    assert compiled > 0
    for _ in range(3):
        with quiet_probe(model):
            model(x)
            inner(x)
            assert not inner[1].training
        assert inner[1].training
        model(x).sum().backward()
    assert counter.frame_count == compiled
    torch._dynamo.reset()


def test_cuda_random_state_is_kept():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.manual_seed(0)
    torch.rand(3, device="cuda")
    before = torch.cuda.get_rng_state()
    with quiet_probe(nn.Linear(2, 2)):
        torch.rand(3, device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), before)
