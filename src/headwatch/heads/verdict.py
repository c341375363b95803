"""What a proof found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Verdict"]


@dataclass(frozen=True)
class Verdict:
    """Predicted against used scores of one attention call.

    Attributes:
        errors: per query head, largest error of a score over the head's largest score.
        tolerance: the largest error that rounding explains.
        tried: comparisons made, in words.
        diagonal: only scores of a token with itself were compared.
    """

    errors: np.ndarray
    tolerance: float
    tried: tuple[str, ...] = ()
    diagonal: bool = False

    @property
    def holds(self) -> bool:
        """Whether the scores of every head were predicted."""
        return bool((self.errors <= self.tolerance).all())

    def failure(self) -> str:
        """Why it does not hold, in words for the user."""
        wrong = np.flatnonzero(~(self.errors <= self.tolerance))
        heads = ", ".join(str(head) for head in wrong[:8]) + (" …" if len(wrong) > 8 else "")
        return (
            f"predicted scores differ from the model's in {len(wrong)} of {len(self.errors)} heads ({heads}): "
            f"error {self.errors[wrong].max():.2g} of the largest score, {self.tolerance:.0e} allowed; "
            f"tried: {'; '.join(self.tried)}"
        )
