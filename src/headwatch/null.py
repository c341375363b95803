"""What chance looks like: the statistics of a head whose W_K and W_Q are Gaussian, for the model's own N and n.

The cost does not depend on N: the R of a QR of a Gaussian N × 2n matrix is drawn directly (Bartlett) and gives the
core.

**When a head is beyond the null.** Every metric that has a ``tail`` in :mod:`headwatch.metrics` is tested on that side
(both sides share the level where it is two-sided). With H heads in the model and k metrics a head is beyond the null
iff one of its k p-values is at most 0.01/(k·H): Bonferroni, so at most one model in a hundred raises any false alarm
at a snapshot, however heads and metrics depend on each other (heads that share a key under grouped queries do).

**Validity.** Such p-values lie beyond any affordable sample, so each tail past its outer 5 % is continued as a normal
one whose scale is the upper 95 % confidence bound of what its mean excess tells (c and d by their square roots, which
are about normal). At (64, 16), against 300,000 draws and averaged over twelve nulls, p-values of 1e-3, 1e-4 and 1e-5
are too large by factors of 1.5, 1.9 and 2; that of no single metric of a single null is too small by more than 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from headwatch.kernel import core_statistics
from headwatch.metrics import NULL_KEYS, REGISTRY
from headwatch.null_cache import cached
from headwatch.threads import solver_threads

__all__ = ["FAMILY_WISE_LEVEL", "Null", "null_for", "sample_size", "simulate"]

Array = NDArray[np.float64]

FAMILY_WISE_LEVEL = 0.01

_TAIL_SHARE = 0.05
_NORMAL_EDGE = 1.6448536269514722  # the normal quantile above which that share lies
_NORMAL_EXCESS = 0.4178594  # and the mean excess of what lies above it
_BATCH_ENTRIES = 1 << 21
_SKEWED: Mapping[str, Callable[[Array], Array]] = {"c": np.sqrt, "d": np.sqrt}


@dataclass(frozen=True)
class Null:
    """The null distribution of every tested metric.

    Attributes:
        N: d_model.
        n: d_head.
        seed: seed of the simulation.
        draws: by metric, the simulated values in ascending order.
    """

    N: int
    n: int
    seed: int
    draws: Mapping[str, Array]

    def quantile(self, key: str, share: float) -> float:
        """Value below which this share of random heads lies."""
        return float(np.quantile(self.draws[key], share))

    def percentile(self, stats: Mapping[str, Array]) -> dict[str, Array]:
        """Place of every value in the null, in percent: 50 is the median, 99.9 leaves one random head in 1000 above.

        Args:
            stats: values by metric, one shape; metrics without a null are passed over, NaN stays NaN.
        """
        return {key: self._percentile(key, np.asarray(stats[key], float)) for key in NULL_KEYS if key in stats}

    def p_value(self, key: str, values: Array) -> Array:
        """Share of random heads at least as far out, on the metric's side or sides; never too small, see above."""
        tail = REGISTRY[key].tail
        upper, lower = self._above(key, values), self._below(key, values)
        if tail == "two-sided":
            upper = lower = np.minimum(1.0, 2 * np.minimum(upper, lower))
        return upper if tail == "upper" else lower

    def beyond(self, stats: Mapping[str, Array], n_heads: int, level: float = FAMILY_WISE_LEVEL) -> NDArray[np.bool_]:
        """Which heads are beyond the null.

        Args:
            stats: values by metric, shape ``(heads,)``; NaN is never beyond.
            n_heads: heads of the whole model, over which the error is controlled.
            level: largest probability that a model of random heads has one beyond.
        """
        tested = [key for key in NULL_KEYS if key in stats]
        p = np.stack([self.p_value(key, np.asarray(stats[key], float)) for key in tested])
        return np.asarray(np.any(p <= level / (len(tested) * n_heads), axis=0))

    def _percentile(self, key: str, values: Array) -> Array:
        upper, lower = self._above(key, values), self._below(key, values)
        return 100 * np.where(lower < upper, lower, 1 - upper)

    def _above(self, key: str, values: Array) -> Array:
        """Share of random heads above these values."""
        shape = _SKEWED.get(key, np.asarray)
        return _survival(shape(self.draws[key]), shape(values))

    def _below(self, key: str, values: Array) -> Array:
        shape = _SKEWED.get(key, np.asarray)
        return _survival(-shape(self.draws[key])[::-1], -shape(values))


def _survival(ascending: Array, values: Array) -> Array:
    """P(draw > value): by counting, and by a normal tail past the outermost 5 %."""
    size = len(ascending)
    k = int(_TAIL_SHARE * size)
    edge = ascending[-k - 1]
    scale = (ascending[-k:] - edge).mean() / _NORMAL_EXCESS * (1 + 1.645 / np.sqrt(k))
    scale = max(scale, np.finfo(float).tiny)  # a share at its bound, such as d = 0, leaves no spread below
    with np.errstate(over="ignore"):
        tail = _above_normal(_NORMAL_EDGE + np.maximum(values - edge, 0) / scale)
    places = (np.searchsorted(ascending, values, "left") + np.searchsorted(ascending, values, "right")) / 2
    return np.where(values > edge, tail, 1 - (places + 0.5) / (size + 1)) + 0 * values  # + 0 · NaN is NaN


def _above_normal(z: Array) -> Array:
    return np.asarray(torch.special.ndtr(torch.from_numpy(-z)))


@lru_cache(maxsize=16)
def null_for(N: int, n: int, *, seed: int = 0) -> Null:
    """The null of heads with d_model N and d_head n; simulated once, then read from a file of the user's cache."""
    size = sample_size(n)
    draws = cached(f"null-1-N{N}-n{n}-seed{seed}", NULL_KEYS, size, lambda: simulate(N, n, size, seed))
    return Null(N, n, seed, draws)


def sample_size(n: int) -> int:
    """Draws that take seconds to some tens of seconds on one thread: 4096 up to n = 64, 1024 at n = 128."""
    return min(4096, max(512, 2**24 // n**2))


def simulate(N: int, n: int, size: int, seed: int) -> dict[str, Array]:
    """Statistics of random heads, ascending by metric. No global random state is read or written.

    Args:
        N: d_model.
        n: d_head.
        size: number of heads.
        seed: of NumPy's default generator.
    """
    rng = np.random.default_rng(seed)
    batch = max(1, _BATCH_ENTRIES // (4 * n * n))
    with solver_threads():
        tables = [
            core_statistics(_random_cores(rng, N, n, min(batch, size - start)), edge=0.0)
            for start in range(0, size, batch)
        ]
    return {key: np.sort(np.concatenate([table[key].numpy() for table in tables])) for key in NULL_KEYS}


def _random_cores(rng: np.random.Generator, N: int, n: int, heads: int) -> torch.Tensor:
    """Cores of Gaussian heads: R of [W_Kᵀ W_Qᵀ] has Gaussian entries above χ-distributed diagonal ones."""
    m = min(2 * n, N)
    entries = np.triu(rng.standard_normal((heads, m, 2 * n)), 1)
    entries[:, range(m), range(m)] = np.sqrt(rng.chisquare(np.arange(N, N - m, -1), (heads, m)))
    R = torch.from_numpy(entries)
    return torch.matmul(R[:, :n, :n], R[:, :, n:].mT)
