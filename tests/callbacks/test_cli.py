"""LightningCLI: the README's YAML trains, every argument can be said in a file, mistakes are said as such."""

import re
from pathlib import Path

import pytest
import yaml
from tiny import Tiny, batches

import headwatch
from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor

pytest.importorskip("jsonargparse", reason="LightningCLI needs jsonargparse")
from pytorch_lightning import LightningDataModule
from pytorch_lightning.cli import LightningCLI

README = Path(__file__).resolve().parents[2] / "README.md"
QUIET = {
    "max_steps": 6,
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning and jsonargparse warn of each other


class Data(LightningDataModule):
    def train_dataloader(self):
        return batches()

    def val_dataloader(self):
        return batches(n=8)


class FourLayers(Tiny):
    def __init__(self, n_layers=4, lr=0.05):
        super().__init__(n_layers=n_layers, lr=lr)


def readme_yaml():
    """The README's YAML blocks, joined into one document."""
    blocks = re.findall(r"^```ya?ml\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert blocks
    return blocks


def command(root, config, *more, model=FourLayers, run=True):
    """``python main.py fit --config config.yaml``."""
    config["trainer"] = {**QUIET, "default_root_dir": str(root), **config["trainer"]}
    (root / "config.yaml").write_text(yaml.safe_dump(config))
    first = ["fit"] if run else []
    args = [*first, "--config", str(root / "config.yaml"), *more]
    return LightningCLI(model, Data, args=args, run=run, save_config_callback=None)


def callback(kind, /, **settings):
    return {"class_path": f"headwatch.callbacks.{kind}", "init_args": settings}


@pytest.mark.parametrize("block", readme_yaml(), ids=lambda block: block.splitlines()[0])
def test_the_readme_trains(tmp_path, block):
    cli = command(tmp_path, yaml.safe_load(block))
    [monitor] = [c for c in cli.trainer.callbacks if isinstance(c, QKProfileMonitor)]
    said = yaml.safe_load(block)["trainer"]["callbacks"][0]["init_args"]
    assert {key: getattr(monitor, key) for key in said} == {
        key: tuple(value) if isinstance(value, list) else value for key, value in said.items()
    }
    run = headwatch.load(tmp_path)
    assert run.info["status"] == "finished"
    assert run.info["settings"]["profile"]["include"] == said["include"]
    assert run.steps() == [0, 1, 2, 4, 6]
    watched = {f"L{layer:02d}" for layer in run.to_pandas().layer}
    assert watched == {pattern[:3] for pattern in said["include"]}


def test_every_plain_argument_of_both_can_be_said_in_a_file(tmp_path):
    common = {
        "every_n_train_steps": 3,
        "early_steps": [1],
        "exclude": ["L01.H01"],
        "prove": False,
        "log_heads": False,
        "max_overhead": 0.5,
        "on_error": "raise",
    }
    profile = callback(
        "QKProfileMonitor",
        **common,
        name="more",
        biases=True,
        displacements=[0],
        metrics=["stable_rank"],
        norm_gain=True,
    )
    signature = callback("MarginalAttentionMonitor", **common, probe=1, special_tokens=[0, 2], query_stride=2)
    command(tmp_path, {"trainer": {"callbacks": [profile, signature]}}, model=Tiny)
    run = headwatch.load(tmp_path)
    assert run.monitors == ["profile-more", "signature"]
    assert run.steps("profile-more") == run.steps("signature") == [0, 1, 3, 6]
    assert run.info["settings"]["profile-more"]["biases"]
    assert run.info["settings"]["signature"]["special_tokens"] == [0, 2]
    heads = run.to_pandas("signature")
    assert set(zip(heads.layer, heads["head"], strict=True)) == {(0, 0), (0, 1), (1, 0)}


def test_arguments_can_be_said_on_the_command_line(tmp_path):
    more = ["--trainer.callbacks+=headwatch.callbacks.QKProfileMonitor", "--trainer.callbacks.every_n_train_steps=2"]
    cli = command(tmp_path, {"trainer": {}}, *more, run=False)
    [monitor] = [c for c in cli.trainer.callbacks if isinstance(c, QKProfileMonitor)]
    assert monitor.every_n_train_steps == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"every_n_train_step": 5}, "every_n_train_step"),
        ({"every_n_train_steps": "often"}, "every_n_train_steps"),
        ({"every_n_train_steps": 0}, "every_n_train_steps: expected a whole number"),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_a_mistake_in_the_file_is_said(tmp_path, settings, words, capsys):
    with pytest.raises((SystemExit, ValueError)) as said:
        command(tmp_path, {"trainer": {"callbacks": [callback("QKProfileMonitor", **settings)]}}, run=False)
    assert words in capsys.readouterr().err + str(said.value)


def test_the_configuration_can_be_printed_and_read_again(tmp_path, capsys):
    monitors = [callback("QKProfileMonitor", every_n_train_steps=7), callback("MarginalAttentionMonitor", probe=1)]
    with pytest.raises(SystemExit):
        command(tmp_path, {"trainer": {"callbacks": monitors}}, "--print_config", run=False)
    printed = yaml.safe_load(capsys.readouterr().out)
    again = command(tmp_path, {"trainer": printed["trainer"]}, run=False)
    kinds = [type(c) for c in again.trainer.callbacks if isinstance(c, QKProfileMonitor | MarginalAttentionMonitor)]
    assert kinds == [QKProfileMonitor, MarginalAttentionMonitor]


def test_the_other_package(tmp_path):
    cli = pytest.importorskip("lightning.pytorch.cli", reason="lightning is not installed")
    from lightning.pytorch.demos.boring_classes import BoringModel

    config = {"trainer": {**QUIET, "callbacks": [callback("QKProfileMonitor", every_n_train_steps=9)]}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    args = ["--config", str(tmp_path / "config.yaml")]
    built = cli.LightningCLI(BoringModel, run=False, save_config_callback=None, args=args)
    assert [c.every_n_train_steps for c in built.trainer.callbacks if isinstance(c, QKProfileMonitor)] == [9]
