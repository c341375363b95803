"""Packed numbers come back within the promised error, and small."""

import numpy as np
import pytest

from headwatch.page.packing import pack, round_mantissa, unpack


@pytest.mark.parametrize("bits", [4, 12, 23])
def test_relative_error_is_bounded(bits):
    rng = np.random.default_rng(0)
    values = (rng.normal(size=5000) * 10.0 ** rng.integers(-20, 20, 5000)).astype(np.float32)
    back = unpack(pack(values, bits))
    assert np.max(np.abs(back - values) / np.abs(values)) <= 2.0 ** -(bits + 1)


def test_missing_zero_and_infinite_numbers_survive():
    values = np.array([np.nan, 0.0, -0.0, np.inf, -np.inf, np.finfo(np.float32).max], dtype=np.float32)
    back = unpack(pack(values, 23))
    np.testing.assert_array_equal(back, values)
    assert np.isnan(unpack(pack(values))[0])


def test_rounding_needs_a_sensible_number_of_bits():
    with pytest.raises(ValueError, match="expected 1 to 23, found 0"):
        round_mantissa(np.zeros(1, np.float32), 0)


def test_a_walk_packs_to_three_characters_a_number():
    walk = np.random.default_rng(0).normal(size=(200, 1024)).cumsum(0)
    assert len(pack(walk)) < 3 * walk.size
