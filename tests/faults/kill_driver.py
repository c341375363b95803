"""Train a stand-in, kill -9 it at a random moment, look at the store, resume; many times over one run.

Forks its children before any thread exists, so that each starts in milliseconds. Prints one JSON line at the end.
"""

import itertools
import json
import os
import random
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from torch import nn

import headwatch
from headwatch.heads import find_heads
from headwatch.measure import ProfileMeasure
from headwatch.sinks.store import RunStore
from headwatch.snapshot import SCHEMA_VERSION

EVERY, LAST = 2, 100_000


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads = 2
        self.q_proj = nn.Linear(8, 8)
        self.k_proj = nn.Linear(8, 8)


def train(root, saved):
    """Goes on from the last checkpoint and never ends; a checkpoint every third step, written whole."""
    model = nn.Sequential(Attention(), Attention())
    start = int(saved.read_text()) if saved.exists() else 0
    monitor = headwatch.Monitor(
        model, dirpath=root, every_n_train_steps=EVERY, early_steps=(), run_id="killed", resume_from=start
    )
    monitor._recorder.store.compact(above=40)
    for step in range(start + 1, LAST):
        with torch.no_grad():
            model[0].q_proj.weight.add_(0.01)
        monitor.step(step)
        if step % 3 == 0:
            state = monitor.state_dict()
            assert state == {"run_id": "killed", "resume_from": step}
            saved.with_suffix(".new").write_text(str(step))
            os.replace(saved.with_suffix(".new"), saved)


def write_on(root, saved):
    """Writes parts as fast as it can, and compacts them often: a kill mostly lands in the middle of a write."""
    model = nn.Sequential(Attention(), Attention())
    measure = ProfileMeasure(find_heads(model), lambda: dict(model.named_parameters()), null=False)
    snapshot = measure.take(0)(0)
    store = RunStore(root / "headwatch" / "killed", {"schema_version": SCHEMA_VERSION, "id": "killed"})
    for step in range(len(store.steps("profile")), LAST):
        store.write(replace(snapshot, step=step).with_columns(step=step))
        if step % 25 == 0:
            store.compact(above=20)


def check(run_path):
    """Read with our reader and with pandas alone; what is there must be whole, each step once."""
    run = headwatch.load(run_path)
    steps = run.steps()
    if not steps:
        return steps
    counts = run.to_pandas().groupby("step").size()
    plain = pd.read_parquet(run_path / "profile")
    assert set(plain.step) == set(steps), "pandas alone reads other steps"
    assert (counts == 4).all(), f"rows a step: {counts[counts != 4].to_dict()}"
    return steps


def in_a_child(function, *args):
    """Pid of a forked child that runs the function and exits 0, or 1 when it raises."""
    child = os.fork()
    if child:
        return child
    try:
        function(*args)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def wait_for_writes(directory, writes, patience=20.0):
    """Until so many files were renamed into place: a kill should find the child at work, however slow it is."""
    seen, changes, deadline = directory_state(directory), 0, time.monotonic() + patience
    while changes < writes and time.monotonic() < deadline:
        time.sleep(0.001)
        now = directory_state(directory)
        changes, seen = changes + (now != seen), now


def directory_state(directory):
    try:
        return directory.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def kill_often(job, root, kills, seed, most_writes):
    """Start the job, kill -9 it at a random moment, read the store; ``kills`` times."""
    rng = random.Random(seed)
    saved = root / "checkpoint"
    run_path = root / "headwatch" / "killed"
    survived = 0
    while survived < kills:
        child = in_a_child(job, root, saved)
        wait_for_writes(run_path / "profile", rng.randint(0, most_writes))
        time.sleep(rng.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if not (run_path / "run.json").exists():
            continue  # killed before it began
        survived += 1
        _, status = os.waitpid(in_a_child(check, run_path), 0)
        if status:
            sys.exit(f"the store did not read after kill {survived}")
    return survived, saved, run_path


def writing(root, kills, seed):
    """The store alone, killed while it writes."""
    survived, _, run_path = kill_often(write_on, root, kills, seed, most_writes=16)
    steps = check(run_path)
    holes = sorted(set(range(steps[-1] + 1)) - set(steps))
    print(json.dumps({"kills": survived, "last_step": steps[-1], "missing": holes}))


def training(root, kills, seed):
    """A monitored training, killed and resumed from its last checkpoint."""
    survived, saved, run_path = kill_often(train, root, kills, seed, most_writes=5)
    # a last training that ends by itself: from here the store must hold each due step once
    model = nn.Sequential(Attention(), Attention())
    start = int(saved.read_text()) if saved.exists() else 0
    monitor = headwatch.Monitor(
        model, dirpath=root, every_n_train_steps=EVERY, early_steps=(), run_id="killed", resume_from=start
    )
    for step in range(start + 1, start + 12):
        monitor.step(step)
    monitor.close()
    steps = check(run_path)
    end = start + 11
    wanted = sorted({*range(0, end + 1, EVERY), end})
    extra = [s for s in steps if s % EVERY and s != end]  # where a resume took a due step late
    missing = [s for s in wanted if s not in steps]
    gaps = max((b - a for a, b in itertools.pairwise(steps)), default=0)
    superseded = len(list((run_path / "superseded").rglob("*.parquet")))
    print(
        json.dumps(
            {
                "kills": survived,
                "last_step": end,
                "missing": missing,
                "late": extra,
                "largest_gap": gaps,
                "superseded": superseded,
                "left_in_tmp": len(list(run_path.glob(".tmp/*"))),
                "status": headwatch.load(run_path).info["status"],
            }
        )
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    directory = Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    {"training": training, "writing": writing}[sys.argv[1]](directory, int(sys.argv[3]), int(sys.argv[4]))
