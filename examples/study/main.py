"""How the heads of small decoders and encoders drift in training, over seeds, against the null.

    python examples/study/main.py          eight runs of about 5 minutes on one core; goes on where it was stopped
    python examples/study/main.py --fast   a few steps, to see that it runs

Trains four decoders (next byte) and four encoders (masked bytes) of one shape on the same text, then writes
``study/study.md`` with the answers, ``study/study.png``, and the comparison of all runs, ``study/comparison.html``.

Look for: when heads leave the null, whether they travel along Θ or off it, whether stable rank falls first, whether
decoders end nearer to Θ than encoders, and whether signatures settle before profiles.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytorch_lightning as pl
from analysis import Array, Trajectories
from models import CONTEXT, ByteModel
from page import write

import headwatch
from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor
from headwatch.demo.text import Windows, load_text, loaders

KINDS = ("decoder", "encoder")
SIGNATURES = ("n_eff", "mutual_information", "row_entropy")


def train(kind: str, seed: int, steps: int, every: int, root: Path) -> Path:
    """One run; an earlier one that ended well is kept."""
    folder = root / f"{kind}-{seed}"
    if any(headwatch.load(run.parent).complete for run in folder.glob("headwatch/*/run.json")):
        return headwatch.load(folder).path
    shutil.rmtree(folder, ignore_errors=True)  # a run that was broken off begins anew
    pl.seed_everything(seed)
    tokens = load_text().tokens()
    batches, _ = loaders(tokens, context=CONTEXT, batch_size=16, steps=steps, seed=seed)
    probe = Windows(tokens, CONTEXT, count=16, seed=1).batch()
    trainer = pl.Trainer(
        max_steps=steps,
        callbacks=[
            QKProfileMonitor(every_n_train_steps=every, max_overhead=1.0),
            MarginalAttentionMonitor(probe, every_n_train_steps=every, max_overhead=1.0),
        ],
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(ByteModel(kind, seed=seed), batches)
    return headwatch.load(folder).path


def read(path: Path) -> Trajectories:
    """A stored run as arrays."""
    run = headwatch.load(path)
    profile, signature = run.profile, run.signature
    steps, signature_steps = (np.array(run.steps(kind), dtype=float) for kind in ("profile", "signature"))

    def grid(table: pa.Table, column: str, n: int) -> Array:
        return (
            table.sort_by([("step", "ascending"), ("layer", "ascending"), ("head", "ascending")])[column]
            .to_numpy(zero_copy_only=False)
            .reshape(n, -1)
        )

    of = {c: grid(profile, c, len(steps)) for c in (*"abcd", "theta_position", "theta_distance", "stable_rank", "loss")}
    return Trajectories(
        steps=steps,
        profile=np.stack([of[c] for c in "abcd"], axis=-1),
        position=of["theta_position"],
        distance=of["theta_distance"],
        stable_rank=of["stable_rank"],
        beyond=grid(profile, "beyond_null", len(steps)).astype(bool),
        left=grid(profile, "left_null_step", len(steps))[-1].astype(float),
        loss=_filled(of["loss"][:, 0].astype(float)),
        signatures={c: grid(signature, c, len(signature_steps)) for c in SIGNATURES},
        signature_steps=signature_steps,
    )


def _filled(loss: Array) -> Array:
    """Before the first step there is no loss: that of the first step stands for it."""
    loss[np.isnan(loss)] = loss[~np.isnan(loss)][0]
    return loss


def main(fast: bool, seeds: int, steps: int, root: Path) -> None:
    if fast:
        seeds, steps = 2, 8
    every = max(2, steps // 40)
    paths = {kind: [train(kind, seed, steps, every, root) for seed in range(seeds)] for kind in KINDS}
    comparison = headwatch.compare(
        [path for each in paths.values() for path in each], group_by="hparams.kind", output=root / "comparison.html"
    )
    print(comparison)
    lead = (
        f"{seeds} seeds each, {steps} steps, 4 layers × 4 heads, d_model 128, {load_text().name}. Mean over seeds ± "
        "half width of its 95 % interval. p: share of all ways to deal the runs to two groups that differ as much. "
        "Unless a row says otherwise, numbers are of the median head, and times are optimizer steps."
    )
    write({kind: [read(path) for path in each] for kind, each in paths.items()}, root, lead)
    print((root / "study.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--root", type=Path, default=Path("study"), help="where everything goes")
    main(**vars(parser.parse_args()))
