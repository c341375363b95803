"""The signature callback in a real Trainer."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from tiny import CONTEXT, VOCABULARY, Tiny, batches, fingerprint, trainer
from torch.utils.data import DataLoader

import headwatch
from headwatch.budgets import COMPRESSION
from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor
from headwatch.heads import find_heads
from headwatch.metrics import ROLE_KEYS
from headwatch.notices import HeadwatchWarning
from headwatch.probe.documents import probe_batches
from headwatch.probe.lookback import measure_budgets
from headwatch.role_measure import repeated_documents

DOCUMENTS = torch.randint(0, VOCABULARY, (6, CONTEXT), generator=torch.Generator().manual_seed(1))


def fit(root, callbacks, val=None, **options):
    pl.seed_everything(3)
    model = Tiny()
    run = trainer(root, callbacks, **options)
    run.fit(model, batches(), val)
    return model, run


def attention_of(model, layer, documents):
    """A[b, h, q, k] of one layer, from the model's own weights, in float64."""
    model = model.double().eval()
    x = model.embed(documents)
    for block in model.blocks[:layer]:
        x = block(x)
    h = model.blocks[layer].norm(x)
    attention = model.blocks[layer].attention
    q, k = (p(h).unflatten(-1, (2, 8)).transpose(1, 2) for p in (attention.q_proj, attention.k_proj))
    scores = q @ k.mT / 8**0.5
    future = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1).detach().numpy()


def test_the_last_snapshot_is_the_attention_of_the_trained_model(tmp_path):
    model, _ = fit(tmp_path, [MarginalAttentionMonitor(probe=DOCUMENTS, on_error="raise")])
    rows = headwatch.load(tmp_path).to_pandas("signature").query("step == 12").set_index(["layer", "head"])
    for layer in range(2):
        A = attention_of(model, layer, DOCUMENTS)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.where(A > 0, A * np.log(A), 0).sum(-1).mean(-1)  # over queries
        sink = A[..., 0].sum(-1) / CONTEXT
        peak = A.max(-2)[..., 1:].mean(-1)
        for head in range(2):
            row = rows.loc[(layer, head)]
            np.testing.assert_allclose(row.row_entropy, entropy[:, head].mean(), rtol=1e-5)
            np.testing.assert_allclose(row.sink_share, sink[:, head].mean(), rtol=1e-5)
            np.testing.assert_allclose(row.peak_mean, peak[:, head].mean(), rtol=1e-5)
            np.testing.assert_allclose(row.row_entropy_std, entropy[:, head].std(), rtol=1e-4)


@pytest.mark.parametrize("probe", ["documents", "validation"])
def test_training_is_bit_identical(tmp_path, probe):
    options = {"max_steps": 50, "val_check_interval": 5, "limit_val_batches": 2}

    def run(root, callbacks):
        pl.seed_everything(3)
        tokens = torch.randint(0, VOCABULARY, (16, CONTEXT + 1))
        val = DataLoader(tokens, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(9))
        model = Tiny()
        it = trainer(root, callbacks, **options)
        it.fit(model, batches(), val)
        return fingerprint(model, it)

    documents = DOCUMENTS if probe == "documents" else 2
    monitors = [
        QKProfileMonitor(every_n_train_steps=7, on_error="raise"),
        MarginalAttentionMonitor(probe=documents, every_n_train_steps=3, on_error="raise"),
    ]
    assert run(tmp_path / "without", []) == run(tmp_path / "with", monitors)
    assert len(headwatch.load(tmp_path / "with").steps("signature")) > 15


@pytest.mark.parametrize("probe", ["list of documents", "loader of T + 1 tokens"])
def test_documents_as_people_keep_them(tmp_path, probe):
    class Short(Tiny):
        def forward(self, tokens):
            if tokens.shape[1] > CONTEXT:
                raise RuntimeError("longer than the context")
            return super().forward(tokens)

    pl.seed_everything(3)
    documents = list(DOCUMENTS) if probe == "list of documents" else batches()
    monitors = [QKProfileMonitor(5, on_error="raise"), MarginalAttentionMonitor(documents, 4, on_error="raise")]
    trainer(tmp_path, monitors, max_steps=2).fit(Short(), batches())
    run = headwatch.load(tmp_path)
    assert set(run.profile["status"].to_pylist()) == {"proven"}
    assert run.to_pandas("signature").n_eff.notna().all()


def test_both_monitors_share_one_run(tmp_path):
    monitors = [QKProfileMonitor(5, on_error="raise"), MarginalAttentionMonitor(DOCUMENTS, 4, on_error="raise")]
    fit(tmp_path, monitors)
    run = headwatch.load(tmp_path)
    assert run.steps("profile") == [0, 1, 2, 4, 5, 8, 10, 12]
    assert run.steps("signature") == [0, 4, 8, 12]
    assert set(run.info["settings"]) == {"profile", "signature"}
    keys = set(run.summary["key"].to_pylist())
    assert {"n_eff_consistency", "n_eff_dispersion", "n_eff_drift", "n_eff_noise_floor"} <= keys
    assert set(run.tokens["layer"].to_pylist()) == {0, 1}


