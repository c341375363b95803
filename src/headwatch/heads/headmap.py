"""Where the heads of a model live: names of parameters and rows in them, never a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["FLAT", "IDENTITY", "Gain", "HeadMap", "LeftOut", "Projection", "Rope", "Rows", "Site", "Status", "Term"]

Status = Literal["proven", "structural"]
IDENTITY = "o i -> o i"
FLAT = "flat"


@dataclass(frozen=True)
class Rows:
    """Rows of one parameter, read as a matrix (out, in).

    Attributes:
        parameter: name in ``model.named_parameters()`` (or buffers), without ``_orig_mod.`` and the like.
        pattern: einops pattern that turns the parameter into (out, in): ``"o i -> o i"`` for ``nn.Linear``,
            ``"i o -> o i"`` for Conv1D, ``"h i n -> (h n) i"`` for a 3-D einsum weight; "flat" for a bias of any shape.
        index: rows to take, shape ``(heads, n)``; None takes the whole matrix.
        more: further parameters of the same pattern, laid under the first, where heads keep weights of their own.
    """

    parameter: str
    pattern: str = IDENTITY
    index: np.ndarray | None = None
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gain:
    """A diagonal (QK-norm gain, or the gain of the norm in front): offset + parameter.

    Attributes:
        parameter: name of the parameter.
        index: flat places in it; shape ``(n,)`` for a gain that all heads share, ``(heads, n)`` for one of their own.
        offset: 1 for norms that store w and multiply by 1 + w (Gemma).
        more: further parameters, one per head, where each head has its own norm module (StableLM).
    """

    parameter: str
    index: np.ndarray | None = None
    offset: float = 0.0
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Term:
    """One product: scale · rows[0] @ diag(gain) @ rows[1]; only the first factor is indexed by head.

    Two factors make a low-rank update (LoRA: scale · B A) or a latent projection (MLA: up · norm · down).
    """

    rows: tuple[Rows, ...]
    scale: float = 1.0
    gain: Gain | None = None


@dataclass(frozen=True)
class Projection:
    """W_Q or W_K of all heads of one module: a sum of terms, shape ``(heads, n, N)``, with what belongs to it.

    Attributes:
        terms: the summands.
        bias: one bias per row; ``Rows.index`` has shape ``(heads, n)``.
        gain: gain of a QK-norm.
        centred: the QK-norm is a LayerNorm, which takes the mean over d_head away: so do the rows.
    """

    terms: tuple[Term, ...]
    bias: Rows | None = None
    gain: Gain | None = None
    centred: bool = False


@dataclass(frozen=True)
class Rope:
    """Rotary positions: coordinates [start, stop) turn in pairs, by these frequencies (radians per position)."""

    pairing: Literal["half", "interleaved"]
    start: int
    stop: int
    frequencies: tuple[float, ...]


@dataclass(frozen=True)
class Site:
    """One self-attention module and its heads.

    Attributes:
        layer: 0-based count of self-attention modules in registration order, proven or not.
        module: qualified name of the module, as the user would write it.
        heads: the query heads that are watched (all by default); row i of every table of this site is ``heads[i]``.
        kv_head: key-value head of every query head, length ``n_heads``.
        status: "proven" (predicted scores equal the model's) or "structural" (read by rule).
        flags: what a reader must know: "qk_norm", "mla_nope", "lora", "rope", "frozen", "tied", "by_value" …
        aliases: other names of the same module.
        rope: rotary positions, where they were measured.
        norm: gain of the norm in front, where one was found.
        caller: module that makes the attention call, where that is not ``module`` itself.
        layout: how the weights lie, in words ("separate", "fused-concat", "fused-interleaved-per-head" …).
    """

    layer: int
    module: str
    d_model: int
    d_head: int
    n_heads: int
    n_kv_heads: int
    W_Q: Projection
    W_K: Projection
    kv_head: tuple[int, ...]
    heads: tuple[int, ...]
    status: Status
    flags: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    rope: Rope | None = None
    norm: Gain | None = None
    caller: str = ""
    layout: str = ""


@dataclass(frozen=True)
class LeftOut:
    """A module or a head that is not watched, and why, in words for the user."""

    module: str
    reason: str


@dataclass(frozen=True)
class HeadMap:
    """All heads that are watched, and by name everything that is not."""

    sites: tuple[Site, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def n_heads(self) -> int:
        """Number of watched query heads."""
        return sum(len(site.heads) for site in self.sites)

    def site_of(self, module: str) -> Site | None:
        """The site whose attention a module calls: the module itself, its caller, or the nearest that holds it."""
        for site in self.sites:
            if module in (site.module, site.caller, *site.aliases):
                return site
        holders = [site for site in self.sites if module.startswith(f"{site.module}.") or not site.module]
        return max(holders, key=lambda site: len(site.module), default=None)
