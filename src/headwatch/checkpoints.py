"""Weights on disk, read tensor by tensor: safetensors files and directories, Lightning and plain torch checkpoints.

Nothing is unpickled: torch files load with ``weights_only=True`` or are refused.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

__all__ = ["Checkpoint", "CheckpointError", "is_checkpoint", "open_checkpoint"]

_STATES = ("state_dict", "model_state_dict", "model", "module")
_CONFIGS = ("hyper_parameters", "model_args", "config", "hparams")
_STEPS = ("global_step", "iter_num", "step", "steps", "iteration")
_TORCH_FILES = (".ckpt", ".pt", ".pth", ".bin")
_SHARD = re.compile(r"-\d+-of-\d+$")
_STEP_IN_NAME = re.compile(r"(?:step|checkpoint|iter|global_step)[=_-]?(\d+)")


class CheckpointError(ValueError):
    """A checkpoint cannot be read; the message says why and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint.

    Attributes:
        path: file or directory.
        tensors: its tensors by name; one is read when it is asked for.
        shapes: the same names with tensors on the meta device.
        config: what is known of the model: ``config.json`` beside the weights, or the checkpoint's own hyperparameters.
        step: optimizer steps, from the checkpoint or its name; None where neither tells.
        epoch: epoch, where the checkpoint tells.
    """

    path: Path
    tensors: Mapping[str, Tensor]
    shapes: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)
    step: int | None = None
    epoch: int | None = None


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint; no weight is read yet where the format allows it (safetensors, torch's zip files).

    Args:
        path: a ``.safetensors`` file, a directory with one or several, a directory with ``pytorch_model*.bin``, or a
            Lightning or plain torch file.

    Raises:
        CheckpointError: nothing there, not a format that is read, or Python objects that would have to be unpickled.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"no checkpoint at {path}.")
    files = _weight_files(path)
    if files[0].suffix == ".safetensors":
        tensors = _SafeTensors(files)
        return Checkpoint(path, tensors, tensors.shapes, _config_beside(path), _step_of(path, {}))
    return _torch_checkpoint(path, files)


def is_checkpoint(path: Path) -> bool:
    """Whether a path looks like one checkpoint, by its name and the names inside."""
    try:
        return bool(_weight_files(path))
    except CheckpointError:
        return False


def _weight_files(path: Path) -> list[Path]:
    """The files that hold the weights of a checkpoint, safetensors first."""
    if path.is_file():
        if path.suffix != ".safetensors" and path.suffix not in _TORCH_FILES:
            raise CheckpointError(
                f"{path} is none of the files that are read: .safetensors, {', '.join(_TORCH_FILES)}, or a directory "
                "with *.safetensors."
            )
        return [path]
    found = _safetensors_in(path) or sorted(path.glob("pytorch_model*.bin"))
    if not found:
        raise CheckpointError(
            f"{path} holds no *.safetensors and no pytorch_model*.bin. Name the checkpoint itself; sharded training "
            "states (DeepSpeed, torch.distributed.checkpoint) must be turned into a plain state dict first."
        )
    return found


def _safetensors_in(directory: Path) -> list[Path]:
    """The files that an index names, so that a second copy of the weights in the directory is not read too."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        return sorted({directory / str(name) for name in _json(index).get("weight_map", {}).values()})
    whole = directory / "model.safetensors"
    if whole.is_file():
        return [whole]
    found = sorted(directory.glob("*.safetensors"))
    if len(found) > 1 and not all(_SHARD.search(file.stem) for file in found):
        raise CheckpointError(f"{directory} holds {len(found)} safetensors files and no index; name one of them.")
    return found


class _SafeTensors(Mapping[str, Tensor]):
    """Tensors of memory-mapped safetensors files; a shard that is missing is named."""

    def __init__(self, files: list[Path]) -> None:
        self._handles = [_opened(file) for file in files]
        home = {name: handle for handle in self._handles for name in handle.keys()}  # noqa: SIM118
        self._home = {name: home[name] for name in sorted(home, key=_in_order)}
        self.shapes = {name: _shape(handle, name) for name, handle in self._home.items()}

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._home[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)


def _in_order(name: str) -> list[tuple[int, str]]:
    """Sorts names as a model registers them, for safetensors keep no order: layer 2 before layer 10, encoder first.

    >>> sorted(["decoder.0", "encoder.10", "encoder.2"], key=_in_order)
    ['encoder.2', 'encoder.10', 'decoder.0']
    """
    parts = name.replace("encoder", "\0").split(".")
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read as safetensors: {error}. Download or save it again.") from error


_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def _shape(handle: Any, name: str) -> Tensor:
    stored = handle.get_slice(name)
    return torch.empty(stored.get_shape(), dtype=_DTYPES.get(stored.get_dtype(), torch.int8), device="meta")


def _torch_checkpoint(path: Path, files: list[Path]) -> Checkpoint:
    contents = [_load(file) for file in files]
    top = contents[0]
    tensors = {name: tensor for content in contents for name, tensor in _state(content).items()}
    if not tensors:
        raise CheckpointError(f"{path} holds no tensors by name; expected a state dict, at the top or as 'state_dict'.")
    own: Mapping[str, Any] = next((top[key] for key in _CONFIGS if isinstance(top.get(key), Mapping)), {})
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    epoch = top.get("epoch")
    config = {**own, **_config_beside(path)}
    return Checkpoint(path, tensors, shapes, config, _step_of(path, top), epoch if isinstance(epoch, int) else None)


def _load(file: Path) -> Mapping[str, Any]:
    try:
        loaded = _torch_load(file)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise CheckpointError(
            f"{file} holds Python objects besides tensors{f' ({named[1]})' if named else ''}. "
            "headwatch does not unpickle what could run code. "
            "Save the weights alone: as safetensors, or torch.save(model.state_dict(), ...)."
        ) from error
    except Exception as error:  # what torch raises on a file that is no checkpoint depends on its first bytes
        said = f"{type(error).__name__}: {error}" if str(error) else "it is empty or cut off"
        raise CheckpointError(f"{file} cannot be read as a torch checkpoint ({said}).") from error
    if not isinstance(loaded, Mapping):
        raise CheckpointError(f"{file} holds a {type(loaded).__name__}; expected a state dict.")
    return loaded


def _torch_load(file: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap" not in str(error):
            raise
        return torch.load(file, map_location="cpu", weights_only=True)  # the format before torch 1.6


def _state(content: Mapping[str, Any]) -> dict[str, Tensor]:
    inner = next((content[key] for key in _STATES if isinstance(content.get(key), Mapping)), content)
    return {str(name): value for name, value in inner.items() if isinstance(value, Tensor)}


def _config_beside(path: Path) -> dict[str, Any]:
    """``config.json`` in the directory; the text part of a model of several modalities."""
    file = (path if path.is_dir() else path.parent) / "config.json"
    config = _json(file) if file.is_file() else {}
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def _step_of(path: Path, top: Mapping[str, Any]) -> int | None:
    for key in _STEPS:
        if isinstance(top.get(key), int):
            return int(top[key])
    state = path / "trainer_state.json"
    if state.is_file() and isinstance(step := _json(state).get("global_step"), int):
        return step
    for name in (path.stem if path.is_file() else path.name, path.parent.name):
        found = _STEP_IN_NAME.findall(name)
        if found:
            return int(found[-1])
    return None


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from error
    return value if isinstance(value, dict) else {}
