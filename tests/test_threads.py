"""The solver's threads are capped; nobody else's count, and no bit of the training thread, changes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

from headwatch.threads import solver_threads

T = TypeVar("T")


def elsewhere(call: Callable[[], T]) -> T:
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


@pytest.fixture(autouse=True)
def three_threads() -> None:
    """A count that no default would give."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def counts() -> tuple[int, int]:
    """Of this thread, and of one that starts now."""
    return torch.get_num_threads(), elsewhere(torch.get_num_threads)


def test_the_body_runs_on_one_thread_and_the_count_comes_back() -> None:
    with solver_threads():
        assert counts() == (1, 3)
    assert counts() == (3, 3)


def test_on_a_worker_the_training_thread_is_left_alone() -> None:
    def work() -> list[tuple[int, int]]:
        with solver_threads():
            inside = counts()
        return [inside, counts()]

    assert elsewhere(work) == [(1, 3), (3, 3)]
    assert counts() == (3, 3)


def test_a_count_that_changed_after_the_worker_started_stays_the_default() -> None:
    begun, changed = threading.Event(), threading.Event()

    def work() -> tuple[int, int]:
        torch.get_num_threads()
        begun.set()
        changed.wait()
        with solver_threads():
            pass
        return counts()

    results: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    begun.wait()
    torch.set_num_threads(2)
    changed.set()
    thread.join()
    assert results == [(3, 2)]
    assert counts() == (2, 2)


def test_the_count_comes_back_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="in the body"), solver_threads():
        raise RuntimeError("in the body")
    assert counts() == (3, 3)


def test_nested_uses_do_no_harm() -> None:
    with solver_threads(), solver_threads():
        assert counts() == (1, 3)
    assert counts() == (3, 3)


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a count ≥ 1, found 0"), solver_threads(0):
        pass


PROGRAM = """
import hashlib, threading, torch
from headwatch.forms import Factors
from headwatch.profiles import statistics
from headwatch.threads import solver_threads

def train():
    generator, digest = torch.Generator().manual_seed(0), hashlib.sha256()
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    for parameter in layer.parameters():
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        layer(torch.randn(4, 40, 64, generator=generator)).square().mean().backward()
        optimizer.step()
        later = []
        thread = threading.Thread(target=lambda: later.append(torch.randn(300_001, generator=generator).sum()))
        thread.start()
        thread.join()
        a = torch.randn(400, 400, generator=generator)
        for value in (a @ a, a.softmax(1), a.sum(), later[0], torch.linalg.svdvals(a[:90]), *layer.parameters()):
            digest.update(value.detach().numpy().tobytes())
    return digest.hexdigest()

stop = threading.Event()
factors = Factors(torch.ones(4, 32, 256).cumsum(1).sin(), torch.ones(4, 32, 256).cumsum(2).cos())

def solve():
    while not stop.is_set():
        with solver_threads():
            statistics(factors)

print(train())
worker = threading.Thread(target=solve)
worker.start()
print(train())
stop.set()
worker.join()
print(train())
"""


def test_training_beside_solves_has_the_same_bits() -> None:
    """On two threads that nobody asked for by name: before, beside and after solves on a worker."""
    environment = os.environ | {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}  # spinning threads take minutes
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    digests = done.stdout.split()
    assert len(digests) == 3
    assert len(set(digests)) == 1
