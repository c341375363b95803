"""Natural text that every python brings: the topics of pydoc, as bytes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from small_gpt import SmallGPT, train
from torch import Tensor

LENGTH = 192


def split_bytes() -> tuple[Tensor, Tensor]:
    """Training and held-out bytes; every eighth topic is held out."""
    from pydoc_data.topics import topics

    names = sorted(topics)
    held = {name for i, name in enumerate(names) if i % 8 == 3}
    parts = ("".join(topics[n] for n in names if (n in held) == which) for which in (False, True))
    train, test = (torch.tensor(list(part.encode())) for part in parts)
    return train, test


def windows(text: Tensor, n: int, length: int, seed: int) -> Tensor:
    """n random windows of the text, shape (n, length)."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - length, (n,), generator=generator)
    return text[starts[:, None] + torch.arange(length)]


def text_model(steps: int, *, seed: int = 0, at: Callable[[SmallGPT, int], None] | None = None) -> SmallGPT:
    """A byte model of four layers with four heads; ``at(model, step)`` is called before every step and at the end."""
    torch.manual_seed(seed)
    model, (text, _) = SmallGPT(256, 64, 4, 4), split_bytes()

    def batch(step: int) -> tuple[Tensor, Tensor]:
        ids = windows(text, 8, LENGTH + 1, 1000 + step)
        return ids[:, :-1], ids[:, 1:]

    train(model, batch, steps, lr=3e-3, at=None if at is None else lambda step: at(model, step))
    return model.eval()
