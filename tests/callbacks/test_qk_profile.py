"""The profile callback in a real Trainer."""

import json
import pickle

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from tiny import Tiny, batches, fingerprint, trainer
from torch import nn

import headwatch
from headwatch.callbacks import QKProfileMonitor
from headwatch.callbacks._session import Session
from headwatch.heads import NoAttentionError
from headwatch.saved_weights import load_weights

EARLY = [0, 1, 2, 4, 8]


def fit(root, callback=None, model=None, loader=None, **options):
    pl.seed_everything(3)
    model = model or Tiny()
    run = trainer(root, [callback] if callback else [], **options)
    run.fit(model, loader or batches(), ckpt_path=None)
    return model, run


def dense_profile(W_Q, W_K):
    """π(L) from the N × N matrix, in float64."""
    L = W_K.double().T @ W_Q.double()
    S, A = (L + L.T) / 2, (L - L.T) / 2
    w = torch.linalg.eigvalsh(S).numpy()
    alpha, beta = np.sort(np.clip(w, 0, None))[::-1], np.sort(np.clip(-w, 0, None))[::-1]
    total = float((L**2).sum())
    c, d = np.clip(alpha - beta, 0, None), np.clip(beta - alpha, 0, None)
    return np.array([float((A**2).sum()), 2 * float(alpha @ beta), float(c @ c), float(d @ d)]) / total


def test_the_last_snapshot_is_the_profile_of_the_trained_weights(tmp_path):
    model, _ = fit(tmp_path, QKProfileMonitor(on_error="raise"))
    rows = headwatch.load(tmp_path).to_pandas()
    last = rows[rows.step == 12]
    assert len(last) == 4
    for row in last.itertuples():
        attention = model.blocks[row.layer].attention
        rows_of_head = slice(row.head * 8, row.head * 8 + 8)
        expected = dense_profile(
            attention.q_proj.weight[rows_of_head].detach(), attention.k_proj.weight[rows_of_head].detach()
        )
        np.testing.assert_allclose([row.a, row.b, row.c, row.d], expected, atol=1e-9)
        assert row.module == f"blocks.{row.layer}.attention"
        assert row.status == "proven"


def test_training_is_bit_identical_with_dropout_and_validation(tmp_path):
    options = {"max_steps": 50, "val_check_interval": 5, "limit_val_batches": 2}
    pl.seed_everything(3)

    def run(callbacks, root):
        pl.seed_everything(3)
        model = Tiny()
        it = trainer(root, callbacks, **options)
        it.fit(model, batches(), batches())
        return fingerprint(model, it)

    without = run([], tmp_path / "without")
    with_it = run([QKProfileMonitor(every_n_train_steps=3, on_error="raise")], tmp_path / "with")
    assert len(without[1]) == 50
    assert without == with_it
    assert len(headwatch.load(tmp_path / "with").steps()) > 15


class TestSteps:
    def test_early_and_every_n_and_the_end(self, tmp_path):
        fit(tmp_path, QKProfileMonitor(every_n_train_steps=5, on_error="raise"), max_steps=13)
        assert headwatch.load(tmp_path).steps() == [0, 1, 2, 4, 5, 8, 10, 13]

    def test_under_accumulation_each_optimizer_step_counts_once(self, tmp_path):
        model, _ = fit(tmp_path, QKProfileMonitor(every_n_train_steps=5, on_error="raise"), accumulate_grad_batches=3)
        run = headwatch.load(tmp_path)
        assert run.steps() == [0, 1, 2, 4, 5, 8, 10, 12]
        rows = run.to_pandas()
        assert (rows.groupby("step").size() == 4).all()
        loss = rows[rows.step == 4].loss.iloc[0]
        np.testing.assert_allclose(loss, model.losses[11], rtol=1e-6)  # not divided by 3

    def test_two_optimizers_make_the_step_jump(self, tmp_path):
        class Two(Tiny):
            automatic_optimization = False

            def training_step(self, batch, batch_idx):
                loss = self._loss(batch)
                first, second = self.optimizers()
                first.zero_grad(), second.zero_grad()
                self.manual_backward(loss)
                first.step(), second.step()

            def configure_optimizers(self):
                return [torch.optim.SGD(self.blocks.parameters(), 0.1), torch.optim.SGD(self.head.parameters(), 0.1)]

        fit(tmp_path, QKProfileMonitor(every_n_train_steps=5, on_error="raise"), model=Two(), max_steps=24)
        assert headwatch.load(tmp_path).steps() == [0, 2, 4, 6, 8, 10, 16, 20, 24]

    def test_x_is_lightnings_own(self, tmp_path):
        logged = []

        class Logger(pl.loggers.CSVLogger):
            def log_metrics(self, metrics, step=None):
                logged.append((step, metrics.get("headwatch/global_step")))

        fit(tmp_path, QKProfileMonitor(every_n_train_steps=5, on_error="raise"), logger=Logger(tmp_path))
        ours = [(x, step) for x, step in logged if step is not None]
        assert ours == [(0, 0), (0, 1), (1, 2), (3, 4), (4, 5), (7, 8), (9, 10), (12, 12)]


