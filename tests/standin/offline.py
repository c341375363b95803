"""Reading an offline run back with W&B's own reader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def read_offline(root: Path) -> list[dict[str, Any]]:
    """All records of the only ``.wandb`` file below ``root``."""
    (file,) = root.rglob("*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def history(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as logged, without W&B's own keys; ``key.path`` and the like for a picture."""
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Last value of every summary key."""
    values: dict[str, Any] = {}
    for record in records:
        if record["type"] == "summary":
            values.update(record["summary"].get("update", {}))
    return values
