"""Made-up runs for tests of pages and figures: tables with the store's schema whose columns obey the definitions.

Each head walks from chance (M = (½, ½, 0, 0)) towards a goal of its own; every derived column follows from
(a, b, c, d) and the lobe ratio by the formulas of the paper, written here independently of the package.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headwatch.metrics import NULL_KEYS, PROFILE_KEYS, SIGNATURE_KEYS
from headwatch.snapshot import SUMMARY_SCHEMA, TOKENS_SCHEMA, heads_table

DEFAULT_STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 100, 200, 300)
MIDDLE = np.array([0.5, 0.5, 0.0, 0.0])
TYPES = np.array(["II", "I+", "I-"])


def make_profile_table(
    n_layers: int = 4,
    n_heads: int = 4,
    steps: Sequence[int] = DEFAULT_STEPS,
    seed: int = 0,
    *,
    module: str = "transformer.h.{layer}.attn",
    d_head: int = 32,
    status: str = "proven",
    flags: str = "",
    speed: float = 1.0,
) -> pa.Table:
    """One row per (step, head), ordered by step, layer, head."""
    rng = np.random.default_rng(seed)
    H, S = n_layers * n_heads, len(steps)
    time = _progress(steps, speed)
    goal = _goals(rng, H)
    noise = rng.normal(0, 0.006, (S, H, 4)).cumsum(0) * time[:, None, None]
    pi = np.clip(MIDDLE + time[:, None, None] * (goal - MIDDLE) + noise, 0, None)
    pi[..., 2:] += 2e-4
    pi /= pi.sum(-1, keepdims=True)
    stable = 1 + (d_head / 3 - 1) * np.exp(-time[:, None] * rng.uniform(0.3, 3.5, H)) * np.exp(
        rng.normal(0, 0.02, (S, H))
    )
    columns = _derived(pi, np.maximum(stable, 1.0), d_head)
    columns["drift"] = np.linalg.norm(pi - pi[0], axis=-1)
    columns["path_length"] = np.concatenate([np.zeros((1, H)), np.linalg.norm(np.diff(pi, axis=0), axis=-1).cumsum(0)])
    columns["norm"] = 4.0 + 3 * time[:, None] * rng.uniform(0.2, 2, H)
    columns |= _percentiles(columns)
    beyond = columns["drift"] > 0.03
    columns["beyond_null"] = beyond
    columns["left_null_step"] = _left_step(beyond, np.asarray(steps))
    flat = {key: value.reshape(-1) for key, value in columns.items()}
    return heads_table(
        "profile", _identity(n_layers, n_heads, steps, module, status, flags) | flat | _context(rng, steps, H, time)
    )


def make_signature_table(
    n_layers: int = 4,
    n_heads: int = 4,
    steps: Sequence[int] = DEFAULT_STEPS,
    seed: int = 0,
    *,
    module: str = "transformer.h.{layer}.attn",
    flags: str = "",
) -> pa.Table:
    """Signatures that fall from uniform attention; one row per (step, head)."""
    rng = np.random.default_rng(seed)
    H, S = n_layers * n_heads, len(steps)
    time = _progress(steps, 1.0)[:, None]
    depth = rng.uniform(0.05, 0.95, H)
    jitter = np.exp(rng.normal(0, 0.02, (S, H)))
    values = {
        "n_eff": (0.985 - 0.9 * depth * time) * jitter,
        "c95": np.clip((0.95 - 0.85 * depth * time) * jitter, 0, 1),
        "peak_mean": np.clip((0.03 + 0.8 * depth * time) * jitter, 0, 1),
        "mutual_information": (0.01 + 1.5 * depth * time) * jitter,
        "sink_share": np.clip((0.02 + 0.4 * (1 - depth) * time) * jitter, 0, 1),
        "row_entropy": (4.2 - 3.5 * depth * time) * jitter,
        "max_logit": (0.5 + 12 * depth * time) * jitter,
    }
    assert tuple(values) == SIGNATURE_KEYS
    values |= {f"{key}_std": 0.05 * np.abs(value) for key, value in list(values.items())}
    flat = {key: value.reshape(-1) for key, value in values.items()}
    return heads_table(
        "signature",
        _identity(n_layers, n_heads, steps, module, "proven", flags) | flat | _context(rng, steps, H, time[:, 0]),
    )


def make_run(
    path: Path | str,
    n_layers: int = 4,
    n_heads: int = 4,
    steps: Sequence[int] = DEFAULT_STEPS,
    seed: int = 0,
    *,
    signatures: bool = True,
    name: str = "synthetic",
    module: str = "transformer.h.{layer}.attn",
    config: dict[str, object] | None = None,
    d_head: int = 32,
    status: str = "finished",
    flags: str = "",
    speed: float = 1.0,
    info: dict[str, object] | None = None,
    separate_parts: bool = True,
) -> Path:
    """Write a whole store directory with pyarrow alone and return its path.

    ``info`` overrides keys of run.json; without ``separate_parts`` each kind lies in one part, as after a compaction.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    facts = _run_json(path.name, n_layers, n_heads, d_head, module, name, config, status, flags, seed)
    (path / "run.json").write_text(json.dumps(facts | (info or {})))
    profile = make_profile_table(n_layers, n_heads, steps, seed, module=module, d_head=d_head, flags=flags, speed=speed)
    write = write_parts if separate_parts else write_one_part
    write(path / "profile", profile)
    if signatures:
        write_parts(
            path / "signature", make_signature_table(n_layers, n_heads, steps, seed, module=module, flags=flags)
        )
        write(path / "signature_summary", pa.concat_tables(map(_signature_summary, steps)))
        write(path / "signature_tokens", pa.concat_tables(_tokens(step, n_layers, seed) for step in steps))
    return path