class TestResume:
    def test_goes_on_without_gap_or_duplicate(self, tmp_path):
        checkpoint = ModelCheckpoint(tmp_path / "ckpt", save_top_k=-1, every_n_train_steps=4)
        pl.seed_everything(3)
        trainer(tmp_path, [QKProfileMonitor(5), checkpoint], enable_checkpointing=True, max_steps=12).fit(
            Tiny(), batches()
        )
        first = headwatch.load(tmp_path)
        assert first.steps() == [0, 1, 2, 4, 5, 8, 10, 12]
        [path] = (tmp_path / "ckpt").glob("*step=8.ckpt")
        torch.load(path, weights_only=True)  # our state is plain
        trainer(tmp_path, [QKProfileMonitor(5)], max_steps=22).fit(Tiny(), batches(), ckpt_path=path)
        run = headwatch.load(tmp_path)
        assert run.path == first.path
        assert run.steps() == [0, 1, 2, 4, 5, 8, 10, 15, 16, 20, 22]
        assert (run.to_pandas().groupby("step").size() == 4).all()
        kept = sorted(p.name for p in (run.path / "superseded" / "profile").iterdir())
        assert kept == ["step=000000010.parquet", "step=000000012.parquet"]
        rows = run.to_pandas().set_index(["step", "layer", "head"])
        start, end = (rows.loc[s][list("abcd")].to_numpy() for s in (0, 22))
        np.testing.assert_allclose(rows.loc[22].drift, np.linalg.norm(end - start, axis=1), atol=1e-12)

    def test_one_callback_in_three_fits_makes_three_runs(self, tmp_path):
        callback = QKProfileMonitor(5)
        for _ in range(3):
            fit(tmp_path, callback, max_steps=3)
        assert len(list((tmp_path / "headwatch").iterdir())) == 3

    def test_the_same_trainer_goes_on_in_the_same_run(self, tmp_path):
        callback = QKProfileMonitor(5)
        model, run = fit(tmp_path, callback, max_steps=3)
        run.fit_loop.epoch_loop.max_steps = 7
        run.fit(model, batches())
        assert headwatch.load(tmp_path).steps() == [0, 1, 2, 3, 4, 5, 7]


class TestRunJson:
    def test_says_what_the_run_was(self, tmp_path):
        fit(tmp_path, QKProfileMonitor(5))
        info = json.loads((headwatch.load(tmp_path).path / "run.json").read_text())
        assert info["status"] == "finished"
        assert info["model"] == {
            "class": "Tiny",
            "n_parameters": info["model"]["n_parameters"],
            "n_layers": 2,
            "n_heads": 2,
            "n_kv_heads": 2,
            "d_model": 16,
            "d_head": 8,
        }
        assert info["config"]["optimizer"]["name"] == "AdamW"
        assert info["config"]["optimizer"]["lr"] == 0.05
        assert info["config"]["seed"] == 3
        assert info["settings"]["profile"]["every_n_train_steps"] == 5
        assert info["null"]["shapes (d_model, d_head)"] == [[16, 8]]
        assert info["null"]["heads beyond it at the start"] == 0
        assert [site["module"] for site in info["heads"]] == ["blocks.0.attention", "blocks.1.attention"]

    def test_an_exception_ends_the_run_as_failed(self, tmp_path):
        class Breaks(Tiny):
            def training_step(self, batch, batch_idx):
                if self.global_step == 6:
                    raise RuntimeError("boom")
                return super().training_step(batch, batch_idx)

        with pytest.raises(RuntimeError, match="boom"):
            fit(tmp_path, QKProfileMonitor(5), model=Breaks())
        run = headwatch.load(tmp_path)
        assert run.info["status"] == "failed"
        assert run.steps() == [0, 1, 2, 4, 5]
        assert not run.is_live


def test_weight_averaging_flags_the_last_snapshot(tmp_path):
    pl.seed_everything(3)
    averaging = pytest.importorskip("pytorch_lightning.callbacks.weight_averaging")  # Lightning 2.6
    trainer(tmp_path, [averaging.WeightAveraging(), QKProfileMonitor(5)]).fit(Tiny(), batches())
    rows = headwatch.load(tmp_path).to_pandas()
    assert set(rows[rows.step == 12]["flags"]) == {"averaged_weights:WeightAveraging"}
    assert set(rows[rows.step == 8]["flags"]) == {""}


def test_frozen_layers_are_measured_and_marked(tmp_path):
    model = Tiny()
    model.blocks[0].requires_grad_(False)
    fit(tmp_path, QKProfileMonitor(5, on_error="raise"), model=model)
    rows = headwatch.load(tmp_path).to_pandas()
    assert set(rows[rows.layer == 0]["flags"]) == {"frozen"}
    assert rows[rows.layer == 0].groupby("head").a.nunique().eq(1).all()
    assert rows[rows.layer == 1].groupby("head").a.nunique().gt(5).all()


