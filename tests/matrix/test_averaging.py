"""Averaged weights are swapped in when training ends: the last snapshot says which weights it measured."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EMAWeightAveraging
from tiny import Tiny, batches, trainer

import headwatch
from headwatch.callbacks import QKProfileMonitor


def norm(model):
    attention = model.blocks[0].attention
    W_Q, W_K = (p.weight[:8].detach().double() for p in (attention.q_proj, attention.k_proj))
    return float(torch.linalg.matrix_norm(W_K.T @ W_Q))


class Trained(pl.Callback):
    """Keeps the norm of the trained weights, before anything is swapped in."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.norm = norm(pl_module)


@pytest.mark.parametrize("first", ["monitor", "averaging"])
def test_the_last_snapshot_says_which_weights_it_measured(tmp_path, first):
    pl.seed_everything(3)
    model, trained = Tiny(), Trained()
    callbacks = [QKProfileMonitor(100, early_steps=(), on_error="raise"), EMAWeightAveraging(decay=0.8)]
    if first == "averaging":
        callbacks.reverse()
    trainer(tmp_path, [trained, *callbacks]).fit(model, batches())
    averaged = norm(model)
    assert abs(averaged - trained.norm) > 1e-3 * trained.norm
    row = headwatch.load(tmp_path).to_pandas().query("step == 12 and layer == 0 and head == 0").iloc[0]
    if first == "averaging":
        assert row["flags"] == "averaged_weights:EMAWeightAveraging"
        np.testing.assert_allclose(row.norm, averaged, rtol=1e-9)
    else:
        assert row["flags"] == ""
        np.testing.assert_allclose(row.norm, trained.norm, rtol=1e-9)
