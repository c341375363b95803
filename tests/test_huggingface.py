"""The Hugging Face Trainer, for real."""

import numpy as np
import pytest
import torch

import headwatch
from headwatch.notices import HeadwatchWarning

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate")


def trained(root, callbacks, steps, resume=None):
    config = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(0, 32, (64, 12), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    args = transformers.TrainingArguments(
        output_dir=str(root),
        max_steps=steps,
        per_device_train_batch_size=4,
        save_steps=4,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    )
    trainer = transformers.Trainer(model=model, args=args, train_dataset=data, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return model, trainer.state.log_history


def test_bit_identical_and_each_due_step_once(tmp_path):
    probe = torch.randint(0, 32, (4, 12), generator=torch.Generator().manual_seed(5))
    plain, log = trained(tmp_path / "plain", [], 9)
    monitor = headwatch.HuggingFaceMonitor(every_n_train_steps=3, probe=probe, on_error="raise")
    watched, watched_log = trained(tmp_path / "watched", [monitor], 9)
    for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)
    losses = [[entry["loss"] for entry in entries if "loss" in entry] for entries in (log, watched_log)]
    assert losses[0] == losses[1]
    run = headwatch.load(tmp_path / "watched")
    assert run.steps("profile") == run.steps("signature") == [0, 1, 2, 3, 4, 6, 8, 9]
    assert set(run.profile["status"].to_pylist()) == {"proven"}
    assert run.info["config"]["seed"] == 3
    W = watched.transformer.h[1].attn.c_attn.weight.detach().double().numpy()  # Conv1D: (in, out), thirds q, k, v
    L = W[:, 16:24] @ W[:, 0:8].T
    last = run.to_pandas().query("step == 9 and layer == 1 and head == 0").iloc[0]
    np.testing.assert_allclose(last.norm, np.linalg.norm(L), rtol=1e-9)
    np.testing.assert_allclose(last.trace_ratio, np.trace(L) / np.linalg.norm(L), rtol=1e-7)


def test_resume_goes_on_with_the_newest_run(tmp_path):
    trained(tmp_path, [headwatch.HuggingFaceMonitor(every_n_train_steps=3)], 9)
    trained(tmp_path, [headwatch.HuggingFaceMonitor(every_n_train_steps=3)], 13, resume=str(tmp_path / "checkpoint-8"))
    run = headwatch.load(tmp_path)
    assert run.steps() == [0, 1, 2, 3, 4, 6, 8, 9, 12, 13]
    assert (run.to_pandas().groupby("step").size() == 4).all()


def test_heads_read_by_rule_are_said_with_the_remedy(tmp_path):
    with pytest.warns(HeadwatchWarning, match=r"2 of 2 attention modules were read by rule.*probe=batch"):
        trained(tmp_path, [headwatch.HuggingFaceMonitor()], 1)