def write_parts(folder: Path, table: pa.Table) -> None:
    """One part per step, as the store writes them."""
    steps = table["step"].to_numpy()
    for step in np.unique(steps):
        _write(folder, int(step), table.filter(pa.array(steps == step)))


def write_one_part(folder: Path, table: pa.Table) -> None:
    """One part with all steps, named as the store names compacted ones."""
    folder.mkdir(exist_ok=True)
    steps = table["step"].to_numpy()
    pq.write_table(table, folder / f"steps={steps.min():09d}-{steps.max():09d}.parquet")


def _write(folder: Path, step: int, table: pa.Table) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / f"step={step:09d}.parquet")


def _progress(steps: Sequence[int], speed: float) -> np.ndarray:
    return 1 - np.exp(-speed * 2.5 * np.asarray(steps, dtype=float) / max(max(steps), 1))


def _goals(rng: np.random.Generator, H: int) -> np.ndarray:
    t = rng.uniform(-0.85, 0.85, H)
    on_theta = np.stack([(1 - t**2) / 2, (1 - t**2) / 2, np.maximum(t, 0) ** 2, np.maximum(-t, 0) ** 2], -1)
    away = rng.dirichlet([3, 3, 1, 1], H)
    mix = rng.uniform(0, 0.5, (H, 1))
    return (1 - mix) * on_theta + mix * away


def _derived(pi: np.ndarray, stable: np.ndarray, d_head: int) -> dict[str, np.ndarray]:
    a, b, c, d = np.moveaxis(pi, -1, 0)
    sym = 1 - a
    b_sym, c_sym, d_sym = b / sym, c / sym, d / sym
    x = np.clip((c_sym - d_sym), -1 + 1e-9, 1 - 1e-9)  # rho from ‖α‖² − ‖β‖² ≈ c − d
    rho = np.sqrt((1 - x) / (1 + x))
    pairing = 1 - np.sqrt(1 - b_sym)
    bound = np.maximum(1 - np.abs(1 - rho) / np.sqrt(1 + rho**2), pairing)
    distance, position = _theta(pi)
    kind = np.where(c_sym + d_sym <= 0.02, 0, np.where(c_sym > d_sym, 1, 2))
    n = np.full(a.shape, d_head)
    values = {
        "a": a,
        "b": b,
        "c": c,
        "d": d,
        "b_sym": b_sym,
        "c_sym": c_sym,
        "d_sym": d_sym,
        "trace_ratio": position,
        "rho": rho,
        "pairing": pairing,
        "pairing_bound": bound,
        "pairing_gap": bound - pairing,
        "lobe_departure": np.sqrt(2 * np.clip(bound - pairing, 0, 1)),
        "balance": np.ones_like(a),
        "participation_ratio": stable**1.25,
        "stable_rank": stable,
        "leading_share": 1 / stable,
        "n_pos": n,
        "n_neg": n,
        "theta_distance": distance,
        "theta_position": position,
        "parity": np.array([0, 1, -1])[kind],
        "head_type": TYPES[kind],
    }
    assert set(values) | {"norm", "drift", "path_length"} == set(PROFILE_KEYS)
    return values


