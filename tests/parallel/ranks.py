"""Run a scenario in several processes on this machine: ``python ranks.py <scenario> <world size> <directory>``.

Everything is imported once, then every rank is a fork that finds its place in torchrun's own environment variables.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

Scenario = Callable[[Path], object]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run(scenario: Scenario, world: int, root: Path, limit: float) -> list[int]:
    """Exit codes by rank; -9 for one that had to be killed."""
    port = free_port()
    pids = [_fork(scenario, rank, world, port, root) for rank in range(world)]
    return _wait(pids, time.monotonic() + limit)


def _fork(scenario: Scenario, rank: int, world: int, port: int, root: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "tests"}
    os.environ.update({key: str(value) for key, value in {**place, **address}.items()})
    code = 0
    try:
        result = scenario(root)
        (root / f"rank{rank}.json").write_text(json.dumps(result))
    except BaseException:
        (root / f"rank{rank}.error").write_text(traceback.format_exc())
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(pids: list[int], deadline: float) -> list[int]:
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in [pid for pid in pids if pid not in codes]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(pid, 9)
                codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(0.02)
    return [codes[pid] for pid in pids]


def main() -> int:
    import scenarios
    import zero3

    names, world, root, limit = sys.argv[1].split(","), int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    warnings.simplefilter("ignore")
    failed = 0
    for name in names:
        place = root / name
        place.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        scenario = zero3.zero3 if name == "zero3" else getattr(scenarios, name)
        codes = run(scenario, world, place, limit)
        (place / "codes.json").write_text(json.dumps(codes))
        print(f"{name}: {codes} in {time.monotonic() - start:.1f} s", flush=True)
        failed += any(codes)
    return failed


if __name__ == "__main__":
    sys.exit(main())
