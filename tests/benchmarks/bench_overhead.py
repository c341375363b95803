"""What watching costs a training of GPT-2 small's shape, beside two other ways.

Run by hand: ``python tests/benchmarks/bench_overhead.py`` (``--help`` for other sizes; ``--device cuda --dtype bf16``).

One process trains the same model with nothing, with ours (profiles; both monitors) at default settings, with
``wandb.watch(log="all")`` at its default frequency of 1,000 batches, and with a callback that computes the dense N × N
eigenvalues of every head on our schedule. All log to W&B offline. Rounds take turns, so that what else the machine does
falls on all of them.

Counted are the seconds that the training thread spends in each (events), and by how much the other steps are slower
than without (hooks, and a worker that takes a core): the slowdown. Where fewer than 1,000 steps run, each event counts
as often as the profiles' schedule has it in 1,000 steps, an upper bound for both monitors; the table says what was run.
Finding and proving the heads happens once and is given by itself. The dense way is timed on a few heads and scaled.
Every training starts and ends once; what 1,000 steps in between cost stands in the column "later".
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics as stats
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import WandbLogger
from small_gpt import SmallGPT
from torch.nn import functional as F
from torch.utils.data import DataLoader

from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor
from headwatch.schedule import Schedule

PER = 1000  # steps that everything is given for
DUE = [0, *(step for step in range(1, PER + 1) if Schedule().due(step - 1, step))]
LATER = [step for step in range(PER + 1, 2 * PER + 1) if Schedule().due(step - 1, step)]  # after the dense start
SIGNATURES = MarginalAttentionMonitor()
WATCH_EVERY = 1000  # wandb's own default

WAYS = ("nothing", "ours, profiles", "ours, both", "wandb.watch", "dense eigenvalues")


class Clock(pl.Callback):
    """First in the list: wall seconds of every step, hooks and loading included."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_batch_start(self, *given: Any) -> None:
        self.starts.append(time.perf_counter())

    def on_train_end(self, *given: Any) -> None:
        self.starts.append(time.perf_counter())

    @property
    def steps(self) -> list[float]:
        return [b - a for a, b in zip(self.starts, self.starts[1:], strict=False)]


class Events:
    """Seconds that calls hold the training thread, by step."""

    def __init__(self) -> None:
        self.step = 0
        self.seconds: dict[int, float] = {}
        self.once = 0.0

    def timed(self, call: Callable[..., Any], once: bool = False) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                taken = time.perf_counter() - start
                if once:
                    self.once += taken
                elif taken > 1e-4:
                    self.seconds[self.step] = self.seconds.get(self.step, 0.0) + taken

        return called


class Steps(pl.Callback):
    """Tells the events which step they belong to; before all others."""

    def __init__(self, events: Events) -> None:
        self.events = events

    def on_train_batch_end(self, trainer: pl.Trainer, *given: Any) -> None:
        self.events.step = trainer.global_step


class DenseEigenvalues(pl.Callback):
    """Eigenvalues of L = W_KᵀW_Q of every head, N × N, on the training thread, at our due steps."""

    def __init__(self, heads: int, total: int) -> None:
        self.heads, self.scale = heads, total / heads
        self.last, self.seconds = -1, {}

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *given: Any) -> None:
        if Schedule().due(self.last, trainer.global_step):
            self.last = trainer.global_step
            start = time.perf_counter()
            self._measure(module)
            self.seconds[trainer.global_step] = (time.perf_counter() - start) * self.scale

    @torch.no_grad()
    def _measure(self, module: pl.LightningModule) -> None:
        attention = module.net.blocks[0].attention
        width = attention.q_proj.weight.shape[1] // attention.n_heads
        for head in range(self.heads):
            rows = slice(head * width, (head + 1) * width)
            L = attention.k_proj.weight[rows].float().T @ attention.q_proj.weight[rows].float()
            torch.linalg.eigvals(L).cpu()


