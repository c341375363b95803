"""Which forward is run on which documents."""

import random
from collections import UserDict
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from headwatch.heads.headmap import HeadMap, Projection, Site
from headwatch.probe.calling import ProbeError
from headwatch.probe.documents import probe_batches, probe_forwards

TOKENS = torch.arange(24).reshape(6, 4) % 7


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.seen = []

    def forward(self, input_ids, attention_mask=None):
        self.seen = [*self.seen, (input_ids, attention_mask)]
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return x


class System(nn.Module):
    """A module without a forward of its own, like a LightningModule that has only a training_step."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.loss = nn.CrossEntropyLoss()


def heads_at(*modules):
    none = Projection(())
    return HeadMap(tuple(Site(i, m, 8, 4, 2, 2, none, none, (0, 1), (0, 1), "proven") for i, m in enumerate(modules)))


def run(model, batch, **options):
    forwards = probe_forwards(model, batch, **options)
    return [forward() for forward in forwards]


def test_a_tensor_is_the_first_argument_and_two_halves_differ():
    net = Net()
    run(net, TOKENS)
    (first, _), (second, _) = net.seen
    assert torch.equal(first, TOKENS[:3])
    assert torch.equal(second, TOKENS[3:])


def test_one_document_is_run_twice():
    net = Net()
    run(net, TOKENS[:1])
    assert [tuple(x.shape) for x, _ in net.seen] == [(1, 4), (1, 4)]


@pytest.mark.parametrize("mapping", [dict, UserDict])
def test_a_mapping_gives_the_keywords_that_the_forward_knows(mapping):
    net = Net()
    run(net, mapping(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS), weight="x", labels=TOKENS))
    assert torch.equal(net.seen[0][1], torch.ones(3, 4, dtype=torch.long))


@pytest.mark.parametrize("batch", [(TOKENS, TOKENS.float()), [TOKENS, TOKENS], ({"input_ids": TOKENS}, 3)])
def test_of_a_pair_the_first_element_counts(batch):
    net = Net()
    run(net, batch)
    assert torch.equal(net.seen[0][0], TOKENS[:3])


def test_probe_fn_comes_first():
    net, calls = Net(), []
    run(net, TOKENS, probe_fn=lambda model, batch: calls.append((model, batch)))
    assert calls[0][0] is net
    assert net.seen == []


def test_the_smallest_submodule_that_holds_all_heads_and_takes_the_batch():
    net = Net()
    run(System(net), TOKENS, head_map=heads_at("net.blocks.0", "net.blocks.1"))
    assert len(net.seen) == 2
    outer = System(System(net))
    run(outer, TOKENS, head_map=heads_at("net.net.blocks.0"))
    assert len(net.seen) == 4


def test_without_heads_the_children_are_tried():
    net = Net()
    run(System(net), TOKENS)
    assert len(net.seen) == 2


def test_lightnings_forward_is_not_an_own_forward():
    lightning = pytest.importorskip("pytorch_lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

    module = Module()
    run(module, TOKENS, head_map=heads_at("net.blocks.0", "net.blocks.1"))
    assert len(module.net.seen) == 2


def test_a_compiled_forward_keeps_its_signature():
    net = Net()
    compiled = torch.compile(net, backend="eager")
    batch = {"input_ids": TOKENS, "other": 1}
    with torch.compiler.set_stance("force_eager"):
        run(compiled, batch)
    assert len(net.seen) == 2


def test_what_cannot_be_called_says_what_to_pass():
    with pytest.raises(ProbeError, match=r"net: RuntimeError.*pass probe_fn=lambda model, batch"):
        run(System(Net()), torch.randn(4, 3), head_map=heads_at("net.blocks.0", "net.blocks.1"))
    with pytest.raises(ProbeError, match=r"has \['pixels'\], but Net.forward takes \['attention_mask', 'input_ids'\]"):
        run(Net(), {"pixels": TOKENS})


def test_floats_follow_a_half_precision_model():
    linear = nn.Linear(4, 4).bfloat16()
    assert all(y.dtype == torch.bfloat16 for y in run(linear, torch.randn(4, 4)))


def test_each_forward_enters_its_context_anew():
    entered = []

    @contextmanager
    def context():
        entered.append("in")
        yield
        entered.append("out")

    run(Net(), TOKENS, context=context)
    run(Net(), TOKENS, context=context())
    run(Net(), TOKENS, context=torch.autocast("cpu", dtype=torch.bfloat16))
    assert entered == ["in", "out"] * 6  # each of the two runs: one forward to see what fits, and the two closures


def states():
    return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())


def test_a_loader_is_drawn_without_moving_random_states():
    loader = DataLoader(TensorDataset(TOKENS, TOKENS), batch_size=2, shuffle=True)
    before = states()
    batches = probe_batches(loader)
    assert states() == before
    assert len(batches) == 3
    assert all(torch.equal(b.tokens, b.batch[0]) for b in batches)
    assert len(probe_batches(loader, max_batches=2)) == 2


def test_the_first_validation_batches():
    loader = DataLoader(TOKENS, batch_size=2)
    batches = probe_batches(2, loader)
    assert torch.equal(torch.cat([b.tokens for b in batches]), TOKENS[:4])
    with pytest.raises(ValueError, match="no validation dataloader"):
        probe_batches(2)


@pytest.mark.parametrize(
    ("probe", "n"),
    [
        (TOKENS, 1),
        ((TOKENS, TOKENS), 1),
        ({"input_ids": TOKENS}, 1),
        ([TOKENS, TOKENS], 2),
        ([TOKENS, TOKENS[:, 0]], 1),
        ([TOKENS, TOKENS.float()], 1),
        ([{"input_ids": TOKENS}, {"input_ids": TOKENS}], 2),
        ([(TOKENS, TOKENS), (TOKENS, TOKENS), (TOKENS, TOKENS)], 3),
    ],
)
def test_what_is_one_batch_and_what_a_list(probe, n):
    batches = probe_batches(probe)
    assert len(batches) == n
    assert torch.equal(batches[0].tokens, TOKENS)


def test_attention_mask_tells_which_tokens_are_real():
    mask = (TOKENS > 1).long()
    (batch,) = probe_batches({"input_ids": TOKENS, "attention_mask": mask})
    assert torch.equal(batch.valid, mask.bool())
    (pair,) = probe_batches(({"input_ids": TOKENS, "attention_mask": mask}, TOKENS))
    assert torch.equal(pair.valid, mask.bool())
    assert probe_batches(TOKENS)[0].valid is None


def test_nothing_to_run_is_said():
    with pytest.raises(ValueError, match="found none in list; pass a batch"):
        probe_batches([])
