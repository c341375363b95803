"""Checkpoints on disk: formats, laziness, steps, refusals in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from headwatch.checkpoints import CheckpointError, open_checkpoint

STATE = {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.bias": torch.ones(2)}


class Custom:
    """A class that a checkpoint should not bring to life."""


def assert_is_state(path: Path) -> None:
    opened = open_checkpoint(path)
    assert set(opened.tensors) == set(opened.shapes) == set(STATE)
    for name, tensor in STATE.items():
        assert torch.equal(opened.tensors[name], tensor)
        assert (opened.shapes[name].shape, opened.shapes[name].device.type) == (tensor.shape, "meta")


def test_a_safetensors_file(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "any.safetensors")
    assert_is_state(tmp_path / "any.safetensors")


def sharded(directory: Path) -> None:
    names = list(STATE)
    for i, name in enumerate(names):
        save_file({name: STATE[name]}, directory / f"model-0000{i}.safetensors")
    index = {"weight_map": {name: f"model-0000{i}.safetensors" for i, name in enumerate(names)}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_sharded_directory_reads_what_its_index_names(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file({"other": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    assert_is_state(tmp_path)


def test_shards_without_an_index_are_known_by_their_names(tmp_path: Path) -> None:
    for i, name in enumerate(STATE):
        save_file({name: STATE[name]}, tmp_path / f"model-0000{i}-of-00002.safetensors")
    assert_is_state(tmp_path)


def test_several_files_that_are_no_shards_are_not_one_checkpoint(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file(STATE, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match="2 safetensors files and no index; name one"):
        open_checkpoint(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model-00001.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00001\.safetensors cannot be read"):
        open_checkpoint(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "half.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(CheckpointError, match=r"half\.safetensors cannot be read as safetensors"):
        open_checkpoint(tmp_path / "half.safetensors")


def test_a_directory_of_torch_shards(tmp_path: Path) -> None:
    for i, name in enumerate(STATE):
        torch.save({name: STATE[name]}, tmp_path / f"pytorch_model-0000{i}-of-00002.bin")
    assert_is_state(tmp_path)


def test_a_plain_state_dict(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "state.pt")
    assert_is_state(tmp_path / "state.pt")


def test_the_format_before_torch_1_6(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_is_state(tmp_path / "old.pt")


def test_a_lightning_checkpoint_brings_step_epoch_and_hyperparameters(tmp_path: Path) -> None:
    contents = {"state_dict": STATE, "global_step": 70, "epoch": 3, "hyper_parameters": {"n_heads": 4}}
    torch.save(contents, tmp_path / "last.ckpt")
    assert_is_state(tmp_path / "last.ckpt")
    opened = open_checkpoint(tmp_path / "last.ckpt")
    assert (opened.step, opened.epoch, opened.config) == (70, 3, {"n_heads": 4})


def test_a_nanogpt_checkpoint(tmp_path: Path) -> None:
    torch.save({"model": STATE, "iter_num": 5, "model_args": {"n_head": 2}}, tmp_path / "ckpt.pt")
    opened = open_checkpoint(tmp_path / "ckpt.pt")
    assert (opened.step, opened.config["n_head"]) == (5, 2)
    assert_is_state(tmp_path / "ckpt.pt")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("epoch=1-step=300.safetensors", 300),
        ("step_00042.safetensors", 42),
        ("checkpoint-7/model.safetensors", 7),
        ("step1000.safetensors", 1000),
        ("model.safetensors", None),
    ],
)
def test_steps_by_name(tmp_path: Path, name: str, step: int | None) -> None:
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    save_file(STATE, path)
    assert open_checkpoint(path).step == step


def test_the_step_of_a_hugging_face_checkpoint(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    (tmp_path / "trainer_state.json").write_text('{"global_step": 12}')
    assert open_checkpoint(tmp_path).step == 12


def test_the_configuration_beside_wins_and_text_parts_count(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "both", "text_config": {"num_attention_heads": 3}}')
    assert open_checkpoint(tmp_path / "model.safetensors").config["num_attention_heads"] == 3


def test_python_objects_are_refused_with_the_reason(tmp_path: Path) -> None:
    torch.save({"state_dict": STATE, "callback": Custom()}, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match="does not unpickle what could run code") as error:
        open_checkpoint(tmp_path / "last.ckpt")
    assert "safetensors" in str(error.value)


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("gone.ckpt", None, "no checkpoint at"),
        ("weights.npz", b"", "none of the files that are read"),
        ("broken.ckpt", b"no zip", "cannot be read|does not unpickle"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, contents: bytes | None, message: str) -> None:
    if contents is not None:
        (tmp_path / name).write_bytes(contents)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / name)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="DeepSpeed"):
        open_checkpoint(tmp_path)


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "a.pt")
    torch.save([1, 2], tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match="no tensors by name"):
        open_checkpoint(tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="holds a list"):
        open_checkpoint(tmp_path / "b.pt")
