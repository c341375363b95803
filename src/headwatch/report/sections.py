"""The report's figures in reading order: what each shows, and what it does not mean."""

from __future__ import annotations

from headwatch.page import Section

__all__ = ["figure_sections"]

_PROFILE = (
    Section(
        "simplex",
        "Heads in the simplex",
        "Every head's profile (a, b, c, d) is a point of a tetrahedron. Chance puts a head at M, in the middle of the "
        "edge a–b. Θ, in red, holds the profiles of rank-one forms; M lies on it, so a head close to Θ has not thereby "
        "learned anything, and need not be of rank one: the stable rank tells. Drag to turn, hover for names, click to "
        "mark a head.",
    ),
    Section(
        "trajectories",
        "Trajectories",
        "One line per head; many heads as median and band per layer until a layer is chosen. Click a line to mark its "
        "head.",
    ),
    Section("maps", "Layer × head", "The snapshot chosen below, as heat maps. Ranges stay fixed over the run."),
    Section(
        "loss",
        "Loss beside drift",
        "Median over heads, with the band from the 10th to the 90th percentile. That two lines bend together does not "
        "say that one causes the other.",
    ),
)
_SIGNATURE = Section(
    "signatures",
    "Attention signatures",
    "How the heads spread their attention over the keys of the probe documents. Consistency over documents is high for "
    "a random network as well, with dispersion near 0: read the two together.",
)
_BOTH = Section(
    "rank-and-peak",
    "Does a head become rank-one when it becomes peaked?",
    "One mark per head at the chosen snapshot: its profile against its signature.",
)
_TABLE = Section(
    "heads",
    "All heads",
    "At the chosen snapshot. A click on a column's head sorts; the filter takes words and conditions, such as "
    "“L03 I+ stable_rank<2”. A dash is a missing number.",
)


def figure_sections(profile: bool, signature: bool) -> list[Section]:
    """Sections of the kinds that a run has; scripts fill them."""
    sections = list(_PROFILE) if profile else []
    sections += [_SIGNATURE] if signature else []
    sections += [_BOTH] if profile and signature else []
    return [*sections, _TABLE]
