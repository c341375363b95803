"""What the training thread is spared: the work of a snapshot, and everything on steps without one."""

import sys
import time

import numpy as np
import pytest
import pytorch_lightning as pl
import scenarios
import torch

import headwatch
import headwatch.measure
from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor

WHEN = {"every_n_train_steps": 8, "early_steps": (), "on_error": "raise"}


def train(root, callbacks, model=None, steps=20):
    pl.seed_everything(3, verbose=False)
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        default_root_dir=root,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = model or scenarios.Net()
    trainer.fit(model, scenarios.data())
    return model


class Copies(pl.Callback):
    """The query and key weights of the first layer after every step."""

    def __init__(self):
        self.weights = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        attention = pl_module.blocks[0].attention
        self.weights[trainer.global_step] = [p.weight.detach().clone() for p in (attention.q_proj, attention.k_proj)]


def shares(W_Q, W_K):
    """a and b + c + d of L = W_KᵀW_Q from the dense matrix, in float64."""
    L = W_K.double().T @ W_Q.double()
    return float(((L - L.T) / 2).square().sum() / L.square().sum())


def test_results_are_filed_under_the_step_at_which_they_were_taken(tmp_path, monkeypatch):
    statistics, copies = headwatch.measure.statistics, Copies()

    def slow(*given, **more):
        time.sleep(0.1)  # training is many steps further by then
        return statistics(*given, **more)

    monkeypatch.setattr(headwatch.measure, "statistics", slow)
    train(tmp_path, [QKProfileMonitor(every_n_train_steps=3, early_steps=(), on_error="raise"), copies])
    rows = headwatch.load(tmp_path).to_pandas().set_index(["step", "layer", "head"])
    for step in (3, 6, 9, 12, 15, 18, 20):
        W_Q, W_K = copies.weights[step]
        for head in range(scenarios.HEADS):
            kv = head // 2
            expected = shares(W_Q[head * 8 : head * 8 + 8], W_K[kv * 8 : kv * 8 + 8])
            np.testing.assert_allclose(rows.loc[(step, 0, head)].a, expected, atol=1e-9)


@pytest.fixture
def calls_by_step(tmp_path):
    """Functions of headwatch that ran on the training thread, by optimizer step."""
    seen, step = {}, [0]

    class Between(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            step[0] = trainer.global_step

    def profile(frame, event, argument):
        if event == "call" and frame.f_globals.get("__name__", "").startswith("headwatch"):
            seen.setdefault(step[0], set()).add(frame.f_code.co_name)

    monitors = [QKProfileMonitor(**WHEN), MarginalAttentionMonitor(scenarios.probe(), **WHEN)]
    before = sys.getprofile()
    sys.setprofile(profile)  # this thread only
    try:
        train(tmp_path, [Between(), *monitors])
    finally:
        sys.setprofile(before)
    return seen


def test_a_step_without_a_snapshot_compares_two_integers(calls_by_step):
    due = {0, 8, 16, 20}
    for step in set(range(1, 20)) - due:
        assert calls_by_step[step] <= {"on_train_batch_start", "on_train_batch_end", "due", "state_key"}, step
    assert "take" in calls_by_step[8]


class NoSync(pl.Callback):
    """Fails where a value of a tensor is read while our hooks run on a step that is not due."""

    def __init__(self, monitor, monkeypatch):
        self.inside = False
        for name in ("item", "cpu", "tolist", "numpy", "__float__", "__int__", "__bool__", "to"):
            monkeypatch.setattr(torch.Tensor, name, self._guarded(name, getattr(torch.Tensor, name)))
        for name in ("on_train_batch_start", "on_train_batch_end"):
            setattr(monitor, name, self._watched(monitor, getattr(monitor, name)))

    def _guarded(self, name, original):
        def read(tensor, *given, **more):
            assert not self.inside, f"Tensor.{name} on a step without a snapshot"
            return original(tensor, *given, **more)

        return read

    def _watched(self, monitor, hook):
        def called(trainer, *given):
            watcher = monitor._watcher
            self.inside = watcher is not None and not watcher.due(trainer.global_step)
            try:
                hook(trainer, *given)
            finally:
                self.inside = False

        return called


def test_no_value_is_read_on_a_step_without_a_snapshot(tmp_path, monkeypatch):
    monitor = QKProfileMonitor(**WHEN)
    train(tmp_path, [NoSync(monitor, monkeypatch), monitor])
    assert headwatch.load(tmp_path).steps() == [0, 8, 16, 20]


class Hooks(pl.Callback):
    """Counts hooks on modules and tensors while training runs."""

    def __init__(self):
        self.found = set()

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        from torch.nn.modules import module as global_hooks

        tables = [getattr(m, name) for m in pl_module.modules() for name in vars(m) if name.endswith("_hooks")]
        tables += [getattr(global_hooks, name) for name in vars(global_hooks) if name.startswith("_global_")]
        tables += [p._backward_hooks or {} for p in pl_module.parameters()]
        self.found.add(sum(len(table) for table in tables if isinstance(table, dict)))


def test_no_hooks_while_training_and_none_after_three_fits(tmp_path):
    hooks = Hooks()
    monitors = [QKProfileMonitor(**WHEN), MarginalAttentionMonitor(scenarios.probe(), **WHEN)]
    model = scenarios.Net()
    for fit in range(3):
        train(tmp_path / str(fit), [*monitors, hooks], model, steps=9)
    assert hooks.found == {0}
    assert [len(headwatch.load(tmp_path / str(fit)).steps()) for fit in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("watched", [False, True])
def test_compiled_graphs_stay_whole(tmp_path, watched):
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    model = scenarios.Net()
    model.blocks.compile(backend="eager", fullgraph=True)  # a break in the graph would raise
    monitors = [QKProfileMonitor(**WHEN), MarginalAttentionMonitor(scenarios.probe(), **WHEN)] if watched else []
    train(tmp_path, monitors, model)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    torch._dynamo.reset()
