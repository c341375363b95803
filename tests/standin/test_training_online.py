"""A real Trainer with both monitors against the stand-in: what the server holds equals the store."""

from __future__ import annotations

import os
import re
import signal
import warnings

import numpy as np
import pytest

from headwatch.dashboard import keys_named, patterns_named, sections_for
from headwatch.metrics import HEADLINE_KEYS, SIGNATURE_HEADLINE
from headwatch.run import load
from headwatch.sinks.pictures import PICTURE_KEY
from standin.png import png
from standin.processes import HAS_PROC, children

torch = pytest.importorskip("torch")
pl = pytest.importorskip("pytorch_lightning")
callbacks = pytest.importorskip("headwatch.callbacks")
functional = torch.nn.functional

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]
LAYERS, HEADS = 2, 2


class Attention(torch.nn.Module):
    """Causal self-attention with separate projections."""

    def __init__(self, width=16):
        super().__init__()
        self.n_heads = HEADS
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (torch.nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        return x + self.o_proj(
            functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


class Tiny(pl.LightningModule):
    """A causal language model; ``log_loss=False`` leaves W&B to headwatch alone."""

    def __init__(self, log_loss=True):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 16)
        self.layers = torch.nn.ModuleList([Attention() for _ in range(LAYERS)])
        self.head = torch.nn.Linear(16, 11)
        self.log_loss = log_loss
        self.after = {}

    def forward(self, x):
        hidden = self.embed(x)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)

    def training_step(self, batch, index):
        loss = functional.cross_entropy(self(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        if self.log_loss:
            self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        self.after.get(self.trainer.global_step, lambda: None)()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


def documents():
    return torch.randint(0, 11, (64, 12), generator=torch.Generator().manual_seed(0))


def monitors():
    every = {"every_n_train_steps": 4, "early_steps": (1,)}
    return [
        callbacks.QKProfileMonitor(**every),
        callbacks.MarginalAttentionMonitor(probe=documents()[:4], **every),
    ]


def fit(run, folder, model, steps, ckpt_path=None):
    """Train; returns the callbacks' store."""
    checkpoints = pl.callbacks.ModelCheckpoint(folder / "ckpt", every_n_train_steps=4, save_top_k=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_steps=steps,
            accelerator="cpu",
            logger=pl.loggers.WandbLogger(experiment=run),
            callbacks=[*monitors(), checkpoints],
            default_root_dir=folder,
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, torch.utils.data.DataLoader(documents(), batch_size=4), ckpt_path=ckpt_path)
    return folder / "headwatch" / run.id


def ours(server, run):
    return [row for row in server.run(run.id).history if "headwatch/global_step" in row]


def assert_rows_equal_store(rows, store, steps):
    """Every per-head number of every row, and the medians, against the Parquet parts."""
    stored = load(store)
    assert [row["headwatch/global_step"] for row in rows] == steps
    for kind, keys in (("profile", HEADLINE_KEYS), ("signature", SIGNATURE_HEADLINE)):
        table = stored.profile if kind == "profile" else stored.signature
        for row in rows:
            records = [r for r in table.to_pylist() if r["step"] == row["headwatch/global_step"]]
            assert len(records) == LAYERS * HEADS
            for key in keys:
                here = {f"heads/{key}/L{r['layer']:02}.H{r['head']:02}": r[key] for r in records if r[key] is not None}
                assert {name: row.get(name) for name in here} == here
                if here:
                    assert row[f"headsum/{key}/median"] == pytest.approx(np.median(list(here.values())))


def assert_files_equal_store(server, store):
    artifact = list(server.artifacts.values())[-1]
    there = server.artifact_files(artifact)
    here = {
        p.relative_to(store).as_posix(): p.read_bytes() for p in store.rglob("*") if p.suffix in (".json", ".parquet")
    }
    assert there == {name: data for name, data in here.items() if not name.startswith("superseded")}


def test_both_monitors_online(server, start, tmp_path):
    run = start()
    store = fit(run, tmp_path, Tiny(), 10)
    run.finish()
    rows = ours(server, run)
    assert_rows_equal_store(rows, store, [0, 1, 4, 8, 10])
    assert_files_equal_store(server, store)
    stored = server.run(run.id)
    for row in rows:
        assert stored.files[row[PICTURE_KEY]["path"]].startswith(b"\x89PNG")
    losses = [row["trainer/global_step"] for row in stored.history if "train_loss" in row]
    assert losses == list(range(10))
    assert [row["trainer/global_step"] for row in rows] == [0, 0, 3, 7, 10]
    table = ("median_drift", "share_beyond_null", "heads_rank_one", "overhead", "heads")
    assert {f"headwatch/{name}" for name in table} <= set(stored.summary)
    assert_dashboard_names_only({key for row in rows for key in row})


def assert_dashboard_names_only(logged):
    sections = sections_for(LAYERS)
    assert keys_named(sections) - logged == set()
    for pattern in patterns_named(sections):
        assert any(re.search(pattern, key) for key in logged), pattern


@pytest.fixture
def quick_pictures(monkeypatch):
    monkeypatch.setattr("headwatch.figures.composite.composite_png", lambda table, trails, **_: png(len(trails)))


def test_resume_online(server, start, tmp_path, quick_pictures):
    first = start()
    fit(first, tmp_path, Tiny(), 8)
    first.finish()
    again = start(id=first.id, resume="must")
    store = fit(again, tmp_path, Tiny(), 14, ckpt_path=tmp_path / "ckpt" / "epoch=0-step=8.ckpt")
    again.finish()
    last = {row["headwatch/global_step"]: row for row in ours(server, again)}  # the step of the checkpoint comes twice
    assert_rows_equal_store([last[step] for step in sorted(last)], store, [0, 1, 4, 8, 12, 14])
    assert_files_equal_store(server, store)


def test_a_network_lost_in_training(server, start, tmp_path, quick_pictures):
    run = start()
    model = Tiny()
    model.after = {2: server.down, 9: server.up}
    store = fit(run, tmp_path, model, 10)
    run.finish()
    assert_rows_equal_store(ours(server, run), store, [0, 1, 4, 8, 10])
    assert_files_equal_store(server, store)


@pytest.mark.skipif(not HAS_PROC, reason="finds wandb-core through /proc")
def test_a_killed_wandb_core_does_not_end_training(server, start, tmp_path, quick_pictures):
    run = start()
    model = Tiny(log_loss=False)
    model.after = {2: lambda: [os.kill(pid, signal.SIGKILL) for pid in children("wandb-core")]}
    store = fit(run, tmp_path, model, 20)
    stored = load(store)
    assert stored.complete
    assert stored.steps("profile") == [0, 1, 4, 8, 12, 16, 20]
    assert any("W&B" in message for message in stored.info["messages"])
