"""Which form is measured."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FormOptions"]


@dataclass(frozen=True)
class FormOptions:
    """Which form is measured; every option is off by default, recorded in ``run.json`` and written on pictures.

    Attributes:
        biases: the homogenised form on R^(N+1) instead of the weights alone.
        norm_gain: the gain of the norm in front folded in.
        displacements: rotary displacements d, query position − key position; one profile per d.
    """

    biases: bool = False
    norm_gain: bool = False
    displacements: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "displacements", tuple(self.displacements))
        if not self.displacements or any(not isinstance(d, int) or d < 0 for d in self.displacements):
            raise ValueError(
                f"displacements: expected whole numbers ≥ 0, found {self.displacements!r}; (0,) is the default."
            )

    def flags(self) -> list[str]:
        """What a reader of a picture must know."""
        flags = [slug.replace("_", " ") for slug in self.slugs()]
        turned = " ".join(map(str, self.displacements))
        return flags + ([f"rotary displacements {turned}"] if self.displacements != (0,) else [])

    def slugs(self) -> list[str]:
        """The same for the ``flags`` column, where a displacement has a column of its own."""
        return ["with_biases"] * self.biases + ["norm_gain_folded_in"] * self.norm_gain
