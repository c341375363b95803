"""Processes that a test started itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

HAS_PROC = Path("/proc/self/stat").exists()


def children(name: str) -> Iterator[int]:
    """Ids of this process's children of one name."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = stat.read_text().partition(" (")
        except OSError:  # it ended meanwhile
            continue
        command, _, fields = rest.rpartition(") ")
        if command == name and int(fields.split()[1]) == os.getpid():
            yield int(pid)
