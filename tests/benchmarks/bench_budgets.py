"""What a small model still knows after its KV cache was cut, by rule: python tests/benchmarks/bench_budgets.py

Two models are trained from scratch: two layers on a copy task (random tokens, then the same again), four layers on the
bytes of pydoc's topics. The context is the first half of a sequence; its keys are cut when it has been read; what
follows is predicted from the cut cache. Budgets come from other documents than the ones that are scored. The keys of a
head are chosen by their mean attention while reading, for every rule; "one cut" is given the look-back scores of the
document itself, which costs a second pass over it, and chooses by them.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from eviction import ada, budget, kept_keys, masks, one_cut, pyramid, uniform
from numpy.typing import NDArray
from small_gpt import SmallGPT, train
from texts import LENGTH, split_bytes, text_model, windows
from torch import Tensor

from headwatch.budgets import Budgets, DocumentScores
from headwatch.heads import find_heads
from headwatch.probe.documents import probe_batches
from headwatch.probe.lookback import look_back

KEEP = (0.5, 0.25, 0.125)
PERIOD, VOCABULARY = 32, 64
Score = Callable[[Tensor, Tensor], NDArray[np.float64]]  # logits, ids -> one number per document


def copies(n: int, period: int, seed: int) -> Tensor:
    once = torch.randint(1, VOCABULARY, (n, period), generator=torch.Generator().manual_seed(seed))
    return torch.cat((torch.zeros(n, 1, dtype=torch.long), once, once), 1)


def copy_model(steps: int) -> SmallGPT:
    torch.manual_seed(0)
    model = SmallGPT(VOCABULARY, 64, 2, 4)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        period = 16 + step * 7 % 17
        ids = copies(48, period, 1000 + step)
        targets = ids[:, 1:].clone()
        targets[:, :period] = -100
        return ids[:, :-1], targets

    train(model, batch, steps)
    return model.eval()


def copied(logits: Tensor, ids: Tensor) -> NDArray[np.float64]:
    """Share of the second half, from its second token on, that is predicted right."""
    K = ids.shape[1] // 2 + 1
    return (logits[:, K:-1].argmax(-1) == ids[:, K + 1 :]).double().mean(1).numpy()


def nats(logits: Tensor, ids: Tensor) -> NDArray[np.float64]:
    """Loss per byte of the second half."""
    K = ids.shape[1] // 2
    loss = F.cross_entropy(logits[:, K:-1].flatten(0, 1), ids[:, K + 1 :].flatten(), reduction="none")
    return loss.view(len(ids), -1).double().mean(1).numpy()


def evaluate(
    model: SmallGPT, ids: Tensor, documents: list[DocumentScores], budgets: Budgets, score: Score, paired: bool
) -> None:
    reading, looked = (np.stack([getattr(d, name) for d in documents]) for name in ("reading", "look_back"))
    sinks = np.stack([d.sinks for d in documents])
    rules = {
        "uniform": (uniform, reading),
        "PyramidKV": (pyramid, reading),
        "Ada-KV, per document": (ada, reading),
        "reading budgets": (budget(budgets, "reading"), reading),
        "look-back budgets": (budget(budgets, "kept"), reading),
        "one cut, per document": (one_cut, looked),
    }
    full = score(logits_of(model, ids, None), ids)
    print(f"{'full cache':24}{mean(full):>20}   below: {'minus full cache' if paired else 'as it is'}")
    print(f"{'':24}" + "".join(f"{f'{100 * keep:g} % kept':>20}" for keep in KEEP))
    for name, (rule, scores) in rules.items():
        cells = []
        for keep in KEEP:
            kept = kept_keys(scores, rule(np.where(sinks[:, None, None], np.inf, scores), keep), sinks)
            assert abs(kept.mean() - keep) < 0.02, (name, keep, kept.mean())
            values = score(logits_of(model, ids, kept), ids)
            cells.append(mean(values - full, 4) if paired else mean(values))
        print(f"{name:24}" + "".join(f"{cell:>20}" for cell in cells))


@torch.no_grad()
def logits_of(model: SmallGPT, ids: Tensor, kept: NDArray[np.bool_] | None, batch: int = 16) -> Tensor:
    parts = range(0, len(ids), batch)
    cut = (None if kept is None else masks(kept[i : i + batch], ids.shape[1]) for i in parts)
    return torch.cat([model(ids[i : i + batch], mask) for i, mask in zip(parts, cut, strict=True)])


def mean(values: NDArray[np.float64], digits: int = 3) -> str:
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1) / len(values) ** 0.5:.{digits}f}"


def run(title: str, model: SmallGPT, made_from: Tensor, scored: Tensor, score: Score, out: Path | None) -> None:
    head_map = find_heads(model)
    parts = [look_back(model, head_map, probe_batches(list(ids.split(16)))) for ids in (made_from, scored)]
    budgets = Budgets.from_documents(parts[0])
    print(f"\n{title}: {len(scored)} documents scored, budgets from {len(made_from)} others, ± standard error")
    evaluate(model, scored, parts[1], budgets, score, paired=score is nats)
    gap = budgets.gap(0.5)
    layer, head = np.unravel_index(gap.argmax(), gap.shape)
    print(f"largest gap between look-back and reading budget at 50 %: {gap.max():+.2f}, L{layer:02d}.H{head:02d}")
    if out is not None:
        budgets.save(out / title.replace(" ", "_"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copy-steps", type=int, default=1200)
    parser.add_argument("--text-steps", type=int, default=1200)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None, help="where to save the budgets")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    start, n = time.time(), arguments.documents
    if arguments.copy_steps:
        model = copy_model(arguments.copy_steps)
        run("copy task", model, copies(48, PERIOD, 7), copies(n, PERIOD, 8), copied, arguments.out)
    if arguments.text_steps:
        model, (text, held) = text_model(arguments.text_steps), split_bytes()
        sets = windows(text, 48, LENGTH, 7), windows(held, n, LENGTH, 8)
        run("natural text", model, *sets, nats, arguments.out)
    print(f"\n{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
