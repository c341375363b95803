"""Blocks beside those with heads that hold none: of a hybrid model, or with names that no rule knows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from headwatch.heads.headmap import LeftOut, Site
from headwatch.heads.names import canonical_names, named_modules, unwrapped

__all__ = ["hybrid_blocks"]

_MIXERS = (
    "mamba", "ssm", "ssd", "linearatt", "linear_att", "deltanet", "rwkv", "retention", "hyena", "conv", "recurrent",
    "lru", "gru", "lstm", "s4", "gla", "fourier", "timemix", "xlstm",
)  # fmt: skip


_NO_MIXERS = ("norm", "mlp", "embed")


def hybrid_blocks(
    model: nn.Module, sites: Sequence[Site], left_out: Sequence[LeftOut], *, proven: bool
) -> list[LeftOut]:
    """Blocks that stand in one list with blocks that hold watched heads, and hold none themselves.

    A block counts when something in it is named as a mixer (state space, convolution, recurrence, linear attention);
    or when it is alike one with heads: of the same class, where a forward showed what holds no attention; by rule,
    where attention may have gone unrecognised, when both have a matrix of the same shape.
    """
    names = canonical_names(model)
    watched = [site.module for site in sites]
    told = [*watched, *(item.module for item in left_out)]
    found = {}
    for _, module in named_modules(model):
        children = _listed(module)
        holders = [child for child in children if _holds(names[id(child)], watched)]
        for child in children if holders else ():
            name = names[id(child)]
            reason = None if _holds(name, told) else _reason(child, holders, names, proven)
            if reason is not None:
                found[name] = LeftOut(name, reason)
    return list(found.values())


def _reason(block: nn.Module, holders: Sequence[nn.Module], names: dict[int, str], proven: bool) -> str | None:
    alike, mixer = _same_class if proven else _same_matrix, _mixer(block)
    beside = next((holder for holder in holders if alike(block, holder)), None)
    if mixer is not None or (proven and beside is not None):
        return f"{mixer or type(block).__name__} holds no softmax attention: nothing in it to watch"
    if beside is None:
        return None
    return f"no query and key were recognised in it, as they were in {names[id(beside)]} beside it"


def _listed(module: nn.Module) -> list[nn.Module]:
    """Children with weights of a list: torch's own, or what a checkpoint numbers."""
    if not isinstance(module, (nn.ModuleList, nn.Sequential)) and not all(key.isdecimal() for key in module._modules):
        return []
    return [unwrapped(child) for child in module.children() if any(True for _ in child.parameters())]


def _same_class(block: nn.Module, other: nn.Module) -> bool:
    return type(block) is type(other) and not isinstance(block, (nn.ModuleList, nn.Sequential))


def _same_matrix(block: nn.Module, other: nn.Module) -> bool:
    return bool(_matrices(block) & _matrices(other))


def _matrices(block: nn.Module) -> set[tuple[int, ...]]:
    return {tuple(weight.shape) for weight in block.parameters() if weight.dim() >= 2}


def _holds(name: str, modules: Sequence[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for module in modules)


def _mixer(block: nn.Module) -> str | None:
    """Class of the innermost part of a block that is named as a mixer of tokens, None without one."""
    classes = [type(module).__name__ for module in block.modules()]
    classes = [name for name in classes if name != "Conv1D" and not any(part in name.lower() for part in _NO_MIXERS)]
    named = [name for name in classes if any(hint in name.lower() for hint in _MIXERS)]
    own = [name for name in named if not name.startswith(("Conv1d", "Conv2d", "Conv3d"))]
    return next(iter(own[1:2] or own or named), None)
