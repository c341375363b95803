"""The lock of a run directory: refuses a second live writer, stale after a kill."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["LockedError", "RunLock"]

_HELD: set[Path] = set()  # directories that this process writes to
_STALE_AFTER = 300.0  # seconds without a heartbeat, for a writer on another host


class LockedError(RuntimeError):
    """Another live process writes to this run directory."""


@dataclass(frozen=True)
class _Owner:
    host: str
    boot: str
    pid: int
    started: str  # start time of the process: a pid alone is used again


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    fields = _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _this_process() -> _Owner:
    boot = _read_text("/proc/sys/kernel/random/boot_id")
    return _Owner(socket.gethostname(), boot, os.getpid(), _started(os.getpid()))


def _alive(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it lives, under another user
    return not started or _started(pid) == started


class RunLock:
    """A lock file with host, boot id, pid; a heartbeat keeps it fresh for readers on other hosts.

    Raises:
        LockedError: another live process holds the lock.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / ".lock"

    def acquire(self) -> None:
        """Take the lock, replacing a stale one."""
        me = json.dumps(asdict(_this_process()))
        for _ in range(2):
            try:
                with open(self.path, "x") as file:
                    file.write(me)
                _HELD.add(self.path.absolute())
                return
            except FileExistsError:
                self._remove_if_stale()
        raise LockedError(self._refusal())

    def heartbeat(self) -> None:
        """Tell other hosts that this run lives."""
        os.utime(self.path)

    def release(self) -> None:
        """Give the lock back if it is ours."""
        _HELD.discard(self.path.absolute())
        if self._owner() == _this_process():
            self.path.unlink(missing_ok=True)

    def held_by_live_process(self) -> bool:
        """True while some process writes to the run."""
        owner = self._owner()
        return owner is not None and not self._stale(owner)

    def _owner(self) -> _Owner | None:
        try:
            return _Owner(**json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _remove_if_stale(self) -> None:
        owner = self._owner()
        if owner is None or self._stale(owner):
            self.path.unlink(missing_ok=True)

    def _stale(self, owner: _Owner) -> bool:
        me = _this_process()
        if owner == me:  # an object of ours that was dropped without a close
            return self.path.absolute() not in _HELD
        if owner.host != me.host:
            return self._age() > _STALE_AFTER
        return owner.boot != me.boot or not _alive(owner.pid, owner.started)

    def _age(self) -> float:
        """Seconds since the last heartbeat by the file system's own clock, which may not be ours."""
        probe = self.path.with_name(f".clock-{os.getpid()}")
        try:
            probe.touch()
            return probe.stat().st_mtime - self.path.stat().st_mtime
        except OSError:
            return 0.0
        finally:
            probe.unlink(missing_ok=True)

    def _refusal(self) -> str:
        owner = self._owner()
        who = f"process {owner.pid} on {owner.host}" if owner else "another process"
        return (
            f"{self.path.parent} is being written by {who}, and a run directory takes one writer. "
            f"Give this run another dirpath=, or a W&B run of its own; if that process is gone, delete {self.path}."
        )