class Training(pl.LightningModule):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = SmallGPT(options.vocabulary, options.width, options.layers, options.heads)
        self.net.unembed.weight = self.net.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.net(ids)

    def training_step(self, ids: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    def validation_step(self, ids: torch.Tensor, batch_idx: int) -> None:
        """Only its loader counts: the probe takes documents from it."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


def documents(options: argparse.Namespace, seed: int) -> DataLoader:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, options.vocabulary, (16 * options.batch, options.tokens + 1), generator=generator)
    return DataLoader(ids, batch_size=options.batch)


def callbacks(way: str, options: argparse.Namespace, events: Events) -> list[pl.Callback]:
    dense = DenseEigenvalues(options.dense_heads, options.heads * options.layers)
    own = {
        "ours, profiles": [QKProfileMonitor()],
        "ours, both": [QKProfileMonitor(), MarginalAttentionMonitor()],
        "dense eigenvalues": [dense],
    }.get(way, [])
    for callback in own[: 0 if way == "dense eigenvalues" else None]:
        for name in ("on_train_batch_end", "on_train_end", "_begin"):
            setattr(callback, name, events.timed(getattr(callback, name)))
        callback._find = events.timed(callback._find, once=True)
    if way == "dense eigenvalues":
        events.seconds = dense.seconds
    return own


def train(way: str, options: argparse.Namespace, root: Path) -> tuple[Clock, Events]:
    """One training; its clock and events."""
    clock, events, model = Clock(), Events(), Training(options)
    logger = WandbLogger(project="bench", save_dir=root, offline=True)
    if way == "wandb.watch":
        _watch(logger, model, options, events)
    trainer = pl.Trainer(
        max_steps=options.steps,
        accelerator="gpu" if options.device == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed" if options.dtype == "bf16" else "32-true",
        default_root_dir=root,
        callbacks=[clock, Steps(events), *callbacks(way, options, events)],
        logger=logger,
        limit_val_batches=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, documents(options, 1), documents(options, 2))
    logger.experiment.finish()
    return clock, events


def _watch(logger: WandbLogger, model: pl.LightningModule, options: argparse.Namespace, events: Events) -> None:
    """``log_freq`` is lowered where fewer steps run, so that one event is seen; it still counts once in 1,000."""
    from wandb.integration.torch.wandb_torch import TorchHistory

    if not hasattr(TorchHistory.log_tensor_stats, "plain"):
        plain = TorchHistory.log_tensor_stats
    else:
        plain = TorchHistory.log_tensor_stats.plain
    TorchHistory.log_tensor_stats = events.timed(plain)
    TorchHistory.log_tensor_stats.plain = plain
    logger.watch(model, log="all", log_freq=min(WATCH_EVERY, max(2, options.steps // 2)), log_graph=False)


def events_per_thousand(way: str) -> list[int]:
    return {"nothing": [], "wandb.watch": [PER]}.get(way, DUE)


def seconds_of_events(way: str, events: Events, options: argparse.Namespace) -> float:
    """Seconds of all events in 1,000 steps; those past the last step that ran count as the mean of the late ones."""
    due = events_per_thousand(way)
    if not due or not events.seconds:
        return 0.0
    if way == "wandb.watch":  # parameters and gradients of one event may fall on two steps
        rounds = options.steps // min(WATCH_EVERY, max(2, options.steps // 2))
        return sum(events.seconds.values()) / max(1, rounds)
    late = stats.mean([taken for step, taken in events.seconds.items() if step > 1] or events.seconds.values())
    return sum(events.seconds.get(step, late) for step in due)


def seconds_later(way: str, events: Events, options: argparse.Namespace) -> float:
    """Seconds of all events in 1,000 steps that are neither the start nor the end, from those seen after step 99."""
    if way in ("nothing", "wandb.watch"):
        return seconds_of_events(way, events, options)

    def shared(step: int) -> bool:  # by both monitors
        return way == "ours, both" and step % SIGNATURES.every_n_train_steps == 0

    late = [step for step in DUE if 100 <= step < options.steps and step not in SIGNATURES.early_steps]
    seen = {step: events.seconds[step] for step in late if step in events.seconds}
    mean = {kind: stats.mean(t for s, t in seen.items() if shared(s) == kind) for kind in set(map(shared, LATER))}
    return sum(mean[shared(step)] for step in LATER)


def steady(clock: Clock, events: Events) -> list[float]:
    """Steps without an event, and without the first two, which warm up."""
    eventful = {step - 1 for step in events.seconds} | set(events.seconds)
    return [taken for i, taken in enumerate(clock.steps) if i > 1 and i not in eventful]


def stall(clock: Clock, base: float) -> float:
    return max(clock.steps[2:]) - base


def machine(options: argparse.Namespace) -> str:
    if options.device == "cuda":
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def report(
    results: dict[str, list[tuple[Clock, Events]]], options: argparse.Namespace, others: argparse.Namespace
) -> None:
    plain = [t for clock, events in results["nothing"] for t in steady(clock, events)]
    base = stats.median(plain)
    shape = f"{options.layers} layers × {options.heads} heads, N {options.width}"
    print(f"\n{machine(options)}; torch {torch.__version__}; {shape}, batch {options.batch} × {options.tokens} tokens")
    runs = f"{options.rounds} round(s) of {options.steps} steps (ours, both) and {others.steps} (the others)"
    print(f"{runs}; a step takes {base:.3f} s\n")
    print("Per 1,000 steps, scaled where fewer ran; slower: what steps without an event take more than with nothing.\n")
    print("| way | events | seconds in events | share of wall time | later, s | slower, s | longest stall |")
    print("|" + "---|" * 7)
    for way, rounds in results.items():
        print(row(way, rounds, plain, base, options if way == "ours, both" else others))
    for way in ("ours, profiles", "ours, both"):
        for _, events in results.get(way, []):
            print(f"\n{way}: finding and proving the heads, once: {events.once:.2f} s; seconds by step:")
            print(", ".join(f"{step}: {taken:.2f}" for step, taken in events.seconds.items()))


def trimmed(steps: list[float]) -> float:
    """Mean of all but the slowest twentieth: what else the machine did."""
    return stats.mean(sorted(steps)[: max(1, int(0.95 * len(steps)))])


def row(
    way: str, rounds: list[tuple[Clock, Events]], plain: list[float], base: float, options: argparse.Namespace
) -> str:
    seconds = stats.median(seconds_of_events(way, events, options) for _, events in rounds)
    steps = [t for clock, events in rounds for t in steady(clock, events)]
    slower = (trimmed(steps) - trimmed(plain)) * PER
    longest = stats.median(stall(clock, base) for clock, _ in rounds)
    if way == "dense eigenvalues":
        longest = max(max(events.seconds.values(), default=0.0) for _, events in rounds)
    share = seconds / (seconds + PER * base)
    later = stats.median(seconds_later(way, events, options) for _, events in rounds)
    events = len(events_per_thousand(way))
    return f"| {way} | {events} | {seconds:.2f} | {share:.2%} | {later:.2f} | {slower:.1f} | {longest:.2f} s |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 12, "heads": 12, "width": 768, "vocabulary": 50257, "batch": 2, "tokens": 128}
    for name, size in {**sizes, "steps": 130, "rounds": 1, "dense_heads": 2}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--other-steps", type=int, help="steps of all ways but 'ours, both'; --steps by default")
    options = parser.parse_args()
    others = argparse.Namespace(**{**vars(options), "steps": options.other_steps or options.steps})
    os.environ.setdefault("WANDB_SILENT", "true")
    results: dict[str, list[tuple[Clock, Events]]] = {}
    for _ in range(options.rounds):
        for way in dict.fromkeys(["nothing", *options.ways]):
            with tempfile.TemporaryDirectory() as root:
                chosen = options if way == "ours, both" else others
                results.setdefault(way, []).append(train(way, chosen, Path(root)))
    report(results, options, others)


if __name__ == "__main__":
    main()
