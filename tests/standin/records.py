"""What the stand-in server holds of runs and artifacts."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass
class StoredRun:
    """One run: the lines of its streams, its files, its config."""

    entity: str
    project: str
    name: str
    lines: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))  # by stream and offset
    files: dict[str, bytes] = field(default_factory=dict)
    config: Json = field(default_factory=dict)
    alerts: list[Json] = field(default_factory=list)
    complete: bool = False
    exit_code: int | None = None

    @property
    def history(self) -> list[Json]:
        """Rows as logged, without W&B's own keys."""
        lines = self.lines["wandb-history.jsonl"]
        return [_without_own(json.loads(lines[offset])) for offset in sorted(lines)]

    @property
    def summary(self) -> Json:
        """The last summary that was streamed."""
        lines = self.lines["wandb-summary.json"]
        return json.loads(lines[max(lines)]) if lines else {}


def _without_own(row: Json) -> Json:
    return {key: value for key, value in row.items() if not key.startswith("_")}


@dataclass
class StoredArtifact:
    """One artifact version: its manifest, and by its entries the files behind it."""

    id: str
    name: str
    type: str
    digest: str
    run: str | None = None
    committed: bool = False
    manifest: bytes = b""

    @property
    def entries(self) -> dict[str, str]:
        """Base-64 MD5 by path, as the manifest says."""
        contents = json.loads(self.manifest)["contents"]
        return {path: entry["digest"] for path, entry in contents.items()}
