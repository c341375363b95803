"""The command line as a person meets it: help, version, and a mistake that ends in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwatch import __version__, cli


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def test_help_lists_every_command(runner: CliRunner) -> None:
    result = runner.invoke(cli.build_app(), ["--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    assert [name for name in cli.COMMANDS if name not in result.output] == []


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(runner: CliRunner, name: str) -> None:
    result = runner.invoke(cli.build_app(), [name, "--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert "Usage" in result.output


def test_version(runner: CliRunner) -> None:
    result = runner.invoke(cli.build_app(), ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, __version__)


def test_no_arguments_show_the_help(runner: CliRunner) -> None:
    assert "Usage" in runner.invoke(cli.build_app(), []).output


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from headwatch import cli; cli.build_app();"
        "heavy = {'torch', 'wandb', 'matplotlib', 'plotly', 'pytorch_lightning', 'pyarrow'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def app_raising(monkeypatch: pytest.MonkeyPatch, act: object) -> None:
    monkeypatch.setattr(cli, "build_app", lambda: act)


def test_our_own_error_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from headwatch.metrics import check_metrics

    app_raising(monkeypatch, lambda: check_metrics(["stabel_rank"], "profile"))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("headwatch: metrics: unknown profile metric 'stabel_rank'")
    assert "Traceback" not in text


def test_unreadable_file_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    app_raising(monkeypatch, lambda: Path("no-such-file").read_text())
    with pytest.raises(SystemExit):
        cli.main()
    assert "no-such-file" in capsys.readouterr().err


def test_error_of_a_library_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    app_raising(monkeypatch, lambda: int("x"))
    with pytest.raises(ValueError, match="invalid literal"):
        cli.main()


def test_mistake_on_the_real_command_line_exits_with_2(tmp_path: object) -> None:
    command = [sys.executable, "-c", "from headwatch.cli import main; main()", "report", "no-such-run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("headwatch: ")
    assert "no-such-run" in done.stderr
    assert "Traceback" not in done.stderr
