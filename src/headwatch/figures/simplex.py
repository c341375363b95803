"""Where a profile (a, b, c, d) lies in a drawing of the 3-simplex."""

from __future__ import annotations

import numpy as np

__all__ = ["EDGES", "FLAT", "FLAT_HIDDEN", "MIDDLE", "SOLID", "THETA", "TRIANGLE", "VERTEX_WORDS", "place"]

SOLID = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=float)
"""Vertices a, b, c, d of the regular tetrahedron; distances are twice those in R⁴."""

FLAT = np.array([[-0.743, 0.229], [-0.208, -0.335], [0.951, 0.106], [0.0, 1.329]])
"""Vertices a, b, c, d of the tetrahedron seen flat, for pictures that do not turn."""

FLAT_HIDDEN = (0, 2)
"""The edge a–c, which the flat view hides."""

TRIANGLE = np.array([[0.5, np.sqrt(3) / 2], [0.0, 0.0], [1.0, 0.0]])
"""Vertices b, c, d of the triangle of symmetric profiles."""

MIDDLE = np.array([0.5, 0.5, 0.0, 0.0])
"""M, where chance puts a head."""

THETA = np.array([[0, 0, 1, 0], MIDDLE, [0, 0, 0, 1]], dtype=float)
"""Θ, the profiles of rank-one forms: the way c – M – d."""

EDGES = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))

VERTEX_WORDS = (
    "a: antisymmetric",
    "b: hyperbolic (spectrum ± paired)",
    "c: positive semidefinite",
    "d: negative semidefinite",
)


def place(profiles: np.ndarray, vertices: np.ndarray) -> np.ndarray:
    """Points of profiles, shape ``[..., k]``, among the vertices, shape ``[k, dims]``.

    >>> place(MIDDLE, SOLID).tolist()
    [1.0, 0.0, 0.0]
    """
    return np.asarray(profiles @ vertices)