def test_an_untrained_decoder_attends_evenly(tmp_path):
    fit(tmp_path, [MarginalAttentionMonitor(DOCUMENTS, on_error="raise")], max_steps=1)
    rows = headwatch.load(tmp_path).to_pandas("signature").query("step == 0")
    assert rows.n_eff.between(0.9, 1.0001).all()


class TestBudgets:
    def test_are_written_at_the_end_of_fit_and_are_those_of_the_trained_model(self, tmp_path):
        model, _ = fit(tmp_path, [MarginalAttentionMonitor(DOCUMENTS, budgets=True, on_error="raise")])
        (folder,) = tmp_path.rglob("budgets")
        expected = measure_budgets(model, find_heads(model), probe_batches(DOCUMENTS))
        ratios = np.load(folder / "prune_ratios.npy")
        assert ratios.shape[0] == 99
        np.testing.assert_allclose(ratios, expected.prune_ratios(), atol=1e-6)
        np.testing.assert_allclose(ratios.mean((1, 2)), COMPRESSION, atol=0.02)
        assert (folder / "budgets.png").read_bytes().startswith(b"\x89PNG")
        (said,) = [text for text in headwatch.load(tmp_path).info["messages"] if "budgets" in text]
        assert f"on {len(DOCUMENTS)} documents; 40 at least" in said

    @pytest.mark.filterwarnings("ignore::headwatch.notices.HeadwatchWarning")
    def test_a_failure_costs_the_budgets_alone(self, tmp_path, monkeypatch):
        def fails(*given, **named):
            raise RuntimeError("no memory left")

        monkeypatch.setattr("headwatch.callbacks.marginal_attention.measure_budgets", fails)
        fit(tmp_path, [MarginalAttentionMonitor(DOCUMENTS, budgets=True)])
        run = headwatch.load(tmp_path)
        assert run.complete
        assert run.steps("signature")[-1] == 12
        assert any(
            "KV budgets could not be measured at the end of fit: no memory left" in m for m in run.info["messages"]
        )
        assert not list(tmp_path.rglob("budgets"))


class TestRoles:
    def test_scores_lie_beside_the_signatures(self, tmp_path):
        model, _ = fit(tmp_path, [MarginalAttentionMonitor(DOCUMENTS, 4, roles=True, on_error="raise")])
        rows = headwatch.load(tmp_path).to_pandas("signature")
        batch, period = repeated_documents(probe_batches(DOCUMENTS))
        assert period == CONTEXT // 2
        assert torch.equal(batch[:, :period], batch[:, period:])
        assert set(batch.unique().tolist()) <= set(DOCUMENTS.unique().tolist())
        last = rows[rows.step == 12].set_index(["layer", "head"])
        distances = {"previous_token": (1, 1), "duplicate_token": (period, period), "induction": (period - 1, period)}
        for layer in range(2):
            A = attention_of(model, layer, batch)
            for role, (distance, first) in distances.items():
                expected = np.mean([A[:, :, q, q - distance] for q in range(first, CONTEXT)], axis=(0, 1))
                np.testing.assert_allclose([last.loc[(layer, head), role] for head in (0, 1)], expected, rtol=1e-5)

    def test_training_is_bit_identical(self, tmp_path):
        plain, _ = fit(tmp_path / "plain", [])
        watched, _ = fit(tmp_path / "watched", [MarginalAttentionMonitor(DOCUMENTS, 4, roles=True, budgets=True)])
        assert plain.losses == watched.losses
        assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))

    def test_without_them_the_columns_are_empty(self, tmp_path):
        fit(tmp_path, [MarginalAttentionMonitor(DOCUMENTS, 4, on_error="raise")])
        assert headwatch.load(tmp_path).to_pandas("signature")[list(ROLE_KEYS)].isna().all(axis=None)

    def test_documents_too_short_are_refused_before_training(self, tmp_path):
        with pytest.raises(ValueError, match=r"roles: expected probe documents of 8 tokens or more"):
            fit(tmp_path, [MarginalAttentionMonitor(DOCUMENTS[:, :6], roles=True)])


