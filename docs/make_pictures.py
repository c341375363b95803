"""Draw the pictures of profile.md: ``python docs/make_pictures.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headwatch.figures.palette import THETA_RED, TYPE_COLOURS
from headwatch.figures.simplex import EDGES, FLAT, FLAT_HIDDEN, MIDDLE, THETA, place
from headwatch.forms import Factors
from headwatch.profiles import statistics

IMAGES = Path(__file__).parent / "images"
N, n = 128, 32  # d_model, d_head

Head = tuple[np.ndarray, np.ndarray]  # W_K, W_Q, each (n, N)


def gaussian(rng: np.random.Generator) -> Head:
    """A head as initialisation leaves it."""
    return rng.normal(size=(n, N)), rng.normal(size=(n, N))


def aligned(rng: np.random.Generator, sign: float, strength: float) -> Head:
    """A head whose queries resemble its keys (sign +1) or their opposites (sign −1)."""
    W_K, other = gaussian(rng)
    return W_K, sign * strength * W_K + other


def rank_one(rng: np.random.Generator, cosine: float) -> Head:
    """A head of one direction: key vector u, query vector v at this cosine, and a little noise."""
    u, w = np.linalg.qr(rng.normal(size=(N, 2)))[0].T
    v = cosine * u + np.sqrt(1 - cosine**2) * w
    noise = 0.02 / np.sqrt(N)
    W_K, W_Q = noise * rng.normal(size=(n, N)), noise * rng.normal(size=(n, N))
    W_K[0], W_Q[0] = u, v
    return W_K, W_Q


def two_shapes(rng: np.random.Generator) -> Head:
    """A head that likes a few directions much and dislikes many a little: its lobes differ in shape."""
    W_K = np.linalg.qr(rng.normal(size=(N, n)))[0].T
    few = rng.integers(1, 4)
    weights = np.where(np.arange(n) < few, 1.0, -rng.uniform(0.15, 0.35))
    return W_K, weights[:, None] * W_K + 0.01 * rng.normal(size=(n, N))


def profile_of(head: Head) -> np.ndarray:
    """(a, b, c, d)."""
    values = statistics(Factors(*(torch.tensor(weight) for weight in head)))
    return np.array([values[key].item() for key in "abcd"])


def lobes_of(head: Head) -> tuple[np.ndarray, np.ndarray]:
    """Positive and negative eigenvalues of S, largest first, over the largest of them."""
    L = head[0].T @ head[1]
    eigenvalues = np.linalg.eigvalsh((L + L.T) / 2)
    eigenvalues /= np.abs(eigenvalues).max()
    return np.sort(eigenvalues[eigenvalues > 1e-9])[::-1], np.sort(eigenvalues[eigenvalues < -1e-9])


def draw_simplex(axes: Axes) -> None:
    """The empty tetrahedron with Θ, M and the words of its corners."""
    for i, j in EDGES:
        style = "--" if (i, j) == FLAT_HIDDEN else "-"
        axes.plot(*FLAT[[i, j]].T, style, color="#aaaaaa", linewidth=1, zorder=0)
    axes.plot(*place(THETA, FLAT).T, color=THETA_RED, linewidth=3, zorder=1)
    words = ("a\nT alone", "b\nlobes alike", "c\nonly +", "d\nonly −")
    for word, (x, y), (dx, dy) in zip(words, FLAT, ((-0.09, 0.02), (0, -0.13), (0.1, 0.0), (0, 0.11)), strict=True):
        axes.text(x + dx, y + dy, word, ha="center", va="center", fontsize=11)
    x, y = place(MIDDLE, FLAT)
    axes.annotate(
        "M: chance", (x, y), (x - 0.36, y - 0.22), fontsize=11, arrowprops={"arrowstyle": "-", "color": "#888888"}
    )
    axes.text(0.62, 0.13, "Θ", color=THETA_RED, fontsize=14, ha="center")
    axes.set_aspect("equal")
    axes.axis("off")


def simplex_picture() -> Figure:
    """Heads of five kinds in the simplex."""
    rng = np.random.default_rng(0)
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    axes = figure.add_subplot()
    draw_simplex(axes)
    kinds: tuple[tuple[str, str, str, Callable[[], Head]], ...] = (
        ("queries like keys", "^", TYPE_COLOURS["I+"], lambda: aligned(rng, 1, rng.uniform(0.2, 1.5))),
        ("queries unlike keys", "v", TYPE_COLOURS["I-"], lambda: aligned(rng, -1, rng.uniform(0.2, 1.5))),
        ("one direction only", "D", THETA_RED, lambda: rank_one(rng, rng.uniform(-1, 1))),
        ("few liked, many disliked", "s", "#2ca02c", lambda: two_shapes(rng)),
        ("at initialisation", "o", TYPE_COLOURS["II"], lambda: gaussian(rng)),
    )
    for label, mark, colour, make in kinds:
        points = place(np.array([profile_of(make()) for _ in range(24)]), FLAT)
        axes.scatter(
            *points.T, marker=mark, s=34, color=colour, edgecolor="white", linewidth=0.5, label=label, zorder=2
        )
    axes.legend(loc="upper right", frameon=False, fontsize=10)
    return figure


def lobes_picture() -> Figure:
    """Spectra of five heads: what b, c and d see."""
    rng = np.random.default_rng(1)
    heads = (
        ("at initialisation", gaussian(rng)),
        ("queries like keys", aligned(rng, 1, 0.7)),
        ("queries unlike keys", aligned(rng, -1, 0.7)),
        ("few liked, many disliked", two_shapes(rng)),
        ("one direction only", rank_one(rng, 0.5)),
    )
    figure = Figure(figsize=(11, 3.3), layout="constrained")
    for place_, (title, head) in enumerate(heads, start=1):
        axes = figure.add_subplot(1, len(heads), place_)
        alpha, beta = lobes_of(head)
        axes.bar(range(len(alpha)), alpha, color=TYPE_COLOURS["I+"], width=0.9)
        axes.bar(range(len(beta)), beta, color=TYPE_COLOURS["I-"], width=0.9)
        axes.axhline(0, color="black", linewidth=0.6)
        a, b, c, d = profile_of(head)
        axes.set_title(f"{title}\na {a:.2f}   b {b:.2f}\nc {c:.2f}   d {d:.2f}", fontsize=10)
        axes.set(xlim=(-1, n), ylim=(-1.05, 1.05), xticks=[], yticks=[0])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    figure.axes[0].set_ylabel("eigenvalues of S")
    return figure


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    simplex_picture().savefig(IMAGES / "simplex.png", dpi=110)
    lobes_picture().savefig(IMAGES / "lobes.png", dpi=110)
