"""``headwatch heads`` on a checkpoint, a run and a function."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import headwatch
from headwatch.cli import build_app
from headwatch.heads import NoAttentionError

USER_MODULE = """
import torch
from headwatch.demo.model import TextDecoder

def build():
    return TextDecoder(n_layers=2, n_heads=2, d_model=16, context=8)

def build_with_batch():
    return build(), torch.randint(256, (4, 8))

def number():
    return 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users_models.py").write_text(USER_MODULE)
    monkeypatch.setenv("COLUMNS", "140")
    return tmp_path


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(build_app(), ["heads", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_function_that_makes_a_model_is_read_by_rule(folder: Path) -> None:
    output = printed("users_models:build")
    assert output.count("structural") == 2
    assert "L01" in output
    assert "blocks.1.attention" in output
    assert "2 of 2" in output


def test_function_that_brings_a_batch_proves_its_heads(folder: Path) -> None:
    assert printed("users_models:build_with_batch").count("proven") == 2


def test_patterns_choose(folder: Path) -> None:
    assert "blocks.0" not in printed("users_models:build", "--include", "L01.*")


def test_checkpoint(folder: Path) -> None:
    from headwatch.demo.model import TextDecoder

    torch.save(
        {"state_dict": TextDecoder(n_layers=1, n_heads=4, d_model=16).state_dict(), "global_step": 1}, "last.ckpt"
    )
    output = printed("last.ckpt", "--n-heads", "4")
    assert "4 of 4" in output
    assert "structural" in output


def test_run_says_what_training_proved(folder: Path) -> None:
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, batch_first=True), 1)
    with headwatch.Monitor(model, run_id="RUN", probe=torch.randn(4, 5, 16)):
        pass
    assert "proven" in printed("headwatch/RUN")


def test_cross_attention_is_left_out_by_name(folder: Path) -> None:
    (folder / "users_decoder.py").write_text(
        "import torch\n"
        "def build():\n"
        "    return torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(16, 2, batch_first=True), 1)\n"
    )
    assert "left out: layers.0.multihead_attn" in printed("users_decoder:build")


@pytest.mark.parametrize("name", ["users_models:nothing", "no_such_module:build"])
def test_name_that_is_not_there(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no such function"):
        printed(name)


def test_function_that_makes_no_model(folder: Path) -> None:
    with pytest.raises(ValueError, match="returns a model"):
        printed("users_models:number")


def test_no_attention_advises_what_this_command_takes(folder: Path) -> None:
    (folder / "users_linear.py").write_text(
        "import torch\n"
        "def build():\n"
        "    return torch.nn.Linear(3, 3)\n"
        "def build_with_batch():\n"
        "    return build(), torch.randn(4, 3, 3)\n"
    )
    for name in ("users_linear:build", "users_linear:build_with_batch"):
        with pytest.raises(NoAttentionError, match=rf"What to do: let {name} return \(model, batch\)") as raised:
            printed(name)
        assert "probe_fn" not in str(raised.value)
        assert "heads=[" not in str(raised.value)


def test_modules_of_one_head_each_are_said_to_count_as_layers(folder: Path) -> None:
    heads = {f"sa.heads.{i}.{name}.weight": torch.randn(4, 16) for i in range(4) for name in ("key", "query", "value")}
    torch.save(heads, "lecture.pt")
    note = "each of these 4 modules holds one head and counts as a layer of its own"
    assert note in printed("lecture.pt", "--n-heads", "1")
    assert note not in printed("users_models:build")
