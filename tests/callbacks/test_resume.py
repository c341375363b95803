"""A resume that would change what the numbers mean is refused or said."""

import pytest
import pytorch_lightning as pl
import torch
from tiny import CONTEXT, VOCABULARY, Tiny, batches, trainer

import headwatch
from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor
from headwatch.notices import HeadwatchWarning


def documents(seed):
    return torch.randint(0, VOCABULARY, (4, CONTEXT), generator=torch.Generator().manual_seed(seed))


def fit(root, monitor, ckpt=None, max_steps=4):
    pl.seed_everything(3)
    run = trainer(root, [monitor], max_steps=max_steps)
    run.fit(Tiny(), batches(), ckpt_path=ckpt)
    return run


@pytest.fixture
def begun(tmp_path):
    """A training of four steps: its directory and checkpoint."""

    def begin(monitor):
        fit(tmp_path, monitor).save_checkpoint(tmp_path / "a.ckpt")
        return tmp_path, tmp_path / "a.ckpt"

    return begin


def test_another_form_is_refused_before_a_step_and_the_store_is_as_it_was(begun):
    root, ckpt = begun(QKProfileMonitor(2, early_steps=()))
    before = headwatch.load(root).profile
    with pytest.raises(
        ValueError, match=r"biases: this run was measured with biases=False.*asks for True.*name='\.\.\.'"
    ):
        fit(root, QKProfileMonitor(2, early_steps=(), biases=True), ckpt, 8)
    assert headwatch.load(root).profile.equals(before)


def test_another_form_under_another_name_goes_beside_it(begun):
    root, ckpt = begun(QKProfileMonitor(2, early_steps=()))
    fit(root, QKProfileMonitor(2, early_steps=(), biases=True, name="biased"), ckpt, 8)


def test_other_schedules_and_metrics_go_on(begun, recwarn):
    root, ckpt = begun(QKProfileMonitor(2, early_steps=()))
    fit(root, QKProfileMonitor(3, early_steps=(), metrics=["drift"], max_overhead=0.5), ckpt, 8)
    assert headwatch.load(root).steps() == [0, 2, 4, 6, 8]
    assert not [w for w in recwarn if issubclass(w.category, HeadwatchWarning) and "measured with" in str(w.message)]


def test_other_documents_are_said(begun):
    root, ckpt = begun(MarginalAttentionMonitor(documents(1), 2, early_steps=()))
    with pytest.warns(HeadwatchWarning, match="signature monitor resumes with other probe documents"):
        fit(root, MarginalAttentionMonitor(documents(2), 2, early_steps=()), ckpt, 8)


def test_the_same_documents_are_not(begun, recwarn):
    root, ckpt = begun(MarginalAttentionMonitor(documents(1), 2, early_steps=()))
    fit(root, MarginalAttentionMonitor(documents(1), 2, early_steps=()), ckpt, 8)
    assert headwatch.load(root).steps("signature") == [0, 2, 4, 6, 8]
    assert not [w for w in recwarn if "other probe documents" in str(w.message)]


def test_a_run_that_is_not_there_is_said(begun, tmp_path_factory):
    _, ckpt = begun(QKProfileMonitor(2, early_steps=()))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with pytest.warns(HeadwatchWarning, match="goes on at step 4 of run .* does not have that run.*dirpath="):
        fit(elsewhere, QKProfileMonitor(2, early_steps=()), ckpt, 8)
    assert headwatch.load(elsewhere).steps() == [4, 6, 8]


def test_weights_that_are_nan_are_said_with_the_heads(tmp_path):
    class Breaks(Tiny):
        def on_train_batch_end(self, *given):
            if self.global_step == 2:
                with torch.no_grad():
                    self.blocks[0].attention.k_proj.weight.fill_(torch.nan)

    with pytest.warns(HeadwatchWarning, match=r"weights of L00\.H00, .*L01\.H01 are NaN at step 4.*learning rate"):
        trainer(tmp_path, [QKProfileMonitor(2, early_steps=())], max_steps=4).fit(Breaks(), batches())
