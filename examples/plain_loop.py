"""A training loop without Lightning.

    python examples/plain_loop.py          about a minute on 2 cores
    python examples/plain_loop.py --fast   a few seconds

Look for: the model must sort short sequences, which it can only do by looking. Its two layers start with the same
numbers, since nn.TransformerEncoder copies its layer; when do they part?
"""

import argparse

import torch
from torch import nn

import headwatch


class Sorter(nn.Module):
    """Reads ten digits, says each place's digit of the sorted sequence."""

    def __init__(self, d_model: int = 64) -> None:
        super().__init__()
        self.digits = nn.Embedding(10, d_model)
        self.places = nn.Parameter(torch.randn(10, d_model) * 0.02)
        layer = nn.TransformerEncoderLayer(d_model, nhead=4, dim_feedforward=128, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.logits = nn.Linear(d_model, 10)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        return self.logits(self.encoder(self.digits(sequence) + self.places))


def main(fast: bool) -> None:
    torch.manual_seed(0)
    model = Sorter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    probe = torch.randint(10, (16, 10))  # proves the heads, and shows where they look

    with headwatch.Monitor(model, dirpath="plain-loop", probe=probe, config={"lr": 1e-3}) as monitor:
        for step in range(1, (20 if fast else 1000) + 1):
            sequence = torch.randint(10, (64, 10))
            loss = nn.functional.cross_entropy(model(sequence).flatten(0, 1), sequence.sort(dim=1).values.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step(step, loss=loss)

    table = headwatch.load(monitor.path).to_pandas()
    print(table.groupby(["layer", "step"])[["stable_rank", "theta_distance", "drift"]].median())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="a few steps, to see that it runs")
    main(**vars(parser.parse_args()))