class Poison(pl.Callback):
    """Puts a NaN into one query head just before the snapshot of step 5."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 5:
            with torch.no_grad():
                pl_module.blocks[1].attention.q_proj.weight[0, 0] = float("nan")


def test_a_head_that_turns_nan_is_isolated(tmp_path):
    pl.seed_everything(3)
    trainer(tmp_path, [Poison(), QKProfileMonitor(5, on_error="raise")], max_steps=5).fit(Tiny(), batches())
    rows = headwatch.load(tmp_path).to_pandas().query("step == 5").set_index(["layer", "head"])
    assert rows.loc[(1, 0)].isna()[["a", "stable_rank", "theta_distance", "drift", "beyond_null"]].all()
    assert rows.drop((1, 0)).beyond_null.notna().all()
    assert rows["flags"].to_dict() == {(0, 0): "", (0, 1): "", (1, 0): "nan", (1, 1): ""}
    assert rows.drop((1, 0)).a.notna().all()


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"every_n_train_steps": 0}, "every_n_train_steps: expected a whole number"),
            ({"metrics": ["stable_rnk"]}, "unknown profile metric 'stable_rnk'.*stable_rank"),
            ({"max_overhead": 0}, "max_overhead: expected a share"),
            ({"on_error": "ignore"}, "on_error: expected 'warn' or 'raise'"),
            ({"include": "L03.*"}, "expected lists of patterns"),
            ({"name": "../x"}, "name: expected letters"),
            ({"displacements": [-1]}, "displacements"),
            ({"heads": [{}], "include": ["L00.*"]}, "Use one"),
        ],
    )
    def test_bad_settings_at_construction(self, settings, words):
        with pytest.raises(ValueError, match=words):
            QKProfileMonitor(**settings)

    def test_no_attention(self, tmp_path):
        class Plain(Tiny):
            def __init__(self):
                super().__init__()
                self.blocks = nn.Linear(16, 16)

        with pytest.raises(NoAttentionError):
            fit(tmp_path, QKProfileMonitor(), model=Plain())

    def test_two_alike(self, tmp_path):
        with pytest.raises(RuntimeError, match="more than one stateful callback of type `QKProfileMonitor`"):
            trainer(tmp_path, [QKProfileMonitor(), QKProfileMonitor(every_n_train_steps=5)])
        session = Session(tmp_path)
        session.join("profile", {}, (), True)
        with pytest.raises(ValueError, match=r"two headwatch monitors are called 'profile'.*name="):
            session.join("profile", {}, (), True)

    def test_unwritable_directory(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match="dirpath="):
            fit(tmp_path, QKProfileMonitor(dirpath=str(tmp_path / "file")))


def test_two_monitors_told_apart_by_name(tmp_path):
    pl.seed_everything(3)
    pair = [QKProfileMonitor(5), QKProfileMonitor(4, early_steps=(), name="biased", biases=True)]
    trainer(tmp_path, pair).fit(Tiny(), batches())
    run = headwatch.load(tmp_path)
    assert run.monitors == ["profile", "profile-biased"]
    assert run.steps("profile-biased") == [0, 4, 8, 12]
    assert run.info["settings"]["profile-biased"]["biases"]
    assert set(run.table("profile-biased")["flags"].to_pylist()) == {"with_biases"}
    assert set(run.profile["flags"].to_pylist()) == {""}


def test_raw_weights_are_kept_beside_the_profile(tmp_path):
    model, _ = fit(tmp_path, QKProfileMonitor(5, save_weights=True, on_error="raise"))
    kept = sorted((headwatch.load(tmp_path).path / "profile_weights").iterdir())
    assert [path.name for path in kept][-1] == "step=000000012.safetensors"
    assert len(kept) == len(headwatch.load(tmp_path).steps())
    factors = load_weights(kept[-1])[1]
    attention = model.blocks[1].attention
    assert torch.equal(factors.W_Q.flatten(0, 1), attention.q_proj.weight)
    assert torch.equal(factors.W_K.flatten(0, 1), attention.k_proj.weight)


def test_pickles_for_spawned_processes():
    callback = pickle.loads(pickle.dumps(QKProfileMonitor(7, name="x")))
    assert (callback.every_n_train_steps, callback.state_key) == (7, "QKProfileMonitor-x")


@pytest.mark.parametrize("fn", ["validate", "test"])
def test_validating_alone_measures_nothing(tmp_path, fn):
    class Tested(Tiny):
        test_step = Tiny.validation_step

    getattr(trainer(tmp_path, [QKProfileMonitor()]), fn)(Tested(), batches(), verbose=False)
    assert not (tmp_path / "headwatch").exists()
