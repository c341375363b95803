"""Profiles: speed against three other ways, the parts' shares, memory of a 7B layer, and a busy machine.

Run by hand: ``python tests/benchmarks/bench_profiles.py``. One thread; the ways take turns in one run, so that what
else the machine does falls on all of them; medians. Dense ways are timed on a few heads and scaled to all.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import platform
import statistics as stats
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headwatch.cores import cores, gram_cores, qr_cores
from headwatch.forms import Factors
from headwatch.kernel import core_statistics
from headwatch.profiles import statistics
from headwatch.threads import solver_threads

GPT2 = (144, 64, 768)
LAYER_7B = (32, 128, 4096)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor()
    return f"{name}, {multiprocessing.cpu_count()} cores, torch {torch.__version__}, NumPy {np.__version__}"


def heads(count: int, n: int, N: int, dtype: torch.dtype = torch.float64) -> Factors:
    generator = torch.Generator().manual_seed(0)
    return Factors(*(torch.randn(count, n, N, generator=generator, dtype=dtype) for _ in range(2)))


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of every call, all called once per round."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(seconds(call))
    return {name: stats.median(values) for name, values in taken.items()}


def dense(factors: Factors, *, ranks: bool) -> None:
    """The N × N form of every head: eigenvalues of S, and with ``ranks`` the singular values of L and T."""
    for W_K, W_Q in zip(factors.W_K, factors.W_Q, strict=True):
        L = W_K.mT @ W_Q
        torch.linalg.eigvalsh((L + L.mT) / 2)
        if ranks:
            torch.linalg.svdvals(L)
            torch.linalg.svdvals((L - L.mT) / 2)


def numpy_pipeline(W_K: np.ndarray, W_Q: np.ndarray) -> None:
    """Head by head: QR of [W_Kᵀ W_Qᵀ] in NumPy's default mode, eigenvalues of S, singular values of L and T."""
    for K, Q in zip(W_K, W_Q, strict=True):
        _, R = np.linalg.qr(np.concatenate([K, Q]).T)
        n = len(K)
        L = R[:, :n] @ R[:, n:].T
        np.linalg.eigvalsh((L + L.T) / 2)
        np.linalg.svd(L, compute_uv=False)
        np.linalg.svd((L - L.T) / 2, compute_uv=False)


def by_qr(factors: Factors) -> dict[str, Tensor]:
    return core_statistics(qr_cores(factors).K, 1e-9)


def compare_ways() -> None:
    count, n, N = GPT2
    factors = heads(count, n, N)
    narrow = Factors(factors.W_K.float(), factors.W_Q.float())
    few = factors.take(slice(0, 2))
    arrays = factors.W_K.numpy(), factors.W_Q.numpy()
    some = 24
    found = in_turns(
        {
            "headwatch": lambda: statistics(factors),
            "headwatch, float32 weights": lambda: statistics(narrow),
            "headwatch, every head by QR": lambda: by_qr(factors),
            "per-head NumPy pipeline": lambda: numpy_pipeline(arrays[0][:some], arrays[1][:some]),
            "dense eigvalsh of S": lambda: dense(few, ranks=False),
            "dense S, svdvals of L and T": lambda: dense(few, ranks=True),
        },
        rounds=5,
    )
    scale = {"per-head NumPy pipeline": count / some, "dense eigvalsh of S": count / 2}
    scale["dense S, svdvals of L and T"] = count / 2
    print(f"\nGPT-2 small, {count} heads, N {N}, n {n}, float64, one thread")
    for name, value in found.items():
        total = value * scale.get(name, 1)
        ratio = total / found["headwatch"]
        note = f" (from {count / scale[name]:.0f} heads)" if name in scale else ""
        print(f"  {name:32} {total * 1e3:10.1f} ms   {ratio:6.1f} ×{note}")


