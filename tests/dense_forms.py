"""Profiles by brute force: the full N × N form in float64 NumPy, from the definitions; no code of the library."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

M = np.array([0.5, 0.5, 0.0, 0.0])
VERTEX_C = np.array([0.0, 0.0, 1.0, 0.0])
VERTEX_D = np.array([0.0, 0.0, 0.0, 1.0])


def lobes_of(S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values = np.linalg.eigvalsh(S)
    alpha, beta = np.sort(values[values > 0])[::-1], np.sort(-values[values < 0])[::-1]
    size = max(len(alpha), len(beta))
    return np.pad(alpha, (0, size - len(alpha))), np.pad(beta, (0, size - len(beta)))


def profile_of(L: np.ndarray) -> np.ndarray:
    S, T = (L + L.T) / 2, (L - L.T) / 2
    alpha, beta = lobes_of(S)
    gap = alpha - beta
    shares = [np.sum(T**2), 2 * alpha @ beta, np.sum(np.maximum(gap, 0) ** 2), np.sum(np.maximum(-gap, 0) ** 2)]
    return np.array(shares) / np.sum(L**2)


def distance_to_theta(profile: np.ndarray) -> tuple[float, float]:
    """Distance and position by numeric minimisation over both segments."""
    found = []
    for vertex, sign in ((VERTEX_C, 1), (VERTEX_D, -1)):
        best = minimize_scalar(
            lambda s, v=vertex: float(np.sum((profile - (1 - s) * M - s * v) ** 2)),
            bounds=(0, 1), method="bounded", options={"xatol": 1e-12},
        )  # fmt: skip
        found.append((best.fun**0.5, sign * best.x**0.5))
    return min(found)


def statistics_of(W_K: np.ndarray, W_Q: np.ndarray) -> dict[str, float]:
    """Every number of one head, factors of shape (n, N)."""
    size = np.abs(W_K).max() * np.abs(W_Q).max()
    L = (W_K / np.abs(W_K).max()).T @ (W_Q / np.abs(W_Q).max())
    a, b, c, d = profile_of(L)
    S = (L + L.T) / 2
    alpha, beta = lobes_of(S)
    h = np.linalg.svd(L, compute_uv=False)
    rho = np.linalg.norm(beta) / np.linalg.norm(alpha)
    pairing = 1 - np.linalg.norm(alpha - beta) / np.linalg.norm(S)
    values = np.linalg.eigvalsh(S)
    n_pos, n_neg = (values > 1e-9 * np.abs(values).max()).sum(), (values < -1e-9 * np.abs(values).max()).sum()
    distance, position = distance_to_theta(np.array([a, b, c, d]))
    return {
        "a": a, "b": b, "c": c, "d": d,
        "b_sym": b / (1 - a), "c_sym": c / (1 - a), "d_sym": d / (1 - a),
        "norm": size * np.linalg.norm(L),
        "trace_ratio": np.trace(L) / np.linalg.norm(L),
        "rho": rho,
        "pairing": pairing,
        "pairing_bound": 1 - abs(1 - rho) / np.sqrt(1 + rho**2),
        "lobe_departure": np.linalg.norm(beta - rho * alpha) / np.linalg.norm(beta),
        "balance": 1 - abs(n_pos - n_neg) / (n_pos + n_neg),
        "participation_ratio": np.sum(h**2) ** 2 / np.sum(h**4),
        "stable_rank": np.sum(h**2) / h[0] ** 2,
        "leading_share": h[0] ** 2 / np.sum(h**2),
        "n_pos": n_pos, "n_neg": n_neg,
        "theta_distance": distance, "theta_position": position,
    }  # fmt: skip
