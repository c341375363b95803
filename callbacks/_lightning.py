"""The callback base of whichever Lightning is installed, or of both."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningModule, Trainer

    LightningCallback = Callback
else:
    Trainer = LightningModule = Any

    def _bases() -> tuple[type, ...]:
        found = []
        for module in ("pytorch_lightning", "lightning.pytorch"):
            with contextlib.suppress(ModuleNotFoundError):
                found.append(importlib.import_module(module).Callback)
        if not found:
            raise ImportError(
                "headwatch.callbacks needs PyTorch Lightning: pip install pytorch-lightning. "
                "Without it, headwatch.Monitor watches a plain training loop."
            )
        return tuple(dict.fromkeys(found))

    # pytorch_lightning.Callback is not lightning.pytorch.Callback; a Trainer of either must take ours
    LightningCallback = type("LightningCallback", _bases(), {})

__all__ = ["LightningCallback", "LightningModule", "Trainer"]
