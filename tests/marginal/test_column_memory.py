"""Memory of the column statistics: linear in T, a small part of the plain softmax's. Counted by the profiler."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from headwatch.marginal import column_statistics

H, N_HEAD = 6, 32


def peak_bytes(function):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def ours(T, **options):
    q, k = (torch.randn(1, H, T, N_HEAD) for _ in range(2))
    return peak_bytes(lambda: column_statistics(q, k, scale=1.0, **options))


def plain(T):
    q, k = (torch.randn(1, H, T, N_HEAD) for _ in range(2))
    return peak_bytes(lambda: (q @ k.transpose(-1, -2)).softmax(-1).sum(-2))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"query_stride": 4}])
def test_a_tenth_of_the_plain_softmax(options):
    assert ours(1536, **options) <= plain(1536) / 10


def test_linear_in_the_number_of_tokens():
    assert ours(3072) <= 2.3 * ours(1536)
