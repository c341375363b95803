"""When a snapshot is due."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwatch.schedule import Schedule


def due_steps(schedule, last, stride=1):
    return [s for s in range(stride, last + 1, stride) if schedule.due(s - stride, s)]


def test_dense_early_then_every_n():
    assert due_steps(Schedule(100), 300) == [1, 2, 4, 8, 16, 32, 64, 100, 200, 300]


def test_step_zero_is_due():
    assert Schedule(100).due(-1, 0)


def test_a_boundary_that_was_jumped_over_counts():
    assert due_steps(Schedule(100, ()), 400, stride=30) == [120, 210, 300]


def test_stretch_multiplies_the_interval():
    assert due_steps(Schedule(100, (), stretch=3), 1000) == [300, 600, 900]


@given(st.integers(1, 50), st.lists(st.integers(1, 7), min_size=1, max_size=60))
def test_each_boundary_is_seen_exactly_once_whatever_the_jumps(n, jumps):
    schedule, now, seen = Schedule(n, ()), 0, 0
    crossed = set()
    for jump in jumps:
        before, now = now, now + jump
        seen += schedule.due(before, now)
        boundaries = {k for k in range(before + 1, now + 1) if k % n == 0}
        crossed |= {max(boundaries)} if boundaries else set()
    assert seen == len(crossed)


@pytest.mark.parametrize("n", [0, -3, 1.5, True, "10"])
def test_bad_interval(n):
    with pytest.raises(ValueError, match="every_n_train_steps: expected a whole number of optimizer steps above 0"):
        Schedule(n)


def test_bad_early_steps():
    with pytest.raises(ValueError, match="early_steps"):
        Schedule(10, (1, -2))
