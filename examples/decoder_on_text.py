"""A small decoder learns Shakespeare; watch its heads leave chance.

    python examples/decoder_on_text.py          about 2 minutes on 2 cores
    python examples/decoder_on_text.py --fast   a few seconds

Look for: the stable rank, which falls within the first hundred steps, and the distance to Θ, which hardly moves at
first: these are two different drifts. In the signatures, n_eff starts near 1 (uniform attention) and falls later.
"""

import argparse

import pytorch_lightning as pl

import headwatch
from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor
from headwatch.demo.model import TextDecoder
from headwatch.demo.text import Windows, load_text, loaders
from headwatch.report import write_report


def main(fast: bool) -> None:
    steps = 12 if fast else 400
    pl.seed_everything(0)
    tokens = load_text().tokens()
    train_batches, val_batches = loaders(tokens, context=128, batch_size=4 if fast else 16, steps=steps, seed=0)

    profiles = QKProfileMonitor(every_n_train_steps=50)
    signatures = MarginalAttentionMonitor(probe=Windows(tokens, 128, count=8, seed=1).batch(), every_n_train_steps=50)
    trainer = pl.Trainer(
        max_steps=steps,
        callbacks=[profiles, signatures],
        default_root_dir="decoder-on-text",
        val_check_interval=steps // 2,
        enable_checkpointing=False,
        logger=False,  # the store is enough; put WandbLogger() here for live charts
    )
    trainer.fit(TextDecoder(), train_batches, val_batches)

    run = headwatch.load("decoder-on-text")
    print(run.to_pandas().groupby("step")[["stable_rank", "theta_distance", "loss"]].median())
    print(write_report(run.path))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="a few steps, to see that it runs")
    main(**vars(parser.parse_args()))
