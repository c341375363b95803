"""Checkpoints that are already there become a run: nothing needs to have been watched while they were trained.

    python examples/replay_checkpoints.py          about a minute on 2 cores
    python examples/replay_checkpoints.py --fast   a few seconds

Look for: the curves have points at the checkpoints only, and the moves of the first steps are missing.
"""

import argparse
import subprocess
import sys

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from headwatch.demo.model import TextDecoder
from headwatch.demo.text import load_text, loaders


def train(steps: int, every: int) -> None:
    """An ordinary training that saves checkpoints and knows nothing of headwatch."""
    pl.seed_everything(0)
    batches, _ = loaders(load_text().tokens(), context=64, batch_size=16, steps=steps, seed=0)
    saving = ModelCheckpoint("replay/checkpoints", filename="{step}", every_n_train_steps=every, save_top_k=-1)
    trainer = pl.Trainer(max_steps=steps, callbacks=[saving], logger=False, default_root_dir="replay")
    trainer.fit(TextDecoder(n_layers=2, d_model=64, context=64), batches)


def main(fast: bool) -> None:
    train(*((6, 2) if fast else (200, 25)))
    # the weights do not say how many heads share them
    options = ["--n-heads", "4", "--dir", "replay"]
    subprocess.run([sys.executable, "-m", "headwatch", "replay", "replay/checkpoints", *options], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="a few steps, to see that it runs")
    main(**vars(parser.parse_args()))
