"""What headwatch says to the user: each thing once, as a warning, and kept for ``run.json``."""

from __future__ import annotations

import threading
import warnings

__all__ = ["HeadwatchWarning", "Notices"]


class HeadwatchWarning(UserWarning):
    """Something about the watching, not about the training, needs attention."""


class Notices:
    """Says each notice once per key and remembers it.

    Args:
        aloud: False keeps notices without saying them, on ranks other than 0.
    """

    def __init__(self, aloud: bool = True) -> None:
        self.aloud = aloud
        self.messages: list[str] = []
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def say(self, key: str, message: str) -> None:
        """Warn with ``message`` unless ``key`` was said before."""
        with self._lock:
            if key in self._said:
                return
            self._said.add(key)
            self.messages.append(message)
        if not self.aloud:
            return
        text = f"headwatch: {message}"
        # a registry of its own: what an earlier training of this process was told is said again to this one
        warnings.warn_explicit(text, HeadwatchWarning, "headwatch", 0, module="headwatch", registry={})
