"""Two seeds and two learning rates, side by side.

    python examples/seeds_and_rates.py          about 5 minutes on 2 cores
    python examples/seeds_and_rates.py --fast   a few seconds

Look for: heads of two seeds have no common order, so they are matched before they are compared. Do runs of one rate
lie nearer to each other than runs of different rates?
"""

import argparse
from itertools import product
from pathlib import Path

import pytorch_lightning as pl

import headwatch
from headwatch.callbacks import QKProfileMonitor
from headwatch.demo.model import TextDecoder
from headwatch.demo.text import load_text, loaders


def train(seed: int, lr: float, steps: int) -> Path:
    """One run; its hyperparameters go into the store with it."""
    pl.seed_everything(seed)
    root = Path("seeds-and-rates") / f"seed{seed}-lr{lr}"
    batches, _ = loaders(load_text().tokens(), context=64, batch_size=16, steps=steps, seed=seed)
    trainer = pl.Trainer(
        max_steps=steps,
        callbacks=[QKProfileMonitor(every_n_train_steps=50)],
        default_root_dir=root,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(TextDecoder(n_layers=2, d_model=64, context=64, lr=lr), batches)
    return headwatch.load(root).path


def main(fast: bool) -> None:
    runs = [train(seed, lr, steps=8 if fast else 400) for seed, lr in product((0, 1), (3e-4, 3e-3))]
    comparison = headwatch.compare(runs, group_by="hparams.lr", output="seeds-and-rates/comparison.html")
    print(comparison)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="a few steps, to see that it runs")
    main(**vars(parser.parse_args()))