def parts(shape: tuple[int, int, int], rounds: int) -> None:
    """Where the time goes, and the floor: products at the rate of one large product, weights read once."""
    count, n, N = shape
    factors = heads(*shape)
    found_cores = cores(factors)
    K = found_cores.K
    S = torch.randn(count, 2 * n, 2 * n, dtype=torch.float64)
    S = S + S.mT
    square = K @ K.mT
    big = torch.randn(1024, 1024, dtype=torch.float64)
    W_K, W_Q = factors.W_K, factors.W_Q
    G = torch.cat([torch.cat([W_K, W_Q], 1) @ W_K.mT, torch.cat([W_K, W_Q], 1) @ W_Q.mT], -1)
    found = in_turns(
        {
            "all": lambda: statistics(factors),
            "products of weights": lambda: [(k @ k.mT, k @ q.mT, q @ q.mT) for k, q in zip(W_K, W_Q, strict=True)],
            "Cholesky": lambda: torch.linalg.cholesky_ex(G),
            "eigenvalues, 2n": lambda: torch.linalg.eigvalsh(S),
            "eigenvalues, n": lambda: torch.linalg.eigvalsh(square),
            "one large product": lambda: big @ big,
            "weights read once": lambda: (W_K.sum(), W_Q.sum()),
        },
        rounds,
    )
    rate = 2 * 1024**3 / found.pop("one large product")
    flops = count * 6 * n * n * N
    print(f"\nParts, {count} heads, N {N}, n {n}")
    for name, value in found.items():
        print(f"  {name:32} {value * 1e3:10.1f} ms   {value / found['all']:6.1%}")
    print(f"  {'floor of the products':32} {flops / rate * 1e3:10.1f} ms   {flops / rate / found['all']:6.1%} "
          f"({flops / 1e9:.2f} GFLOP at {rate / 1e9:.0f} GFLOP/s)")  # fmt: skip


def resident(key: str) -> int:
    """VmRSS or VmHWM of this process in bytes (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line.split()[1] for line in status if line.startswith(key)))


def layer_memory() -> None:
    """How far one 7B layer lifts the peak above its own weights; Linux only."""
    torch.set_num_threads(1)
    count, n, N = LAYER_7B
    statistics(heads(2, 8, 64))
    factors = heads(*LAYER_7B, torch.bfloat16)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts anew
    before = resident("VmRSS")
    taken = seconds(lambda: statistics(factors))
    extra = resident("VmHWM") - before
    allowed = 2 * count * n * N * 8 + count * (2 * n) ** 2 * 8
    print(f"\n7B, a layer of 32: {count} heads, N {N}, n {n}, bfloat16: {taken:.2f} s, so {32 * taken:.0f} s for all")
    print(f"  extra memory {extra / 2**20:.0f} MiB; of W_Q, W_K and 2n × 2n in float64: {allowed / 2**20:.0f} MiB")


def _spin(stop: multiprocessing.synchronize.Event) -> None:
    data = np.random.default_rng(0).standard_normal((300, 300))
    while not stop.is_set():
        data = np.tanh(data @ data)


@contextmanager
def load(processes: int) -> Iterator[None]:
    stop = multiprocessing.Event()
    workers = [multiprocessing.Process(target=_spin, args=(stop,), daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()
    time.sleep(2)
    yield
    stop.set()
    for worker in workers:
        worker.join()


def on_worker(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def busy_machine(default: int) -> None:
    factors = heads(*GPT2).take(slice(0, 48))

    def capped() -> None:
        with solver_threads():
            statistics(factors)

    def one() -> None:
        torch.set_num_threads(1)
        statistics(factors)

    def uncapped() -> None:
        torch.set_num_threads(default)
        statistics(factors)

    torch.set_num_threads(default)
    with load(2):
        calls = {"default setting, capped": capped, "one thread": one, f"{default} threads": uncapped}
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(9):
            for name, call in calls.items():
                torch.set_num_threads(default)
                taken[name].append(seconds(lambda call=call: on_worker(call)))
                assert torch.get_num_threads() == default
    found = {name: stats.median(values) for name, values in taken.items()}
    print(f"\nBeside two busy processes, 48 heads, on a worker; the main thread has {default} threads before and after")
    for name, value in found.items():
        print(f"  {name:32} {value * 1e3:10.1f} ms   {value / found['one thread']:6.2f} ×")


def main() -> None:
    default = max(2, torch.get_num_threads())
    print(processor())
    torch.set_num_threads(1)
    compare_ways()
    parts(GPT2, 5)
    parts((4, *LAYER_7B[1:]), 5)
    sound = gram_cores(heads(*GPT2)).sound
    assert bool(sound.all())
    layer_memory()
    busy_machine(default)


if __name__ == "__main__":
    main()
