"""Time and memory of the column statistics beside a plain softmax, in one run.

python tests/benchmarks/bench_marginal.py

T = 4096, 12 heads, d_head 64. Memory is the peak of live bytes that torch's allocator handed out beyond the inputs,
counted by torch.profiler, not the process's RSS.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from headwatch.marginal import column_statistics

T, H, N_HEAD = 4096, 12, 64


def plain(q: Tensor, k: Tensor, is_causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Mass, peak and row entropy from the whole map."""
    scores = q @ k.transpose(-1, -2) * N_HEAD**-0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
    weights = scores.softmax(-1)
    return weights.sum(-2), weights.amax(-2), torch.special.entr(weights).sum(-1)


def plain_mass(q: Tensor, k: Tensor, is_causal: bool) -> Tensor:
    """Mass alone from the whole map: the least that a plain softmax costs."""
    scores = q @ k.transpose(-1, -2) * N_HEAD**-0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1).sum(-2)


def blocks(q: Tensor, k: Tensor, is_causal: bool) -> object:
    return column_statistics(q, k, scale=N_HEAD**-0.5, is_causal=is_causal)


def sdpa(q: Tensor, k: Tensor, is_causal: bool) -> object:
    return torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=is_causal)


def seconds(function: Callable[[], object], repeats: int = 3) -> float:
    """CPU time of the best of several runs: the machine may be shared."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        function()
        best = min(best, time.process_time() - start)
    return best


def peak_bytes(function: Callable[[], object]) -> int:
    """Largest sum of bytes that were allocated and not yet freed, beyond what lived before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    live = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def main() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, H, T, N_HEAD), torch.randn(1, H, T, N_HEAD)
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'':24}{'CPU seconds':>12}{'peak MiB':>10}{'time ratio':>12}{'memory ratio':>14}")
    for is_causal in (False, True):
        rows = {
            function.__name__: measured(function, q, k, is_causal) for function in (plain, plain_mass, blocks, sdpa)
        }
        base_time, base_memory = rows["plain_mass"]
        for name, (took, memory) in rows.items():
            label = f"{'causal' if is_causal else 'all to all'} {name}"
            print(f"{label:24}{took:12.3f}{memory:10.1f}{took / base_time:12.3f}{memory / base_memory:14.4f}")


def measured(function: Callable[..., object], q: Tensor, k: Tensor, is_causal: bool) -> tuple[float, float]:
    """CPU seconds and peak MiB."""
    with torch.no_grad():
        return seconds(lambda: function(q, k, is_causal)), peak_bytes(lambda: function(q, k, is_causal)) / 2**20


if __name__ == "__main__":
    main()
