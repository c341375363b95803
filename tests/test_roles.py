"""Role scores on repeated random tokens, with heads made to play each role."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headwatch.heads import find_heads
from headwatch.metrics import ROLE_KEYS
from headwatch.probe.capture import capture
from headwatch.roles import head_roles, repeated_tokens

P, VOCABULARY, H, N = 12, 40, 3, 24


class Attention(nn.Module):
    """Adds a bias that makes head 0 attend to the previous token, 1 to the duplicate, 2 to what followed it."""

    def __init__(self, strength):
        super().__init__()
        self.n_heads, self.strength = H, strength
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(N, N) for _ in range(4))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (H, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        T = x.shape[1]
        distance = torch.arange(T)[:, None] - torch.arange(T)
        bias = torch.stack([(distance == d).float() * self.strength for d in (1, P, P - 1)])
        bias = bias.masked_fill(distance < 0, -torch.inf)
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None]).transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self, strength):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, N)
        self.blocks = nn.ModuleList([Attention(strength)])

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.mark.parametrize("first", [None, 0])
def test_each_role_is_found_in_the_head_that_plays_it(first):
    model = Net(strength=40.0)
    (found,) = head_roles(model, find_heads(model), repeated_tokens(VOCABULARY, period=P, first=first), period=P)
    assert found.heads == (0, 1, 2)
    table = np.stack([found.scores[role].numpy() for role in ROLE_KEYS], 1)
    np.testing.assert_allclose(np.diag(table), 1, atol=0.05)
    assert table[~np.eye(3, dtype=bool)].max() < 0.1


def test_scores_are_means_over_the_stripes():
    model, tokens = Net(strength=1.5), repeated_tokens(VOCABULARY, period=P, documents=3, first=1)
    maps = []

    def keep(call):
        scores = call.scale * call.q.double() @ call.k.double().transpose(-1, -2) + call.mask
        maps.append(scores.softmax(-1))

    with torch.no_grad(), capture(model, keep):
        model(tokens)
    A, T = maps[0], 2 * P + 1
    (found,) = head_roles(model, find_heads(model), tokens, period=P)
    second = range(T - P, T)
    expected = {
        "previous_token": torch.stack([A[:, :, q, q - 1] for q in range(2, T)]).mean((0, 1)),
        "duplicate_token": torch.stack([A[:, :, q, q - P] for q in second]).mean((0, 1)),
        "induction": torch.stack([A[:, :, q, q - P + 1] for q in second]).mean((0, 1)),
    }
    for role in ROLE_KEYS:
        np.testing.assert_allclose(found.scores[role], expected[role], rtol=1e-5)


def test_sequences_repeat_and_touch_no_random_state():
    state = torch.get_rng_state()
    tokens = repeated_tokens(50, period=7, documents=4)
    assert torch.equal(tokens[:, :7], tokens[:, 7:])
    assert tokens.shape == (4, 14)
    assert torch.equal(torch.get_rng_state(), state)