def _theta(pi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    u = np.array([[-0.5, -0.5, 1, 0], [-0.5, -0.5, 0, 1]])
    tau = np.clip((pi - MIDDLE) @ u.T / 1.5, 0, 1)
    gaps = np.linalg.norm((pi - MIDDLE)[..., None, :] - tau[..., None] * u, axis=-1)
    nearest = gaps.argmin(-1)
    pick = np.take_along_axis(tau, nearest[..., None], -1)[..., 0]
    return gaps.min(-1), np.where(nearest == 0, 1, -1) * np.sqrt(pick)


def _percentiles(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    place = np.clip(0.5 + 15 * (columns["drift"] - 0.02), 0.001, 0.9999)
    return {f"{key}_percentile": place for key in NULL_KEYS}


def _left_step(beyond: np.ndarray, steps: np.ndarray) -> np.ndarray:
    first = np.where(beyond.any(0), steps[beyond.argmax(0)], np.inf)
    return np.where(steps[:, None] >= first, first, np.nan)


def _identity(
    n_layers: int, n_heads: int, steps: Sequence[int], module: str, status: str, flags: str
) -> dict[str, np.ndarray]:
    S, H = len(steps), n_layers * n_heads
    layer = np.repeat(np.arange(n_layers), n_heads)
    names = np.array([module.format(layer=i) for i in range(n_layers)])[layer]
    head = np.tile(np.arange(n_heads), n_layers)
    return {
        "step": np.repeat(np.asarray(steps), H),
        "epoch": np.zeros(S * H, dtype=int),
        "layer": np.tile(layer, S),
        "head": np.tile(head, S),
        "kv_head": np.tile(head, S),
        "module": np.tile(names, S),
        "displacement": np.zeros(S * H, dtype=int),
        "status": np.full(S * H, status),
        "flags": np.full(S * H, flags),
    }


def _context(rng: np.random.Generator, steps: Sequence[int], H: int, time: np.ndarray) -> dict[str, np.ndarray]:
    loss = 4.2 - 2.6 * time + rng.normal(0, 0.03, len(steps))
    loss[0] = np.nan  # no loss yet at step 0
    clock = 1.76e9 + np.asarray(steps) * 0.4
    return {
        "loss": np.repeat(loss, H),
        "time": np.repeat(clock, H),
        "seconds": np.full(len(steps) * H, 0.004),
        "overhead": np.full(len(steps) * H, 0.006),
    }


def _signature_summary(step: int) -> pa.Table:
    rows = [
        (step, f"{key}_{what}", value)
        for key in SIGNATURE_KEYS
        for what, value in (("consistency", 0.9), ("dispersion", 0.4), ("drift", 0.1), ("noise_floor", 0.02))
    ]
    return pa.table(
        dict(zip(SUMMARY_SCHEMA.names, map(list, zip(*rows, strict=True)), strict=True)), schema=SUMMARY_SCHEMA
    )


def _tokens(step: int, n_layers: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed + step)
    layer, document, position = (
        x.ravel() for x in np.meshgrid(np.arange(n_layers), np.arange(2), np.arange(16), indexing="ij")
    )
    lift = np.exp(rng.normal(0, 0.3, layer.size))
    columns = {
        "step": np.full(layer.size, step),
        "layer": layer,
        "document": document,
        "position": position,
        "lift": lift,
    }
    return pa.table(columns).cast(TOKENS_SCHEMA)


def _run_json(
    id_: str,
    n_layers: int,
    n_heads: int,
    d_head: int,
    module: str,
    name: str,
    config: dict[str, object] | None,
    status: str,
    flags: str,
    seed: int,
) -> dict[str, object]:
    shape = {"n_heads": n_heads, "n_kv_heads": n_heads, "d_head": d_head, "d_model": d_head * n_heads}
    heads = list(range(n_heads))
    more = {"heads": heads, "kv_head": heads, "flags": [f for f in flags.split(",") if f], "aliases": []}
    return {
        "schema_version": 1,
        "headwatch_version": "0.1.0",
        "id": id_,
        "name": name,
        "created": "2026-01-02T03:04:05+00:00",
        "model": {
            "class": "SyntheticGPT",
            "n_layers": n_layers,
            "n_parameters": 12 * n_layers * (d_head * n_heads) ** 2,
            **shape,
        },
        "heads": [
            {"layer": i, "module": module.format(layer=i), **shape, **more, "status": "proven"} for i in range(n_layers)
        ],
        "left_out": [],
        "settings": {
            "profile": {"every_n_train_steps": 100},
            "signature": {"every_n_train_steps": 100, "n_documents": 16},
        },
        "config": config if config is not None else {"optimizer": {"lr": 3e-4}, "seed": seed},
        "versions": {"torch": "2.13.0", "python": "3.11"},
        "wandb": None,
        "status": status,
        "finished": "2026-01-02T03:14:05+00:00" if status == "finished" else None,
        "messages": [],
        "null": {"N": d_head * n_heads, "n": d_head, "seed": 0},
    }
