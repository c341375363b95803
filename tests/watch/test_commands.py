"""``headwatch report`` and ``headwatch watch`` from the command line."""

import typer
from typer.testing import CliRunner

from headwatch.commands import report, watch
from synthetic import make_run


def app() -> typer.Typer:
    made = typer.Typer()
    report.register(made)
    watch.register(made)
    return made


def test_report_prints_where_the_page_lies(tmp_path):
    run = make_run(tmp_path / "r", signatures=False)
    outcome = CliRunner().invoke(app(), ["report", str(tmp_path), "-o", str(tmp_path / "page.html")])
    assert outcome.exit_code == 0
    assert f"{tmp_path / 'page.html'} (2." in outcome.output.replace("\n", "")
    assert not (run / "report.html").exists()


def test_a_missing_run_is_an_error_with_words(tmp_path):
    outcome = CliRunner().invoke(app(), ["report", str(tmp_path / "none")])
    assert outcome.exit_code != 0
    assert "no run at" in str(outcome.exception)


def test_watch_names_its_address_and_ends_on_interrupt(tmp_path, monkeypatch):
    from headwatch.watch import WatchServer

    def interrupted(server: WatchServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WatchServer, "serve_forever", interrupted)
    outcome = CliRunner().invoke(app(), ["watch", str(tmp_path)])
    assert outcome.exit_code == 0
    assert "http://127.0.0.1:" in outcome.output
    assert "Ended." in outcome.output
