"""README's first promise is that its code runs; here it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from headwatch import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty directory, and W&B without an account."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    return tmp_path


def small_model() -> object:
    """A model as the reader may have it: it brings its data and stops after three steps."""
    from headwatch.demo.model import TextDecoder

    class Small(TextDecoder):
        def train_dataloader(self) -> DataLoader:
            return DataLoader(torch.randint(256, (8, 17)), batch_size=2)

        def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
            self.trainer.should_stop = self.global_step >= 3

        def validation_step(self, batch: object, batch_idx: int) -> None: ...

    return Small(n_layers=2, n_heads=2, d_model=16, context=16)


def test_first_example_has_six_lines() -> None:
    assert len([line for line in blocks("python")[0].splitlines() if line]) <= 6


def test_first_example_trains_and_leaves_a_store(offline: Path) -> None:
    import wandb

    exec(compile(blocks("python")[0], "README.md", "exec"), {"model": small_model()})
    wandb.finish()
    (run,) = offline.rglob("run.json")
    assert len(list(run.parent.glob("profile/*.parquet"))) >= 1


def test_plain_loop_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pandas")
    exec(compile(blocks("python")[1], "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "[0, 1, 2, 4, 8]" in printed
    assert "st.rank" in printed


def test_every_python_block_is_run_here() -> None:
    assert len(blocks("python")) == 2


def test_yaml_builds_the_callback(offline: Path) -> None:
    pytest.importorskip("jsonargparse")
    from pytorch_lightning.cli import LightningCLI

    from headwatch.callbacks import QKProfileMonitor
    from headwatch.demo.model import TextDecoder

    (yaml,) = blocks("yaml")
    Path("config.yaml").write_text(yaml)
    built = LightningCLI(TextDecoder, run=False, save_config_callback=None, args=["--config", "config.yaml"])
    (monitor,) = [callback for callback in built.trainer.callbacks if isinstance(callback, QKProfileMonitor)]
    assert (monitor.every_n_train_steps, list(monitor.include)) == (50, ["L00.*", "L03.*"])


def test_table_names_the_commands_there_are() -> None:
    named = re.findall(r"^\| `headwatch (\w+)", README, flags=re.MULTILINE)
    assert sorted(named) == sorted(cli.COMMANDS)


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_picture_is_small() -> None:
    assert (ROOT / "docs/images/demo.png").stat().st_size < 400_000


def test_first_screen_is_short() -> None:
    assert README.index("## What you see") < 1700
