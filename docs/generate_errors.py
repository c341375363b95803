"""Make the likeliest mistakes and write down what is said: ``python docs/generate_errors.py`` prints the page."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn

import headwatch
from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor

HEAD = """# First errors

The likeliest mistakes and what headwatch says, word for word: `docs/generate_errors.py` makes them and writes
this page.
All come before training starts or when a page is asked for. A failure during training is said once, and training
goes on.
"""
_WRAP = textwrap.TextWrapper(width=100, break_long_words=False, break_on_hyphens=False)
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


@dataclass(frozen=True)
class Mistake:
    """A mistake: what a person did, as a title and as code."""

    title: str
    make: Callable[[], object]


def encoder() -> nn.Module:
    """A model with two layers of two heads."""
    layer = nn.TransformerEncoderLayer(16, nhead=2, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)


def stored(name: str) -> Path:
    """A run in the store."""
    with headwatch.Monitor(encoder(), dirpath="runs", run_id=name) as monitor:
        monitor.step(1)
    return monitor.path


def rewritten(name: str, **entries: object) -> Path:
    """A run whose run.json says something else."""
    path = stored(name)
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**info, **entries}))
    return path


def two_alike() -> None:
    """Two monitors of one name in one Trainer."""
    from headwatch.demo.model import TextDecoder

    monitors = [QKProfileMonitor(), QKProfileMonitor()]
    pl.Trainer(callbacks=monitors, logger=False, enable_checkpointing=False, enable_progress_bar=False).fit(
        TextDecoder()
    )


def truncated() -> object:
    """A run.json that was cut off."""
    path = stored("cut")
    (path / "run.json").write_text('{"id": "cut", "na')
    return headwatch.load(path)


def file_in_the_way() -> object:
    """A file where the store's directory should be."""
    Path("results").write_text("")
    return headwatch.Monitor(encoder(), dirpath="results", run_id="RUN")


def no_number_of_heads() -> object:
    """A Lightning checkpoint: its weights do not say how many heads share them."""
    from headwatch.demo.model import TextDecoder

    torch.save({"state_dict": TextDecoder().state_dict(), "global_step": 100}, "last.ckpt")
    return profile_file("last.ckpt")


def not_a_checkpoint() -> object:
    """A file of another kind."""
    Path("notes.safetensors").write_text("not weights")
    return profile_file("notes.safetensors")


def profile_file(name: str) -> object:
    """What ``headwatch profile NAME`` does."""
    from headwatch.posthoc import Reading
    from headwatch.replay import Item, replay

    return replay([Item(0, Path(name))], Path("runs/headwatch/file"), Reading(null=False), name="file")


class Learner(pl.LightningModule):
    """A model in training."""

    def __init__(self) -> None:
        super().__init__()
        self.net = encoder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, x: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self(x).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def training(*monitors: pl.Callback, steps: int = 2, ckpt: str | None = None) -> pl.Trainer:
    """A short training that is watched."""
    trainer = pl.Trainer(max_steps=steps, callbacks=list(monitors), default_root_dir="trained", **QUIET)
    trainer.fit(Learner(), torch.utils.data.DataLoader(torch.randn(16, 5, 16), batch_size=4), ckpt_path=ckpt)
    return trainer


def resumed_otherwise() -> object:
    """A resume that measures another form."""
    training(QKProfileMonitor()).save_checkpoint("last.ckpt")
    return training(QKProfileMonitor(biases=True), steps=4, ckpt="last.ckpt")


def several() -> object:
    """A folder that holds two runs."""
    stored("first")
    stored("second")
    return headwatch.load("runs")


MISTAKES = (
    Mistake("The model has no attention", lambda: headwatch.profile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))),
    Mistake("`include` matches nothing", lambda: headwatch.profile(encoder(), include=["decoder.*"])),
    Mistake("`include` is one string", lambda: QKProfileMonitor(include="L03.*")),
    Mistake("The interval is not above 0", lambda: QKProfileMonitor(every_n_train_steps=0)),
    Mistake("A metric is misspelt", lambda: QKProfileMonitor(metrics=["stabel_rank"])),
    Mistake("`max_overhead` in per cent", lambda: QKProfileMonitor(max_overhead=5)),
    Mistake("A name that cannot be a folder", lambda: QKProfileMonitor(name="my run/2")),
    Mistake("Heads handed over and selected", lambda: QKProfileMonitor(heads=[{}], include=["L00.*"])),
    Mistake("A negative displacement", lambda: QKProfileMonitor(displacements=[0, -1])),
    Mistake("No probe documents", lambda: MarginalAttentionMonitor(probe=0)),
    Mistake("A probe that the model does not take", lambda: training(MarginalAttentionMonitor(torch.zeros(2, 5, 8)))),
    Mistake("A resume that measures something else", resumed_otherwise),
    Mistake("Two callbacks alike (Lightning says it first; `name=` on one of them is the remedy)", two_alike),
    Mistake("The store's directory cannot be made", file_in_the_way),
    Mistake("No run there", lambda: headwatch.load("runs/nothing")),
    Mistake("Several runs there", several),
    Mistake("The store is of a later version", lambda: headwatch.load(rewritten("later", schema_version=99))),
    Mistake("`run.json` is broken", truncated),
    Mistake("One run compared", lambda: headwatch.compare([stored("alone")])),
    Mistake("`group_by` is misspelt", lambda: headwatch.compare([stored("p"), stored("q")], group_by="optim.lr")),
    Mistake("`headwatch profile` of a file that does not say how many heads", no_number_of_heads),
    Mistake("`headwatch profile` of another kind of file", not_a_checkpoint),
)


def page() -> str:
    """The page as Markdown."""
    with _empty_directory(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return "\n".join((HEAD, *(_section(mistake) for mistake in MISTAKES)))


def said(mistake: Mistake) -> tuple[str, str]:
    """Type and text of the error that a mistake raises.

    Raises:
        AssertionError: nothing is raised.
    """
    torch.manual_seed(0)
    try:
        mistake.make()
    except (ValueError, OSError, RuntimeError) as error:
        return type(error).__name__, str(error)
    raise AssertionError(f"nothing is said: {mistake.title}")


def _section(mistake: Mistake) -> str:
    kind, text = said(mistake)
    lines = [_WRAP.fill(line) for line in f"{kind}: {text}".splitlines()]
    return "\n".join([f"## {mistake.title}", "", "```text", *lines, "```", ""])


@contextlib.contextmanager
def _empty_directory() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


if __name__ == "__main__":
    print(page())
