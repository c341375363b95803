"""Home-made attention, of the kinds that nobody's rules were written for."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

N, H, n = 48, 4, 12


def rotary_in_place(x: Tensor, start: int, stop: int, shift: int = 0) -> Tensor:
    """Neighbouring coordinates [start, stop) turned, written into a new tensor."""
    half = (stop - start) // 2
    frequency = 50.0 ** (-torch.arange(half) / half)
    angle = (torch.arange(x.shape[-2]) + shift)[:, None] * frequency
    out = torch.empty_like(x)
    out[..., :start], out[..., stop:] = x[..., :start], x[..., stop:]
    even, odd = x[..., start:stop:2], x[..., start + 1 : stop : 2]
    out[..., start:stop:2] = even * angle.cos() - odd * angle.sin()
    out[..., start + 1 : stop : 2] = odd * angle.cos() + even * angle.sin()
    return out


class Odd(nn.Module):
    """Positions first, one weight with d_head before heads, partial rotary in the middle, own softmax, ALiBi."""

    def __init__(self) -> None:
        super().__init__()
        self.everything = nn.Linear(N, 3 * N)

    def forward(self, x: Tensor) -> Tensor:
        T, B, _ = x.shape
        q, k, v = self.everything(x).view(T, B, 3, n, H).permute(2, 1, 4, 0, 3)
        q, k = rotary_in_place(q, 2, 10), rotary_in_place(k, 2, 10)
        distance = torch.arange(T)[None, :] - torch.arange(T)[:, None]
        slope = 2.0 ** -torch.arange(1, H + 1)
        scores = q @ k.mT * 0.37 + slope[:, None, None] * distance
        scores = scores.masked_fill(distance > 0, float("-inf"))
        return (scores.softmax(-1) @ v).permute(2, 0, 1, 3).reshape(T, B, N)

    def expected(self) -> tuple[Tensor, Tensor]:
        W = self.everything.weight.view(3, n, H, N)
        return W[0].transpose(0, 1), W[1].transpose(0, 1)


class OneByOne(nn.Module):
    """Convolutions with a kernel of one, a cast of weights, two key heads in tiled order, functional norms, a cap."""

    def __init__(self) -> None:
        super().__init__()
        self.ask, self.offer = nn.Conv1d(N, N, 1, bias=False), nn.Conv1d(N, 2 * n, 1, bias=False)
        self.give = nn.Parameter(torch.randn(n, N) / 7)

    def forward(self, x: Tensor) -> Tensor:
        q = F.conv1d(x.mT, self.ask.weight.double()).view(len(x), H, n, -1).mT
        k = F.conv1d(x.mT, self.offer.weight.double()).view(len(x), 2, n, -1).mT.repeat(1, 2, 1, 1)
        v = F.linear(x, self.give.type_as(x))[:, None]
        q, k = F.rms_norm(q, (n,)), F.normalize(k, dim=-1)
        scores = torch.tanh(torch.einsum("bhid,bhjd->bhij", q, k) / 5.0) * 5.0
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape_as(x)

    def expected(self) -> tuple[Tensor, Tensor]:
        return self.ask.weight.view(H, n, N), self.offer.weight.view(2, n, N).repeat(2, 1, 1)


class HeadAlone(nn.Module):
    """One head as a lecture writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(N, n, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(n)
        weights = weights.masked_fill(~torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(), float("-inf"))
        return weights.softmax(dim=-1) @ self.value(x)


class Lecture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(HeadAlone() for _ in range(H))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1)


class Differential(nn.Module):
    """Two attention maps of one module, subtracted; weights kept per head in lists."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = (nn.ParameterList(torch.randn(2 * n, N) / 7 for _ in range(2)) for _ in range(2))
        self.v = nn.Linear(N, N)

    def forward(self, x: Tensor) -> Tensor:
        v = self.v(x).unflatten(-1, (2, -1)).transpose(1, 2)
        maps = []
        for q, k in zip(self.q, self.k, strict=True):
            a, b = (F.linear(x, W).unflatten(-1, (2, n)).transpose(1, 2) for W in (q, k))
            maps.append(F.scaled_dot_product_attention(a, b, v, is_causal=True))
        return (maps[0] - 0.3 * maps[1]).transpose(1, 2).reshape_as(x)

    def expected(self) -> tuple[Tensor, Tensor]:
        q, k = (torch.cat(list(each)).view(H, n, N) for each in (self.q, self.k))
        return q, k


class Shared(nn.Module):
    """Query and key by one weight (tied), twice in a row, with a shift of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v = nn.Linear(N, N), nn.Linear(N, N)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            q, v = (f(x).unflatten(-1, (H, n)).transpose(1, 2) for f in (self.qk, self.v))
            q = rotary_in_place(q, 0, n, shift=5)
            x = x + F.scaled_dot_product_attention(q, q, v).transpose(1, 2).reshape_as(x)
        return x

    def expected(self) -> tuple[Tensor, Tensor]:
        return (self.qk.weight.view(H, n, N),) * 2


class TwoLayerQuery(Shared):
    """A query that is no linear map of the input."""

    def forward(self, x: Tensor) -> Tensor:
        q = self.qk(torch.relu(self.qk(x))).unflatten(-1, (H, n)).transpose(1, 2)
        k, v = (f(x).unflatten(-1, (H, n)).transpose(1, 2) for f in (self.qk, self.v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape_as(x)


class Featured(Shared):
    """Queries and keys through a feature map."""

    def forward(self, x: Tensor) -> Tensor:
        q, v = (f(x).unflatten(-1, (H, n)).transpose(1, 2) for f in (self.qk, self.v))
        return F.scaled_dot_product_attention(F.elu(q) + 1, F.elu(q) + 1, v).transpose(1, 2).reshape_as(x)


class Mixed(Shared):
    """A convolution over tokens between projection and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.over_tokens = nn.Conv1d(N, N, 3, padding=1, groups=N)

    def forward(self, x: Tensor) -> Tensor:
        q = self.over_tokens(self.qk(x).mT).mT.unflatten(-1, (H, n)).transpose(1, 2)
        k, v = (f(x).unflatten(-1, (H, n)).transpose(1, 2) for f in (self.qk, self.v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape_as(x)


class Linear(nn.Module):
    """Linear attention under names that rules know."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(N, N) for _ in range(3))
        self.num_heads = H

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (H, n)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        return (F.elu(q) @ (F.elu(k).mT @ v)).transpose(1, 2).reshape_as(x)
