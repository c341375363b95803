"""Include and exclude patterns."""

from __future__ import annotations

import pytest
from heads_zoo import NanoAttention, stack

from headwatch.heads import find_heads, head_label


def selected(**patterns):
    found = find_heads(stack(NanoAttention, depth=3), **patterns)
    return [head_label(site.layer, head) for site in found.sites for head in site.heads]


def test_heads_layers_and_modules():
    assert selected(include=["L01.*"]) == ["L01.H00", "L01.H01", "L01.H02", "L01.H03"]
    assert selected(include=["L*.H02"]) == ["L00.H02", "L01.H02", "L02.H02"]
    assert selected(include=["2.*"], exclude=["L*.H0[0-2]"]) == ["L02.H03"]
    assert selected(include="L00.H01") == ["L00.H01"]


def test_layers_keep_their_numbers():
    assert selected(exclude=["1.attn", "L00.H0[1-3]"]) == ["L00.H00", "L02.H00", "L02.H01", "L02.H02", "L02.H03"]


@pytest.mark.parametrize("side", ["include", "exclude"])
def test_a_pattern_that_matches_nothing_lists_what_exists(side):
    with pytest.raises(ValueError, match=r"'L07\.\*' matches no head(.|\n)*L00\.H00…H03  0\.attn(.|\n)*2\.attn"):
        selected(**{side: ["L07.*"]})


def test_all_excluded_is_said():
    with pytest.raises(ValueError, match="leave no head"):
        selected(include=["L00.*"], exclude=["L*"])
