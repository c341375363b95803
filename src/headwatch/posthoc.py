"""Profiles of a model that is already trained, from its checkpoint: only query and key tensors are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from headwatch.checkpoints import Checkpoint, CheckpointError, open_checkpoint
from headwatch.heads import HeadMap, NoAttentionError, copy_factors, find_heads
from headwatch.heads.errors import advising
from headwatch.heads.headmap import Gain, LeftOut, Site
from headwatch.heads.names import clean_name
from headwatch.measure import ProfileMeasure
from headwatch.options import FormOptions
from headwatch.parallel.held import gains_of, parameters_of
from headwatch.parallel.ranks import ALONE
from headwatch.parallel.source import Share, Source
from headwatch.saved_weights import save_weights
from headwatch.sinks.files import write_whole
from headwatch.skeleton import build_skeleton
from headwatch.snapshot import Snapshot
from headwatch.tables import HeadTable

__all__ = ["PostHoc", "Reading", "measure_checkpoint", "open_model", "profile_weights"]

_T = TypeVar("_T")

_QK_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_norm", "key_norm"), ("norm_q", "norm_k"))


@dataclass(frozen=True)
class Reading:
    """How a checkpoint is read.

    Attributes:
        n_heads: query heads per layer, where no configuration tells.
        n_kv_heads: key-value heads per layer, where they are fewer.
        include, exclude: patterns of modules or heads.
        options: which form.
        null: whether each head is placed in the null of its shape.
        save_weights: whether the raw W_Q and W_K are kept beside the profile.
        weights_file: where.
    """

    n_heads: int | None = None
    n_kv_heads: int | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    options: FormOptions = field(default_factory=FormOptions)
    null: bool = True
    save_weights: bool = False
    weights_file: Path | None = None


@dataclass(frozen=True)
class PostHoc:
    """A checkpoint with its heads found.

    Attributes:
        checkpoint: where the weights are.
        model: its modules without weights.
        head_map: its heads, found by rule ("structural").
    """

    checkpoint: Checkpoint
    model: nn.Module
    head_map: HeadMap


def profile_weights(weights: str | Path | Mapping[str, Tensor], reading: Reading | None = None) -> HeadTable:
    """The profile of every head of a checkpoint, or of a state dict.

    Raises: as :func:`open_model`.
    """
    reading = reading or Reading()
    opened = open_model(weights, reading)
    snapshot = measure_checkpoint(opened, opened.checkpoint.step or 0, reading)
    return HeadTable(snapshot.heads, tuple((item.module, item.reason) for item in opened.head_map.left_out))


def open_model(weights: str | Path | Mapping[str, Tensor], reading: Reading) -> PostHoc:
    """Open a checkpoint and find its heads by the names and shapes of its tensors; no weight is read.

    Args:
        weights: path of a checkpoint, or a state dict.
        reading: how to read it.

    Raises:
        CheckpointError: it cannot be read, nothing tells how many heads there are, or not what the reading says.
        NoAttentionError: there is no self-attention in it.
    """
    checkpoint = _in_memory(weights) if isinstance(weights, Mapping) else open_checkpoint(weights)
    _refuse_low_rank_updates(checkpoint)
    model = build_skeleton(checkpoint.shapes, _counted(checkpoint, reading))
    try:
        with advising(_remedy(reading), model=str(checkpoint.path)):
            head_map = find_heads(model, include=reading.include, exclude=reading.exclude)
    except NoAttentionError as error:
        if error.left_out and reading.n_heads is None and not checkpoint.config:
            raise CheckpointError(_no_count(checkpoint, error.left_out)) from error
        raise
    _refuse_ignored_counts(head_map, checkpoint, reading)
    sites = tuple(_with_qk_norm(site, checkpoint) for site in head_map.sites)
    return PostHoc(checkpoint, model, replace(head_map, sites=sites))


def _no_count(checkpoint: Checkpoint, left_out: Sequence[LeftOut]) -> str:
    return (
        f"{checkpoint.path}: no count of heads was found. A state dict alone does not tell it: put the model's "
        "config.json beside it, or give --n-heads 4 (and --n-kv-heads; n_heads=4 in Python). "
        f"First of {len(left_out)}: {left_out[0].module}: {left_out[0].reason}."
    )


def _remedy(reading: Reading) -> str:
    """What to do where no head is found in weights."""
    count = (
        "say how many heads there are, --n-heads 4 (n_heads=4 in Python)"
        if reading.n_heads is None
        else f"give a count that splits the query rows into heads of equal size; {reading.n_heads} was given"
    )
    return (
        f"{count}; or, where the projections have unusual names, load the weights into the model and call "
        "headwatch.profile(model, probe=batch), which finds heads on a forward pass."
    )


def _refuse_ignored_counts(head_map: HeadMap, checkpoint: Checkpoint, reading: Reading) -> None:
    """What the user says of the number of heads holds for every module, or is refused."""
    for option, said in (("n_heads", reading.n_heads), ("n_kv_heads", reading.n_kv_heads)):
        site = next((site for site in head_map.sites if said not in (None, getattr(site, option))), None)
        if site is not None:
            raise CheckpointError(_ignored(checkpoint, site, option, said))


def _ignored(checkpoint: Checkpoint, site: Site, option: str, said: int | None) -> str:
    found = getattr(site, option)
    kind = "query heads" if option == "n_heads" else "key-value heads"
    source = "configuration and weights" if checkpoint.config else "weights"
    return (
        f"{checkpoint.path}: --{option.replace('_', '-')} {said} ({option}={said} in Python) does not fit: expected "
        f"{said} {kind} in every attention module, found {found} in {site.module}, as {source} tell. What to do: leave "
        f"out the option, or give {found}; modules with another count can be left out with --exclude."
    )


def _in_memory(state: Mapping[str, Tensor]) -> Checkpoint:
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in state.items()}
    return Checkpoint(Path("state dict"), state, shapes)


def _with_qk_norm(site: Site, checkpoint: Checkpoint) -> Site:
    """The site with the gains of a norm on queries and keys, by the names that families give it: the numerator form."""
    for q_name, k_name in _QK_NORMS:
        gains = [_gain(f"{site.module}.{name}", site.d_head, checkpoint) for name in (q_name, k_name)]
        if None not in gains:
            W_Q, W_K = (
                replace(each, gain=gain, centred=f"{site.module}.{name}.bias" in checkpoint.shapes)
                for each, gain, name in zip((site.W_Q, site.W_K), gains, (q_name, k_name), strict=True)
            )
            return replace(site, W_Q=W_Q, W_K=W_K, flags=(*site.flags, "qk_norm"))
    return site


def _gain(norm: str, d_head: int, checkpoint: Checkpoint) -> Gain | None:
    """One gain for all heads, shape (n,), or one per head laid end to end."""
    names = {clean_name(name): tensor.numel() for name, tensor in checkpoint.shapes.items()}
    size = names.get(f"{norm}.weight", 0)
    if not size or size % d_head:
        return None
    index = None if size == d_head else np.arange(size).reshape(-1, d_head)
    offset = 1.0 if str(checkpoint.config.get("model_type", "")).startswith("gemma") else 0.0  # its gain is 1 + w
    return Gain(f"{norm}.weight", index, offset)


def _counted(checkpoint: Checkpoint, reading: Reading) -> Mapping[str, object]:
    """The configuration, with what the user said first."""
    said = {"num_heads": reading.n_heads, "num_key_value_heads": reading.n_kv_heads}
    return {**checkpoint.config, **{key: value for key, value in said.items() if value is not None}}


def _refuse_low_rank_updates(checkpoint: Checkpoint) -> None:
    name = next((name for name in checkpoint.shapes if ".lora_A." in name), None)
    if name is not None:
        raise CheckpointError(
            f"{checkpoint.path} holds low-rank updates ({name}) whose scale no checkpoint tells. Merge them first: "
            "model.merge_and_unload() in peft."
        )


def measure_checkpoint(opened: PostHoc, step: int, reading: Reading) -> Snapshot:
    """The profile of every head, one layer's weights in memory after another."""
    source = _CheckpointSource(opened)
    measure = ProfileMeasure(opened.head_map, dict, options=reading.options, null=reading.null, source=source)
    snapshot = measure.take(step)(step)
    file = reading.weights_file
    if file is not None:
        copies = (copy_factors(site, source.tensors) for site in opened.head_map.sites)
        write_whole(file, file.parent, lambda path: save_weights(path, copies))
    return snapshot.with_columns(epoch=opened.checkpoint.epoch, time=_modified(opened.checkpoint.path))


def _modified(path: Path) -> float | None:
    files = list(path.iterdir()) if path.is_dir() else [path]
    return max((file.stat().st_mtime for file in files if file.exists()), default=None)


class _Named(Mapping[str, Tensor]):
    """Tensors by the names that the user's modules have, without wrappers' segments."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._raw = {clean_name(name): name for name in tensors}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[self._raw[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


class _CheckpointSource(Source):
    """Reads what a site needs when the site comes."""

    def __init__(self, opened: PostHoc) -> None:
        self.ranks = ALONE
        self.tensors = _Named(opened.checkpoint.tensors)
        self._sites = opened.head_map.sites

    def visit(self, copy: Callable[[Share, Mapping[str, Tensor]], _T]) -> list[_T]:
        return [
            copy(Share(place, site, live=False), self._read(site_names))
            for place, (site, site_names) in enumerate((s, [*parameters_of(s), *gains_of(s)]) for s in self._sites)
        ]

    def _read(self, names: list[str]) -> dict[str, Tensor]:
        return {name: self.tensors[name] for name in names}
