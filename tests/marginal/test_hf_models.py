"""Signatures of captured attention against the maps that transformers itself hands out with output_attentions=True."""

import marginal_brute as brute
import numpy as np
import pytest
import torch

from headwatch.heads import find_heads
from headwatch.probe.documents import probe_batches
from headwatch.probe.measure import SignatureMeasure

transformers = pytest.importorskip("transformers")

B, T, WINDOW = 3, 21, 5
COMMON = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = COMMON | {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64}
KEYS = ("n_eff", "c95", "peak_mean", "mutual_information", "sink_share", "row_entropy")
MODELS = {
    "bert": lambda t: t.BertModel(t.BertConfig(**COMMON, intermediate_size=48)),
    "gpt2": lambda t: t.GPT2Model(t.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
    "llama": lambda t: t.LlamaModel(t.LlamaConfig(**GROUPED)),
    "mistral": lambda t: t.MistralModel(t.MistralConfig(**GROUPED, sliding_window=WINDOW)),
    "t5": lambda t: t.T5EncoderModel(t.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)),
    "bloom": lambda t: t.BloomModel(t.BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4)),
    "gemma2": lambda t: t.Gemma2Model(
        t.Gemma2Config(**GROUPED, head_dim=8, sliding_window=WINDOW, attn_logit_softcapping=2.0)
    ),
}
BIDIRECTIONAL = ("bert", "t5")
EAGER_ONLY = ("bloom", "gemma2")
CASES = [(name, how) for name in MODELS for how in ("sdpa", "eager") if how == "eager" or name not in EAGER_ONLY]


def build(name):
    torch.manual_seed(0)
    model = MODELS[name](transformers)
    for key, parameter in model.named_parameters():  # sharper than at initialisation
        if parameter.ndim == 2 and "embed" not in key and "wte" not in key:
            parameter.data.mul_(12)
    return model.eval()


def batch(name, padded):
    ids = torch.randint(3, 50, (B, T), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(B, T, dtype=torch.long)
    if padded:
        mask[1, (T - 6 if name in BIDIRECTIONAL else 0) : (None if name in BIDIRECTIONAL else 6)] = 0
    return {"input_ids": ids, "attention_mask": mask}


def visible(name, layer, mask):
    keys = mask.bool()[:, None, :].expand(B, T, T)
    if name in BIDIRECTIONAL:
        return keys.numpy()
    distance = torch.arange(T)[:, None] - torch.arange(T)
    see = distance >= 0
    if name == "mistral" or (name == "gemma2" and layer == 0):
        see = see & (distance < WINDOW)
    return (keys & see).numpy()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_signatures_equal_those_of_the_models_own_maps(name, implementation, padded):
    model, inputs = build(name), batch(name, padded)
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        maps = model(**inputs, output_attentions=True).attentions
    model.config._attn_implementation = implementation
    head_map = find_heads(model)
    snapshot = SignatureMeasure(model, head_map, probe_batches(inputs)).take(5)(5)
    table = snapshot.heads.to_pandas()
    assert len(table) == 8
    valid = inputs["attention_mask"].bool().numpy()
    for layer, A in enumerate(maps):
        see = visible(name, layer, inputs["attention_mask"])
        for head in range(4):
            each = [expected(A[b, head], see[b], valid[b]) for b in range(B)]
            row = table[(table.layer == layer) & (table["head"] == head)].iloc[0]
            for key in KEYS:
                values = [e[key] for e in each]
                assert row[key] == pytest.approx(np.mean(values), rel=1e-4, abs=1e-5), (key, layer, head)
                assert row[f"{key}_std"] == pytest.approx(np.std(values), rel=1e-2, abs=1e-5), (key, layer, head)


def expected(A, see, valid):
    rows = np.flatnonzero(valid)
    ignored = np.zeros(T, dtype=bool)
    ignored[rows[0]] = True
    A = A.double().numpy()
    return brute.head_signatures(A, np.where(see, A, -np.inf), see, rows, ignored)


def test_flex_attention_gives_the_same_as_sdpa():
    model, inputs = build("llama"), batch("llama", True)
    tables = []
    for implementation in ("sdpa", "flex_attention"):
        model.config._attn_implementation = implementation
        measure = SignatureMeasure(model, find_heads(model), probe_batches(inputs))
        tables.append(measure.take(0)(0).heads.to_pandas())
    for key in (*KEYS, "max_logit"):
        np.testing.assert_allclose(tables[0][key], tables[1][key], rtol=1e-4, atol=1e-5, err_msg=key)
