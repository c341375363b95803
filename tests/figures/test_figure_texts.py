"""Doctests of the small functions of figures, and what its package loads."""

import doctest
import subprocess
import sys

import pytest

from headwatch.figures import heatmaps, ink, notes, palette, simplex


@pytest.mark.parametrize("module", [heatmaps, ink, notes, palette, simplex])
def test_examples(module):
    outcome = doctest.testmod(module)
    assert outcome.failed == 0


def test_the_package_loads_no_plotting_until_asked():
    code = "import sys, headwatch.figures; print([m for m in ('matplotlib', 'plotly') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_an_unknown_name_is_answered_with_the_known_ones():
    import headwatch.figures

    name = "nothing"
    with pytest.raises(AttributeError, match="composite_png"):
        getattr(headwatch.figures, name)
