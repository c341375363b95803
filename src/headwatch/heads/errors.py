"""What finding heads can raise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headwatch.heads.headmap import LeftOut

__all__ = ["NoAttentionError", "advising"]

_IN_CALLBACKS = (
    "if forward(batch) does not run the model, say what does: probe_fn=lambda model, batch: ...; "
    "or hand the heads over: heads=[{'module': 'blocks.0.attn', 'W_Q': 'blocks.0.attn.q.weight', "
    "'W_K': 'blocks.0.attn.k.weight', 'n_heads': 8, 'n_kv_heads': 8}]."
)


class NoAttentionError(ValueError):
    """No head of the model can be watched.

    Args:
        model: what people call it.
        left_out: what was looked at, and why it is not taken.
        what_to_do: the remedy where it is raised; that of the callbacks by default.
    """

    def __init__(self, model: str, left_out: Sequence[LeftOut] = (), what_to_do: str = _IN_CALLBACKS) -> None:
        self.model = model
        self.left_out = tuple(left_out)
        self.what_to_do = what_to_do
        reasons = "".join(f"\n  {item.module or '(the model itself)'}: {item.reason}" for item in left_out[:20])
        found = f"Left out:{reasons}" if left_out else "Nothing in it looks like self-attention."
        super().__init__(
            f"{model}: expected self-attention with query and key projections, found none that can be watched. "
            f"{found}\nWhat to do: {what_to_do}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent between processes as it was made."""
        return type(self), (self.model, self.left_out, self.what_to_do)


@contextmanager
def advising(what_to_do: str, *, model: str = "") -> Iterator[None]:
    """Where the callbacks' arguments do not exist: the same error with the remedy that does, and the model's name."""
    try:
        yield
    except NoAttentionError as error:
        raise NoAttentionError(model or error.model, error.left_out, what_to_do) from None
