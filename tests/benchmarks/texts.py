"""Natural text that every python brings: the topics of pydoc, as bytes."""

from __future__ import annotations

import torch
from torch import Tensor


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