class TestRefusals:
    def test_no_validation_loader(self, tmp_path):
        with pytest.raises(ValueError, match=r"no probe documents: .* no validation dataloader. Pass documents"):
            fit(tmp_path, [MarginalAttentionMonitor()])
        assert not list(tmp_path.rglob("run.json")), "a run that never began left a folder"

    @pytest.mark.parametrize("probe", [None, 0, -1])
    def test_no_documents(self, probe):
        with pytest.raises(ValueError, match=r"probe: expected documents .*found"):
            MarginalAttentionMonitor(probe=probe)

    def test_stride(self):
        with pytest.raises(ValueError, match=r"query_stride: expected a whole number"):
            MarginalAttentionMonitor(DOCUMENTS, query_stride=0)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (torch.randint(0, VOCABULARY, (2, CONTEXT)) + 10 * VOCABULARY, "int64 of shape"),  # ids past the embedding
        (torch.rand(2, CONTEXT), "float32 of shape"),
        ("a text", "str without a tensor"),
    ],
)
def test_a_probe_that_does_not_fit_is_an_error_before_the_first_step(tmp_path, wrong, word):
    model = Tiny()
    with pytest.raises(ValueError, match=f"probe: the model could not run the probe .{word}.*probe_fn="):
        trainer(tmp_path, [QKProfileMonitor(5), MarginalAttentionMonitor(wrong, 4)]).fit(model, batches())
    assert model.losses == []


@pytest.mark.filterwarnings("ignore::headwatch.notices.HeadwatchWarning")
def test_a_probe_that_fails_later_never_stops_training(tmp_path):
    calls = iter(range(100))

    def probe_fn(module, batch):
        if next(calls):  # the trial before the first step goes through
            raise RuntimeError("no memory left")
        return module(batch)

    model, _ = fit(tmp_path, [QKProfileMonitor(5), MarginalAttentionMonitor(DOCUMENTS, 4, probe_fn=probe_fn)])
    assert len(model.losses) == 12
    run = headwatch.load(tmp_path)
    assert run.steps("profile") == [0, 1, 2, 4, 5, 8, 10, 12]
    assert run.steps("signature") == []
    assert any("the signature monitor failed at step 0" in text for text in run.info["messages"])
    assert any("failed 3 times in a row, last at step 8" in text for text in run.info["messages"])
    assert model.training


def test_what_the_probe_is_short_of_is_said_at_the_start(tmp_path):
    val = DataLoader(DOCUMENTS[:1], batch_size=1)
    with pytest.warns(HeadwatchWarning) as said:
        fit(tmp_path, [MarginalAttentionMonitor(5, 4)], val)
    texts = " ".join(str(warning.message) for warning in said)
    assert "probe=5: the validation loader has 1 batches" in texts
    assert "the probe is one document" in texts
    assert set(headwatch.load(tmp_path).signature["n_eff_std"].to_pylist()) == {None}


def test_budgets_that_cannot_be_made_are_refused_before_the_first_step(tmp_path):
    model = Tiny()
    monitor = MarginalAttentionMonitor(DOCUMENTS, 4, budgets=True, include=["L00.H00"])
    with pytest.raises(ValueError, match="budgets need every head"):
        trainer(tmp_path, [monitor]).fit(model, batches())
    assert model.losses == []


def test_true_is_no_number_of_batches():
    with pytest.raises(ValueError, match="probe: expected documents"):
        MarginalAttentionMonitor(True)


@pytest.mark.parametrize("form", ["dict", "(x, y)"])
def test_a_module_without_forward_is_proven_whatever_its_batches(tmp_path, form):
    class NoForward(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Tiny()

        def training_step(self, batch, batch_idx):
            tokens = batch["tokens"] if form == "dict" else batch[0]
            return self.net._loss(tokens)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, i):
            row = torch.arange(CONTEXT) % (i + 2)
            return {"tokens": row, "labels": row} if form == "dict" else (row, row)

    pl.seed_everything(3)
    documents = {"tokens": DOCUMENTS} if form == "dict" else (DOCUMENTS, DOCUMENTS)
    monitors = [QKProfileMonitor(5, on_error="raise"), MarginalAttentionMonitor(documents, 4, on_error="raise")]
    trainer(tmp_path, monitors, max_steps=2).fit(NoForward(), DataLoader(Rows(), batch_size=4))
    run = headwatch.load(tmp_path)
    assert set(run.profile["status"].to_pylist()) == {"proven"}
    assert run.to_pandas("signature").n_eff.notna().all()


def test_a_batch_that_forward_does_not_take_leaves_the_heads_structural(tmp_path):
    class Named(Tiny):
        def training_step(self, batch, batch_idx):
            return self._loss(batch["other"])

    pl.seed_everything(3)
    rows = [{"other": row} for row in torch.randint(0, VOCABULARY, (16, CONTEXT))]
    with pytest.warns(HeadwatchWarning, match=r"the batch has \['other'\].*probe_fn="):
        trainer(tmp_path, [QKProfileMonitor(5)], max_steps=2).fit(Named(), DataLoader(rows, batch_size=4))
    assert set(headwatch.load(tmp_path).profile["status"].to_pylist()) == {"structural"}
