"""Blocks of a hybrid model that mix tokens without softmax attention, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from headwatch.heads.headmap import LeftOut, Site
from headwatch.heads.names import canonical_names, named_modules, unwrapped

__all__ = ["hybrid_blocks"]

_MIXERS = (
    "mamba", "ssm", "ssd", "linearatt", "linear_att", "deltanet", "rwkv", "retention", "hyena", "conv", "recurrent",
    "lru", "gru", "lstm", "s4", "gla", "fourier", "timemix", "xlstm",
)  # fmt: skip


_NO_MIXERS = ("norm", "mlp", "embed")


def hybrid_blocks(model: nn.Module, sites: Sequence[Site], left_out: Sequence[LeftOut]) -> list[LeftOut]:
    """Blocks that stand in one list with blocks that hold watched heads, and hold none themselves.

    A block counts when it is of the same class as one with heads, or when something in it is named as a mixer (state
    space, convolution, recurrence, linear attention).
    """
    names = canonical_names(model)
    watched = [site.module for site in sites]
    told = [*watched, *(item.module for item in left_out)]
    found = {}
    for _, module in named_modules(model):
        for child in _without_heads(module, names, watched):
            name = names[id(child)]
            if not _holds(name, told):
                found[name] = LeftOut(
                    name, f"{_mixer(child) or type(child).__name__} holds no softmax attention: nothing in it to watch"
                )
    return list(found.values())


def _without_heads(module: nn.Module, names: dict[int, str], watched: Sequence[str]) -> Iterator[nn.Module]:
    if not isinstance(module, (nn.ModuleList, nn.Sequential)):
        return
    children = [unwrapped(child) for child in module.children() if any(True for _ in child.parameters())]
    classes = {type(child) for child in children if _holds(names[id(child)], watched)}
    for child in children:
        alike = type(child) in classes and not isinstance(child, (nn.ModuleList, nn.Sequential))
        if classes and not _holds(names[id(child)], watched) and (alike or _mixer(child)):
            yield child


def _holds(name: str, modules: Sequence[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for module in modules)


def _mixer(block: nn.Module) -> str | None:
    """Class of the innermost part of a block that is named as a mixer of tokens, None without one."""
    classes = [type(module).__name__ for module in block.modules()]
    classes = [name for name in classes if name != "Conv1D" and not any(part in name.lower() for part in _NO_MIXERS)]
    named = [name for name in classes if any(hint in name.lower() for hint in _MIXERS)]
    own = [name for name in named if not name.startswith(("Conv1d", "Conv2d", "Conv3d"))]
    return next(iter(own[1:2] or own or named), None)
