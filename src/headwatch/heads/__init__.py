"""Find the heads of a model, prove them, read them: names of parameters and rows, never a weight tensor."""

from headwatch.heads.errors import NoAttentionError
from headwatch.heads.find import find_heads
from headwatch.heads.headmap import HeadMap, LeftOut, Site
from headwatch.heads.names import named_modules, named_parameters
from headwatch.heads.reading import CopiedFactors, copy_factors, read_factors
from headwatch.snapshot import head_label

__all__ = [
    "CopiedFactors",
    "HeadMap",
    "LeftOut",
    "NoAttentionError",
    "Site",
    "copy_factors",
    "find_heads",
    "head_label",
    "named_modules",
    "named_parameters",
    "read_factors",
]
