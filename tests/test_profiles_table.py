"""The published table of 408 heads: every derived column from a–d and ρ, types, distances."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from headwatch.lobes import balance, lobe_shape, lobe_shares, lobes
from headwatch.metrics import HEAD_TYPES
from headwatch.theta import head_type, theta

TABLE = Path(__file__).parent / "reference" / "head_statistics_4models.csv"
MODELS = ("distilgpt2", "gpt2", "opt-125m", "pythia-70m-deduped")


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray]:
    with TABLE.open() as file:
        table = list(csv.DictReader(file))
    columns = {key: np.array([float(row[key]) for row in table]) for key in table[0] if key != "model"}
    return columns | {"model": np.array([row["model"] for row in table])}


def lobes_with(b: float, c: float, d: float, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """Decreasing lobes with 2⟨α,β⟩ = b, ‖(α−β)₊‖² = c, ‖(α−β)₋‖² = d and ‖β‖/‖α‖ = ρ.

    α = (x + p, y, …, y) and β = (x, y + q, …, y + q) with k equal entries, p² = c and k q² = d: ρ and b leave one
    quadratic equation for y. Else the same with the lobes exchanged.
    """
    for exchange, k in itertools.product((False, True), range(1, 64)):
        up, down, ratio = (d, c, 1 / rho) if exchange else (c, d, rho)
        p, q = np.sqrt(up), np.sqrt(down / k)
        if p < 1e-9:
            continue
        A = ((b + c + d) * (1 - ratio**2) / (1 + ratio**2) - up + down) / 2
        for y in np.roots([(k * q / p) ** 2 + k, 2 * k * q * (A / p**2 + 1), (A / p) ** 2 + A - b / 2]):
            x = (A + k * q * y) / p
            if np.isreal(y) and y >= 0 and x >= y + q:
                larger, other = np.array([x + p] + [y] * k), np.array([x] + [y + q] * k)
                return (other, larger) if exchange else (larger, other)
    raise AssertionError(f"no such lobes: {b, c, d, rho}")


def test_derived_columns(rows: dict[str, np.ndarray]) -> None:
    """Lobes with the published b, c, d and ρ have every published derived number."""
    keys = ("b_sym", "c_sym", "d_sym", "pairing", "rho", "pairing_bound", "pairing_gap", "lobe_departure")
    for i in range(len(rows["a"])):
        b, c, d, rho = (rows[key][i] for key in ("b", "c", "d", "rho"))
        alpha, beta = lobes_with(b, c, d, rho)
        found_lobes = lobes(torch.tensor(np.sort(np.concatenate([alpha, -beta]))))
        shares = torch.stack(lobe_shares(*found_lobes))
        np.testing.assert_allclose(shares, [b, c, d], rtol=0, atol=1e-9)
        found = dict(zip(keys[:3], shares / shares.sum(), strict=True)) | lobe_shape(*found_lobes)
        for key in keys:
            assert abs(found[key].item() - rows[key][i]) <= 1e-6, (key, i)


def test_columns_that_other_columns_give(rows: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose(rows["a"] + rows["b"] + rows["c"] + rows["d"], 1, rtol=0, atol=1e-6)
    np.testing.assert_allclose(rows["symmetric_energy"], 1 - rows["a"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(rows["leading_share"], 1 / rows["stable_rank"], rtol=0, atol=1e-6)
    found = balance(torch.tensor(rows["n_pos"]), torch.tensor(rows["n_neg"]))
    np.testing.assert_allclose(rows["balance"], found, rtol=0, atol=1e-6)


def test_medians_of_the_distance_to_theta(rows: dict[str, np.ndarray]) -> None:
    distance, _ = theta(*(torch.tensor(rows[key]) for key in "abcd"))
    medians = [float(np.median(distance.numpy()[rows["model"] == model])) for model in MODELS]
    np.testing.assert_allclose(medians, [0.017, 0.014, 0.030, 0.009], rtol=0, atol=5e-4)


def test_types_of_heads(rows: dict[str, np.ndarray]) -> None:
    codes = head_type(torch.tensor(rows["c_sym"]), torch.tensor(rows["d_sym"])).numpy()
    kinds = np.array([HEAD_TYPES[int(code)] for code in codes])
    counts = [[int((kinds[rows["model"] == model] == kind).sum()) for kind in ("I+", "II", "I-")] for model in MODELS]
    assert counts == [[25, 19, 28], [53, 49, 42], [114, 24, 6], [9, 24, 15]]
