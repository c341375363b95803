"""Watch every attention head move while it trains.

``headwatch.callbacks.QKProfileMonitor`` watches a PyTorch Lightning training, :class:`Monitor` a plain loop;
:func:`profile` describes the heads of a model as it stands, :func:`load` opens a stored run, :func:`compare` sets runs
side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwatch.comparison import compare
    from headwatch.huggingface import HuggingFaceMonitor
    from headwatch.monitor import Monitor, profile
    from headwatch.options import FormOptions
    from headwatch.run import Run, load

__version__ = "0.1.0"
__all__ = ["FormOptions", "HuggingFaceMonitor", "Monitor", "Run", "compare", "load", "profile"]

_HOME = {
    "FormOptions": "headwatch.options",
    "HuggingFaceMonitor": "headwatch.huggingface",
    "Monitor": "headwatch.monitor",
    "Run": "headwatch.run",
    "compare": "headwatch.comparison",
    "load": "headwatch.run",
    "profile": "headwatch.monitor",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: ``import headwatch`` alone stays quick."""
    if name not in _HOME:
        raise AttributeError(f"module 'headwatch' has no attribute {name!r}; it has {', '.join(__all__)}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
