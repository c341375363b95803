"""Start scenarios in their own processes, within a time limit, and read what the ranks returned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIMIT = 100.0  # seconds for one scenario; a rank that is still there is killed


def launch(names: list[str], world: int, root: Path) -> None:
    """Run scenarios one after the other; failures are read from their results."""
    command = [sys.executable, str(HERE / "ranks.py"), ",".join(names), str(world), str(root), str(LIMIT)]
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    within = 60 + LIMIT * len(names)
    done = subprocess.run(command, env=environment, timeout=within, capture_output=True, text=True, check=False)
    (root / "output.txt").write_text(done.stdout + done.stderr)


def codes(root: Path, name: str) -> list[int]:
    """Exit codes of a scenario's ranks; -9 is a rank that hung."""
    codes: list[int] = json.loads((root / name / "codes.json").read_text())
    return codes


def results(root: Path, name: str) -> list[Any]:
    """What every rank returned; the traceback of one that failed is the assertion's message."""
    errors = "\n".join(path.read_text() for path in sorted((root / name).glob("rank*.error")))
    assert not any(codes(root, name)), f"exit codes {codes(root, name)}\n{errors}"
    return [json.loads(path.read_text()) for path in sorted((root / name).glob("rank*.json"))]
