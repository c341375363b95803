"""Who reads which heads, and where the pieces of a parameter lie: without processes."""

from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as pl
import scenarios
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headwatch.heads import find_heads, named_parameters
from headwatch.heads.headmap import Projection, Rows, Site, Term
from headwatch.heads.reading import copy_factors
from headwatch.parallel.held import held_heads, local_site, local_tensor
from headwatch.parallel.layout import layout_of, model_to_call
from headwatch.parallel.plan import plan_site
from headwatch.parallel.signatures import turns


class Shard:
    def __init__(self, dim):
        self.dim = dim


class Piece:
    """One rank's view of a DTensor that is cut along one dimension, as ``torch.chunk`` cuts."""

    def __init__(self, whole, rank, size, cut):
        self.whole, self.rank, self.size = whole, rank, size
        self.placements = (Shard(cut),)
        self.device_mesh = SimpleNamespace(size=lambda dim: size, get_coordinate=lambda: [rank])
        self.shape = whole.shape

    def dim(self):
        return self.whole.dim()

    def detach(self):
        return self

    def full_tensor(self):
        return self.whole

    def to_local(self):
        chunks = self.whole.chunk(self.size, self.placements[0].dim)
        return chunks[self.rank] if self.rank < len(chunks) else self.whole[:0]


def pieces(parameters, rank, size, cut=0):
    return {name: Piece(tensor.detach(), rank, size, cut) for name, tensor in parameters.items()}


@given(st.integers(1, 6), st.integers(1, 8), st.data())
def test_every_head_is_read_exactly_once(size, n_heads, data):
    watched = tuple(range(n_heads))
    held = [tuple(sorted(data.draw(st.sets(st.sampled_from(watched))))) for _ in range(size)]
    plan = plan_site(data.draw(st.integers(0, 100)), watched, held)
    assert sorted(head for heads in plan.heads for head in heads) == list(watched)
    if not plan.gathered:
        assert all(set(own) <= set(there) for own, there in zip(plan.heads, held, strict=True))


def test_replicated_sites_go_round_robin():
    plans = [plan_site(place, (0, 1), [(0, 1)] * 3) for place in range(7)]
    assert [sum(bool(plan.heads[rank]) for plan in plans) for rank in range(3)] == [3, 2, 2]


@pytest.mark.parametrize(("size", "expected"), [(1, [(0, 1, 2, 3)]), (2, [(0, 1), (2, 3)]), (4, [(), (), (), ()])])
def test_heads_of_whole_shards_are_held(size, expected):
    """Four query heads over two key heads: with four ranks every key head lies on two of them."""
    net = scenarios.Net()
    site = find_heads(net).sites[0]
    assert [held_heads(site, pieces(named_parameters(net), rank, size)) for rank in range(size)] == expected


def test_rows_of_a_shard_are_those_of_the_whole():
    net = scenarios.Net()
    site, whole = find_heads(net).sites[1], named_parameters(net)
    expected = copy_factors(site, whole).factors(bias=True)
    for rank in range(2):
        here = pieces(whole, rank, 2)
        heads = held_heads(site, here)
        local = copy_factors(local_site(site, heads, here), {n: local_tensor(p) for n, p in here.items()})
        found = local.factors(bias=True)
        assert torch.equal(found.W_Q, expected.W_Q[list(heads)])
        assert torch.equal(found.W_K, expected.W_K[list(heads)])


def test_columns_cut_apart_are_not_held():
    net = scenarios.Net()
    assert held_heads(find_heads(net).sites[0], pieces(named_parameters(net), 0, 2, cut=1)) == ()


def test_three_dimensional_weights_are_cut_by_heads():
    rows = Rows("W", "h i n -> (h n) i", np.arange(4 * 2).reshape(4, 2))
    projection = Projection((Term((rows,)),))
    site = Site(0, "a", 6, 2, 4, 4, projection, projection, (0, 1, 2, 3), (0, 1, 2, 3), "structural")
    assert held_heads(site, pieces({"W": torch.zeros(4, 6, 2)}, 1, 2)) == (2, 3)


@given(st.integers(1, 9), st.integers(1, 5))
def test_every_probe_batch_counts_once_in_equally_many_forwards(batches, size):
    ran = [turns(batches, rank, size, split=True, even=True) for rank in range(size)]
    assert sorted(number for own in ran for number, counts in own if counts) == list(range(batches))
    assert len({len(own) for own in ran}) == 1


class TestRefusals:
    def test_weights_that_are_not_there_yet(self):
        with pytest.raises(
            ValueError, match=r"no weights yet \(0.weight is on the meta device\); materialise the model"
        ):
            layout_of(nn.Sequential(nn.Linear(2, 2, device="meta")))

    def test_fsdp1_without_a_forward_to_probe(self):
        class FullyShardedDataParallel(nn.Module):
            pass

        root = FullyShardedDataParallel()
        root.inner = pl.LightningModule()
        assert layout_of(root.inner, root) == "fsdp1"
        with pytest.raises(ValueError, match=r"FSDP1 can only be probed.*give it a forward"):
            model_to_call(root.inner, root, "fsdp1")
