"""Tiny models of many families, each with W_Q and W_K written down from its own weights, apart from the library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

B, T, N, H = 4, 10, 64, 4
IDS = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

Weights = tuple[Tensor, Tensor]  # W_Q, W_K, shape (H, n, N) each


@dataclass
class Built:
    """A model, its probes, and the expected factors of the site of a given module."""

    model: nn.Module
    probe: list[Callable[[], object]]
    expected: Callable[[nn.Module], Weights]
    sites: int
    layout: str
    flags: tuple[str, ...] = ()
    n_kv_heads: int = H
    note: str = ""


def tokens(seed: int, length: int = T) -> Tensor:
    return torch.randint(3, 60, (B, length), generator=torch.Generator().manual_seed(seed))


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def repeat(W: Tensor, group: int) -> Tensor:
    return W.repeat_interleave(group, 0)


def split(W: Tensor, heads: int) -> Tensor:
    """(heads·n, N) -> (heads, n, N)."""
    return W.reshape(heads, -1, W.shape[1])


def named(q: str = "q_proj", k: str = "k_proj", heads: int = H, kv: int = H) -> Callable[[nn.Module], Weights]:
    """Separate projections with query head h on key head h // group."""

    def read(attention: nn.Module) -> Weights:
        W_Q, W_K = (attention.get_submodule(name).weight for name in (q, k))
        return split(W_Q, heads), repeat(split(W_K, kv), heads // kv)

    return read


def thirds(name: str, heads: int = H, kv: int = H, transposed: bool = False) -> Callable[[nn.Module], Weights]:
    """[Q; K; V] in one weight."""

    def read(attention: nn.Module) -> Weights:
        W = attention.get_submodule(name).weight
        W = W.T if transposed else W
        n = W.shape[0] // (heads + 2 * kv)
        return split(W[: heads * n], heads), repeat(split(W[heads * n : (heads + kv) * n], kv), heads // kv)

    return read


def per_head(name: str, heads: int = H) -> Callable[[nn.Module], Weights]:
    """[q, k, v] per head in one weight."""

    def read(attention: nn.Module) -> Weights:
        W = attention.get_submodule(name).weight.reshape(heads, 3, -1, N)
        return W[:, 0], W[:, 1]

    return read


def transformers_model(cls: str, config: str, implementation: str | None = None, **settings: object) -> nn.Module:
    tr = pytest.importorskip("transformers")
    made = getattr(tr, config)(**settings)
    if implementation:
        made._attn_implementation = implementation
    torch.manual_seed(0)
    return getattr(tr, cls)(made)


def on_ids(model: nn.Module, **more: object) -> list[Callable[[], object]]:
    return [lambda seed=seed: model(input_ids=tokens(seed), **more) for seed in (1, 2)]


def on_noise(model: nn.Module, *shape: int, name: str | None = None) -> list[Callable[[], object]]:
    def run(seed: int) -> object:
        x = noise(seed, *shape)
        return model(**{name: x}) if name else model(x)

    return [lambda seed=seed: run(seed) for seed in (1, 2)]


DEEP = {"num_hidden_layers": 2, "hidden_size": N, "num_attention_heads": H, "intermediate_size": 64}
GROUPED = {**DEEP, "num_key_value_heads": 2}


def decoder(
    cls: str,
    config: str,
    expected: Callable[[nn.Module], Weights] | None = None,
    *,
    kv: int = H,
    layout: str = "separate",
    flags: tuple[str, ...] = ("rope",),
    implementation: str | None = None,
    sites: int = 2,
    **settings: object,
) -> Callable[[], Built]:
    def build() -> Built:
        model = transformers_model(cls, config, implementation, **{**IDS, **settings})
        return Built(model, on_ids(model), expected or named(kv=kv), sites, layout, flags, kv)

    return build


def gains(fold: Callable[[nn.Module, Weights], Weights], plain: Callable[[nn.Module], Weights]):
    return lambda attention: fold(attention, plain(attention))


def shared_gain(offset: float = 0.0) -> Callable[[nn.Module, Weights], Weights]:
    """Gains of length n that all heads share (Qwen3; Gemma 3 with offset 1)."""

    def fold(attention: nn.Module, weights: Weights) -> Weights:
        g_q, g_k = (attention.get_submodule(name).weight for name in ("q_norm", "k_norm"))
        return weights[0] * (offset + g_q)[:, None], weights[1] * (offset + g_k)[:, None]

    return fold


def whole_gain(kv: int) -> Callable[[nn.Module, Weights], Weights]:
    """Gains over all heads' coordinates (OLMo 2)."""

    def fold(attention: nn.Module, weights: Weights) -> Weights:
        g_q, g_k = (attention.get_submodule(name).weight for name in ("q_norm", "k_norm"))
        return weights[0] * g_q.view(H, -1, 1), weights[1] * repeat(g_k.view(kv, -1, 1), H // kv)

    return fold


def centred(W: Tensor) -> Tensor:
    return W - W.mean(1, keepdim=True)


def layer_norm_per_head(kv: int, weight: Callable[[nn.Module], Tensor]):
    """Centred rows, gains per head (Cohere, StableLM)."""

    def fold(attention: nn.Module, weights: Weights) -> Weights:
        g_q, g_k = (weight(attention.get_submodule(n)) for n in _norm_names(attention))
        return centred(weights[0]) * g_q[..., None], centred(weights[1]) * repeat(g_k, H // kv)[..., None]

    return fold


def _norm_names(attention: nn.Module) -> tuple[str, str]:
    return ("q_norm", "k_norm") if hasattr(attention, "q_norm") else ("q_layernorm", "k_layernorm")


def randomise_norms(build: Callable[[], Built]) -> Callable[[], Built]:
    """Gains away from one, as after training."""

    def again() -> Built:
        built = build()
        generator = torch.Generator().manual_seed(5)
        for name, parameter in built.model.named_parameters():
            if "norm" in name.lower():
                parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
        return built

    return again


def mla(low_rank_query: bool) -> Callable[[nn.Module], Weights]:
    """The coordinates without position: up[head, :nope] · diag(g) · down."""

    def read(attention: nn.Module) -> Weights:
        up = attention.kv_b_proj.weight.reshape(H, 28, 16)[:, :16]
        W_K = up * attention.kv_a_layernorm.weight @ attention.kv_a_proj_with_mqa.weight[:16]
        if not low_rank_query:
            return attention.q_proj.weight.reshape(H, 24, N)[:, :16], W_K
        up_q = attention.q_b_proj.weight.reshape(H, 24, 24)[:, :16]
        return up_q * attention.q_a_layernorm.weight @ attention.q_a_proj.weight, W_K

    return read


def deepseek(cls: str, config: str, q_rank: int | None) -> Callable[[], Built]:
    sizes = {"kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "q_lora_rank": q_rank}
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    groups = {"n_group": 1, "topk_group": 1}
    return decoder(
        cls, config, mla(q_rank is not None), layout="multi-source (MLA)", flags=("mla_nope",),
        **DEEP, num_key_value_heads=H, **sizes, **experts, **groups,
    )  # fmt: skip


def falcon_grouped(attention: nn.Module) -> Weights:
    W = attention.query_key_value.weight.reshape(2, 4, 16, N)
    return W[:, :2].reshape(H, 16, N), repeat(W[:, 2], 2)


def falcon(expected, layout: str, kv: int, flags: tuple[str, ...] = ("rope",), **settings: object):
    return decoder(
        "FalconModel", "FalconConfig", expected, layout=layout, kv=kv, flags=flags,
        hidden_size=N, num_attention_heads=H, num_hidden_layers=2, **settings,
    )  # fmt: skip


def two_towers(cls: str, config: str, names: tuple[str, str], sites: int, flags=(), **settings: object):
    """Encoder and decoder: self-attention in both, cross-attention left out."""

    def build() -> Built:
        model = transformers_model(cls, config, **{**IDS, **settings})
        probe = [lambda s=s: model(input_ids=tokens(s), decoder_input_ids=tokens(s + 10)) for s in (1, 2)]
        return Built(model, probe, named(*names), sites, "separate", flags)

    return build


def whisper() -> Built:
    settings = {
        "d_model": N, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": H,
        "decoder_attention_heads": H, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8,
        "max_source_positions": 10, "vocab_size": 60,
        "max_target_positions": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }  # fmt: skip
    model = transformers_model("WhisperModel", "WhisperConfig", **settings)
    probe = [lambda s=s: model(input_features=noise(s, B, 8, 20), decoder_input_ids=tokens(s)) for s in (1, 2)]
    return Built(model, probe, named(), 4, "separate")


def vision(
    cls: str, config: str, expected, sites: int = 2, size: int = 16, layout: str = "separate", **settings: object
):
    def build() -> Built:
        made = {"image_size": size, "patch_size": 8, "num_channels": 3, **settings}
        model = transformers_model(cls, config, **made)
        probe = on_noise(model, B, 3, size, size, name="pixel_values")
        return Built(model, probe, expected, sites, layout)

    return build


def siglip() -> Built:
    """Two layers with q_proj and k_proj, and a pooling head whose query is learned: that one is cross-attention."""
    return vision("SiglipVisionModel", "SiglipVisionConfig", named(), **DEEP)()


def wav2vec2() -> Built:
    settings = {
        **DEEP,
        "conv_dim": (16, 16),
        "conv_kernel": (4, 4),
        "conv_stride": (4, 4),
        "num_feat_extract_layers": 2,
    }
    more = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "vocab_size": 60}
    model = transformers_model("Wav2Vec2Model", "Wav2Vec2Config", **settings, **more)
    return Built(model, on_noise(model, B, 200, name="input_values"), named(), 2, "separate")


def clip() -> Built:
    model = transformers_model("CLIPTextModel", "CLIPTextConfig", **{**IDS, **DEEP})
    return Built(model, on_ids(model), named(), 2, "separate")


def swin() -> Built:
    made = {"image_size": 16, "patch_size": 1, "embed_dim": 32, "depths": [2], "num_heads": [2], "window_size": 4}
    model = transformers_model("SwinModel", "SwinConfig", **made)
    return Built(model, on_noise(model, B, 3, 16, 16), named(heads=2, kv=2), 2, "separate", n_kv_heads=2)


def torch_mha(attention: nn.MultiheadAttention) -> Weights:
    W = attention.in_proj_weight
    return split(W[:N], H), split(W[N : 2 * N], H)


def mha() -> Built:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(N))
    model.attn = nn.MultiheadAttention(N, H, batch_first=True)
    model.forward = lambda x: model.attn(*(model[0](x),) * 3)[0]  # type: ignore[method-assign]
    return Built(model, on_noise(model, B, T, N), torch_mha, 1, "fused-concat")


def mha_apart() -> Built:
    """Separate weights, keys with an extra learned position."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(N, H, batch_first=True, vdim=48, add_bias_kv=True)
    probe = [lambda s=s: model(x := noise(s, B, T, N), x, noise(s + 5, B, T, 48)) for s in (1, 2)]
    return Built(model, probe, lambda m: (split(m.q_proj_weight, H), split(m.k_proj_weight, H)), 1, "separate")


def torch_encoder(batch_first: bool = True) -> Callable[[], Built]:
    def build() -> Built:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(N, H, 64, batch_first=batch_first)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first)
        shape = (B, T, N) if batch_first else (T, B, N)
        return Built(model, on_noise(model, *shape), torch_mha, 2, "fused-concat")

    return build


def torch_decoder() -> Built:
    torch.manual_seed(0)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(N, H, 64, batch_first=True), 2)
    probe = [lambda s=s: model(noise(s, B, T, N), noise(s + 9, B, T, N)) for s in (1, 2)]
    return Built(model, probe, torch_mha, 2, "fused-concat")


class NanoAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.n_head = nn.Linear(N, 3 * N), nn.Linear(N, N), H

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.view(*x.shape[:2], H, -1).transpose(1, 2) for y in self.c_attn(x).split(N, dim=2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape_as(x))


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.ln, self.attn = nn.LayerNorm(N), attention

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(self.ln(x))


def stack(attention: Callable[[], nn.Module], depth: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(attention()) for _ in range(depth)))


def nano() -> Built:
    model = stack(NanoAttention)
    return Built(model, on_noise(model, B, T, N), thirds("c_attn"), 2, "fused-concat")


def nano_compiled() -> Built:
    model = torch.compile(stack(NanoAttention), backend="eager")
    return Built(model, on_noise(model, B, T, N), thirds("c_attn"), 2, "fused-concat")


class EinsumAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("W_Q", "W_K", "W_V"):
            setattr(self, name, nn.Parameter(torch.randn(H, N, 16) / 8))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btm,hmd->bhtd", x, W) for W in (self.W_Q, self.W_K, self.W_V))
        weights = (torch.einsum("bhid,bhjd->bhij", q, k) / 4.0).softmax(-1)
        return torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2)


def einsum() -> Built:
    model = stack(EinsumAttention)
    return Built(
        model, on_noise(model, B, T, N), lambda a: (a.W_Q.mT, a.W_K.mT), 2, "3-D einsum separate"
    )  # fmt: skip


class _Anything(type):
    """Classes whose attributes are all there."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(ModuleType):
    __path__ = ()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].islower():
            return lambda *args, **kwargs: lambda function: function  # a decorator that decorates nothing
        return _Anything(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _Finder(MetaPathFinder, Loader):
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == self.package else None

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module) -> None:
        """Nothing to run."""


def import_beside(package: str, missing: str) -> None:
    """Import a package that wants another one which its models never use, with a stand-in while it is imported.

    timm wants torchvision, which is not built for every torch; torchtune wants a torchao that peft does not want.
    """
    try:
        import_module(package)
    except ImportError:
        _import_with_stand_in(package, missing)


def _import_with_stand_in(package: str, missing: str) -> None:
    def of_missing() -> list[str]:
        return [name for name in sys.modules if name.split(".")[0] == missing]

    hidden = {name: sys.modules.pop(name) for name in of_missing()}
    finder = _Finder(missing)
    sys.meta_path.insert(0, finder)
    try:
        pytest.importorskip(package, exc_type=ImportError)
    finally:
        sys.meta_path.remove(finder)
        for name in of_missing():
            del sys.modules[name]
        sys.modules.update(hidden)


def timm_vit(**settings: object) -> Callable[[], Built]:
    def build() -> Built:
        import_beside("timm", "torchvision")
        from timm.models.vision_transformer import VisionTransformer

        torch.manual_seed(0)
        size = {"img_size": 16, "patch_size": 8, "embed_dim": N, "depth": 2, "num_heads": H}
        model = VisionTransformer(**size, num_classes=5, **settings)
        normed = "qk_norm" in settings
        expected = gains(timm_gain, thirds("qkv")) if normed else thirds("qkv")
        return Built(model, on_noise(model, B, 3, 16, 16), expected, 2, "fused-concat", ("qk_norm",) * normed)

    return build


def timm_gain(attention: nn.Module, weights: Weights) -> Weights:
    g_q, g_k = attention.q_norm.weight, attention.k_norm.weight
    return centred(weights[0]) * g_q[:, None], centred(weights[1]) * g_k[:, None]


def timm_swin() -> Built:
    import_beside("timm", "torchvision")
    from timm.models.swin_transformer import SwinTransformer

    torch.manual_seed(0)
    size = {"img_size": 16, "patch_size": 1, "embed_dim": 32, "depths": (2,), "num_heads": (2,), "window_size": 4}
    model = SwinTransformer(**size, num_classes=3)
    expected = thirds("qkv", heads=2, kv=2)
    return Built(model, on_noise(model, B, 3, 16, 16), expected, 2, "fused-concat", n_kv_heads=2)


def x_transformers(kv: int | None = None, **settings: object) -> Callable[[], Built]:
    def build() -> Built:
        x_tr = pytest.importorskip("x_transformers")
        torch.manual_seed(0)
        attn = {"attn_dim_head": 24, **({"attn_kv_heads": kv} if kv else {}), **settings}
        layers = x_tr.Decoder(dim=N, depth=2, heads=H, **attn)
        model = x_tr.TransformerWrapper(num_tokens=60, max_seq_len=32, attn_layers=layers)
        flags = ("rope",) if settings.get("rotary_pos_emb") else ()

        def expected(attention: nn.Module) -> Weights:
            W_Q, W_K = split(attention.to_q.weight, H), split(attention.to_k.weight, kv or H)
            return W_Q, W_K if not kv else W_K.repeat(H // kv, 1, 1)  # its own order: h mod kv

        return Built(model, [lambda s=s: model(tokens(s)) for s in (1, 2)], expected, 2, "separate", flags, kv or H)

    return build


def litgpt() -> Built:
    package = pytest.importorskip("litgpt")
    torch.manual_seed(0)
    config = package.Config(
        block_size=32, vocab_size=60, padded_vocab_size=64, n_layer=2, n_head=H, n_embd=N, n_query_groups=2,
        rotary_percentage=1.0, parallel_residual=False, bias=False, norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP", intermediate_size=64,
    )  # fmt: skip
    model = package.GPT(config)
    return Built(
        model, [lambda s=s: model(tokens(s)) for s in (1, 2)], thirds("qkv", kv=2), 2, "fused-concat", ("rope",), 2
    )


def torchtune() -> Built:
    import_beside("torchtune.models.llama3", "torchao")
    from torchtune.models.llama3 import llama3

    torch.manual_seed(0)
    model = llama3(
        vocab_size=60, num_layers=2, num_heads=H, num_kv_heads=2, embed_dim=N, max_seq_len=32, intermediate_dim=64
    )
    return Built(model, [lambda s=s: model(tokens(s)) for s in (1, 2)], named(kv=2), 2, "separate", ("rope",), 2)


def lora(base: Callable[[], Built], targets: list[str], merged: bool = False, fan: bool = False) -> Callable[[], Built]:
    """A peft model whose low-rank updates are not zero; merged back when asked."""

    def build() -> Built:
        peft = pytest.importorskip("peft")
        built = base()
        config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets, init_lora_weights=False, fan_in_fan_out=fan)
        model = peft.get_peft_model(built.model, config)
        if merged:
            model = model.merge_and_unload()
            return Built(
                model, on_ids(model), built.expected, 2, built.layout, (*built.flags, "frozen"), built.n_kv_heads
            )
        flags = (*built.flags, "lora")
        expected = lora_thirds if fan else lora_separate
        return Built(model, on_ids(model), expected, 2, built.layout, flags, built.n_kv_heads)

    return build


def lora_weight(layer: nn.Module) -> Tensor:
    base = layer.base_layer.weight
    base = base.T if type(layer.base_layer).__name__ == "Conv1D" else base
    return base + 1.5 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight


def lora_separate(attention: nn.Module) -> Weights:
    return split(lora_weight(attention.q_proj), H), repeat(split(lora_weight(attention.k_proj), 2), 2)


def lora_thirds(attention: nn.Module) -> Weights:
    W = lora_weight(attention.c_attn)
    return split(W[:N], H), split(W[N : 2 * N], H)


GPT2 = decoder(
    "GPT2Model", "GPT2Config", thirds("c_attn", transposed=True), layout="transposed fused-concat", flags=(),
    n_embd=N, n_head=H, n_layer=2,
)  # fmt: skip
LLAMA = decoder("LlamaModel", "LlamaConfig", kv=2, **GROUPED)
GEMMA = {**GROUPED, "head_dim": 32}
BERT = {**DEEP, "max_position_embeddings": 32}
QUERY = named("query", "key")

FAMILIES: dict[str, Callable[[], Built]] = {
    "gpt2": GPT2,
    "gpt_neo": decoder(
        "GPTNeoModel", "GPTNeoConfig", flags=(), hidden_size=N, num_heads=H, num_layers=2, intermediate_size=64,
        attention_types=[[["global", "local"], 1]], window_size=4,
    ),
    "gptj": decoder("GPTJModel", "GPTJConfig", n_embd=N, n_head=H, n_layer=2, rotary_dim=8),
    "gpt_neox": decoder(
        "GPTNeoXModel", "GPTNeoXConfig", per_head("query_key_value"), layout="fused-interleaved-per-head", **DEEP
    ),
    "opt": decoder(
        "OPTModel", "OPTConfig", flags=(), hidden_size=N, num_attention_heads=H, num_hidden_layers=2, ffn_dim=64,
        word_embed_proj_dim=N,
    ),
    "bloom": decoder(
        "BloomModel", "BloomConfig", per_head("query_key_value"), layout="fused-interleaved-per-head", flags=(),
        hidden_size=N, n_head=H, n_layer=2,
    ),
    "falcon 7b (one key head)": falcon(thirds("query_key_value", kv=1), "fused-concat", 1, multi_query=True),
    "falcon 40b (grouped)": falcon(
        falcon_grouped, "fused-grouped", 2, new_decoder_architecture=True, num_kv_heads=2
    ),
    "falcon rw (ALiBi)": falcon(
        per_head("query_key_value"), "fused-interleaved-per-head", H, (), multi_query=False, alibi=True, bias=True
    ),
    "llama": LLAMA,
    "llama eager": decoder("LlamaModel", "LlamaConfig", kv=2, implementation="eager", **GROUPED),
    "llama flex_attention": decoder("LlamaModel", "LlamaConfig", kv=2, implementation="flex_attention", **GROUPED),
    "llama bias, d_head 32": decoder(
        "LlamaModel", "LlamaConfig", kv=2, attention_bias=True, **GROUPED, head_dim=32
    ),
    "mistral": decoder("MistralModel", "MistralConfig", kv=2, sliding_window=4, **GROUPED),
    "mixtral": decoder("MixtralModel", "MixtralConfig", kv=2, num_local_experts=2, **GROUPED),
    "qwen2": decoder("Qwen2Model", "Qwen2Config", kv=2, **GROUPED),
    "qwen3": randomise_norms(
        decoder(
            "Qwen3Model", "Qwen3Config", gains(shared_gain(), named(kv=2)), kv=2, flags=("qk_norm", "rope"), **GEMMA
        )
    ),
    "gemma2": decoder("Gemma2Model", "Gemma2Config", kv=2, implementation="eager", **GEMMA),
    "gemma3": randomise_norms(
        decoder(
            "Gemma3TextModel", "Gemma3TextConfig", gains(shared_gain(1.0), named(kv=2)), kv=2,
            flags=("qk_norm", "rope"), **GEMMA,
        )
    ),
    "phi": decoder("PhiModel", "PhiConfig", kv=2, **GROUPED),
    "phi3": decoder("Phi3Model", "Phi3Config", thirds("qkv_proj", kv=2), layout="fused-concat", kv=2, **GROUPED),
    "mpt": decoder(
        "MptModel", "MptConfig", thirds("Wqkv"), layout="fused-concat", flags=(), d_model=N, n_heads=H, n_layers=2
    ),
    "olmo2": randomise_norms(
        decoder(
            "Olmo2Model", "Olmo2Config", gains(whole_gain(2), named(kv=2)), kv=2, flags=("qk_norm", "rope"), **GROUPED
        )
    ),
    "cohere": randomise_norms(
        decoder(
            "CohereModel", "CohereConfig",
            gains(layer_norm_per_head(2, lambda norm: norm.weight), named(kv=2)), kv=2,
            flags=("qk_norm", "rope"), use_qk_norm=True, **GROUPED,
        )
    ),
    "starcoder2": decoder("Starcoder2Model", "Starcoder2Config", kv=2, **GROUPED),
    "stablelm": randomise_norms(
        decoder(
            "StableLmModel", "StableLmConfig",
            gains(layer_norm_per_head(2, lambda norm: torch.stack([n.weight for n in norm.norms])), named(kv=2)),
            kv=2, flags=("qk_norm", "rope"), qk_layernorm=True, **GROUPED,
        )
    ),
    "deepseek_v2": randomise_norms(deepseek("DeepseekV2Model", "DeepseekV2Config", 24)),
    "deepseek_v2 without query rank": randomise_norms(deepseek("DeepseekV2Model", "DeepseekV2Config", None)),
    "deepseek_v3": randomise_norms(deepseek("DeepseekV3Model", "DeepseekV3Config", 24)),
    "bert": decoder("BertModel", "BertConfig", QUERY, flags=(), **BERT),
    "roberta": decoder("RobertaModel", "RobertaConfig", QUERY, flags=(), **BERT),
    "electra": decoder("ElectraModel", "ElectraConfig", QUERY, flags=(), embedding_size=32, **BERT),
    "distilbert": decoder(
        "DistilBertModel", "DistilBertConfig", named("q_lin", "k_lin"), flags=(), dim=N, n_heads=H, n_layers=2,
        hidden_dim=64,
    ),
    "albert (one shared layer)": decoder(
        "AlbertModel", "AlbertConfig", QUERY, sites=1, flags=(), embedding_size=32, **BERT
    ),
    "deberta_v2": decoder(
        "DebertaV2Model", "DebertaV2Config", named("query_proj", "key_proj"), flags=(), relative_attention=True,
        pos_att_type=["c2p", "p2c"], position_buckets=4, **BERT,
    ),
    "modernbert": decoder(
        "ModernBertModel", "ModernBertConfig", thirds("Wqkv"), layout="fused-concat", cls_token_id=1, sep_token_id=2,
        **{**DEEP, "max_position_embeddings": 64},
    ),
    "esm": decoder(
        "EsmModel", "EsmConfig", QUERY, position_embedding_type="rotary", mask_token_id=3, **BERT
    ),
    "t5": two_towers(
        "T5Model", "T5Config", ("q", "k"), 4, d_model=N, num_heads=H, num_layers=2, d_ff=64, d_kv=16
    ),
    "bart": two_towers(
        "BartModel", "BartConfig", ("q_proj", "k_proj"), 4, d_model=N, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=H, decoder_attention_heads=H, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_position_embeddings=32, decoder_start_token_id=2,
    ),
    "whisper": whisper,
    "vit": vision("ViTModel", "ViTConfig", named(), **DEEP),
    "dinov2": vision("Dinov2Model", "Dinov2Config", named(), **DEEP),
    "clip": clip,
    "siglip": siglip,
    "wav2vec2": wav2vec2,
    "swin": swin,
    "nn.MultiheadAttention": mha,
    "nn.MultiheadAttention vdim, bias_kv": mha_apart,
    "nn.TransformerEncoder": torch_encoder(),
    "nn.TransformerEncoder, positions first": torch_encoder(batch_first=False),
    "nn.TransformerDecoder": torch_decoder,
    "nanoGPT": nano,
    "nanoGPT, torch.compile": nano_compiled,
    "3-D einsum": einsum,
    "timm ViT": timm_vit(),
    "timm ViT qk_norm": randomise_norms(timm_vit(qk_norm=True)),
    "timm swin": timm_swin,
    "x-transformers": x_transformers(rotary_pos_emb=True, attn_flash=True),
    "x-transformers grouped": x_transformers(kv=2),
    "litgpt": litgpt,
    "torchtune": torchtune,
    "peft LoRA llama": lora(LLAMA, ["q_proj", "k_proj"]),
    "peft LoRA gpt2": lora(GPT2, ["c_attn"], fan=True),
    "peft LoRA llama, merged": lora(LLAMA, ["q_proj", "k_proj"], merged=True),
}  # fmt: skip


def bridge(
    cls: str, config: str, expected: Callable[[nn.Module], Weights], layout: str, kv: int, rope: bool, **settings
):
    """TransformerLens' bridge around a transformers model; it registers each module under two names."""

    def build() -> Built:
        pytest.importorskip("transformer_lens")
        from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

        inner = transformers_model(cls, config, **{**IDS, **settings})
        model = build_bridge_from_module(inner, architecture=cls, hf_config=inner.config)
        flags = ("rope", "tied") if rope else ("tied",)
        return Built(model, [lambda s=s: model(tokens(s)) for s in (1, 2)], expected, 2, layout, flags, kv)

    return build


FAMILIES["TransformerLens bridge, llama"] = bridge(
    "LlamaForCausalLM", "LlamaConfig", named("q._original_component", "k._original_component", kv=2), "separate", 2,
    True, **GROUPED,
)  # fmt: skip
FAMILIES["TransformerLens bridge, gpt2"] = bridge(
    "GPT2LMHeadModel", "GPT2Config", thirds("qkv._original_component", transposed=True), "transposed fused-concat", H,
    False, n_embd=N, n_head=H, n_layer=2,
)  # fmt: skip
