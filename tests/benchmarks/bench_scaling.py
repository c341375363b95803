"""How the cost of a snapshot grows with heads, N, n, layers and ranks, and what a 70B model would cost.

Run by hand: ``python tests/benchmarks/bench_scaling.py`` (``--small`` for a trial, ``--device cuda`` for a GPU).

The training thread copies (H + H_kv)·n·N entries per layer; the worker takes α·n²·N + β·n³ per head, with α and β
from two of the rows. Every row is held against the growth that this predicts from the last row of its block. One worker
thread, as in training; medians of repeats; weights in bfloat16. Ranks are played one by one in this process: what one
rank copies, computes and sends.
"""

from __future__ import annotations

import argparse
import pickle
import platform
import statistics as stats
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwatch.heads import find_heads, named_parameters
from headwatch.measure import ProfileMeasure
from headwatch.parallel import Ranks, Source
from headwatch.parallel.parts import Part


@dataclass(frozen=True)
class Shape:
    """A model's attention."""

    heads: int = 12
    kv_heads: int = 12
    n: int = 64
    N: int = 768
    layers: int = 1
    ranks: int = 1

    def copied(self) -> float:
        """Bytes that one rank copies."""
        return 2 * (self.heads + self.kv_heads) * self.n * self.N * self.share()

    def operations(self, cubic: float) -> float:
        """Up to a factor; ``cubic`` is β / α."""
        return self.heads * (self.n**2 * self.N + cubic * self.n**3) * self.share()

    def share(self) -> float:
        """Layers of the busiest rank."""
        return -(-self.layers // self.ranks)


class Attention(nn.Module):
    def __init__(self, shape: Shape, device: str) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads, self.head_dim = shape.heads, shape.kv_heads, shape.n
        options: dict[str, Any] = {"bias": False, "dtype": torch.bfloat16, "device": device}
        self.q_proj = nn.Linear(shape.N, shape.heads * shape.n, **options)
        self.k_proj = nn.Linear(shape.N, shape.kv_heads * shape.n, **options)


class Played(Ranks):
    """Rank 0 of several, the others imagined."""

    def everyone(self, item: Any) -> list[Any]:
        return [item] * self.size

    def collect(self, part: Any) -> None:
        self.sent = part


@dataclass
class Cost:
    copy: float
    compute: float
    sent: int


def measure(shape: Shape, device: str, repeats: int) -> Cost:
    """Seconds of the training thread and of the worker, and bytes that travel, on one rank."""
    model = nn.ModuleList([Attention(shape, device) for _ in range(shape.layers)])
    head_map, ranks = find_heads(model), Played(0, shape.ranks)
    parameters = lambda: named_parameters(model)  # noqa: E731
    own = ProfileMeasure(head_map, parameters, null=False, source=Source(head_map, parameters, ranks))
    copies, computes = [], []
    for repeat in range(repeats + 1):
        pieces, copy = timed(lambda: own._source.visit(own._copy))
        part, compute = timed(lambda pieces=pieces: own._part(0, pieces))
        if repeat:  # the first one warms up
            copies.append(copy)
            computes.append(compute)
    return Cost(stats.median(copies), stats.median(computes), sent(part))


def sent(part: Part) -> int:
    return len(pickle.dumps(part))


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def cubic_share(base: Shape, device: str, repeats: int) -> float:
    """β / α, from the same heads at N and at 8 N."""
    low, high = (measure(replace(base, N=base.N * k), device, repeats).compute for k in (1, 8))
    alpha = (high - low) / (7 * base.n**2 * base.N)
    return max(0.0, (low - alpha * base.n**2 * base.N) / (alpha * base.n**3))


def block(
    title: str, shapes: list[Shape], label: Callable[[Shape], object], cubic: float, device: str, repeats: int
) -> list[Cost]:
    """One table: measured, and predicted from its last row."""
    print(f"\n| {title} | copied, MiB | copying, ms | predicted | worker, ms | predicted | sent, KiB |")
    print("|" + "---|" * 7)
    costs = [measure(shape, device, repeats) for shape in shapes]
    last, base = shapes[-1], costs[-1]
    for shape, cost in zip(shapes, costs, strict=True):
        copy = base.copy * shape.copied() / last.copied() * 1e3
        compute = base.compute * shape.operations(cubic) / last.operations(cubic) * 1e3
        print(
            f"| {label(shape)} | {shape.copied() / 2**20:.1f} | {cost.copy * 1e3:.2f} | {copy:.2f} "
            f"| {cost.compute * 1e3:.0f} | {compute:.0f} | {cost.sent / 1024:.1f} |"
        )
    return costs


def seventy(layer: Shape, cost: Cost, layers: int) -> None:
    """80 layers from one that was measured."""
    print(f"\n70B: {layers} layers of {layer.heads} heads, {layer.kv_heads} key-value heads, N {layer.N}, n {layer.n};")
    print("from the one layer above. Held at most: one snapshot in work, two that wait, one that has no place yet.\n")
    print("| ranks | layers of a rank | copying, s | worker, s | copied, GiB | held at most, GiB | sent, KiB |")
    print("|" + "---|" * 7)
    for ranks in (1, 8, 64):
        rank = replace(layer, layers=layers, ranks=ranks)
        share, size = rank.share(), rank.copied() / 2**30
        print(
            f"| {ranks} | {share:.0f} | {cost.copy * share:.2f} | {cost.compute * share:.0f} | {size:.2f} "
            f"| {4 * size:.2f} | {cost.sent * share / 1024:.0f} |"
        )
    print(f"\nPut together on a device at a time, under sharding: one layer, {layer.copied() / 2**20:.0f} MiB.")


def machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    small = 8 if options.small else 1
    base = Shape(heads=12, kv_heads=12, n=64 // small, N=768 // small)
    print(f"{machine(options.device)}; torch {torch.__version__}; one worker thread, {options.repeats} repeats")
    cubic = cubic_share(base, options.device, options.repeats)
    print(f"β / α = {cubic:.0f}: the eigenproblems weigh as much as the products at N = {cubic * base.n:.0f}")

    def run(title: str, shapes: list[Shape], label: Callable[[Shape], object]) -> list[Cost]:
        return block(title, shapes, label, cubic, options.device, options.repeats)

    run("heads", [replace(base, heads=h, kv_heads=h) for h in (6, 12, 24, 48)], lambda s: s.heads)
    run("N", [replace(base, N=base.N * k) for k in (1, 2, 4, 8)], lambda s: s.N)
    run("n", [replace(base, n=base.n * k // 4) for k in (1, 2, 4, 8)], lambda s: s.n)
    run("layers", [replace(base, layers=k) for k in (1, 3, 6, 12)], lambda s: s.layers)
    run("ranks", [replace(base, layers=12, ranks=k) for k in (1, 2, 4, 12)], lambda s: s.ranks)
    layer = Shape(heads=64 // small, kv_heads=8 // small, n=128 // small, N=8192 // small)
    [cost] = run("a layer of 70B, heads", [layer], lambda s: s.heads)
    seventy(layer, cost, 80)


if __name__ == "__main__":
    main()
