"""The W&B sink against a stand-in server: rows, pictures and files there equal the rows and the store here."""

from __future__ import annotations

import os
import signal
import time

import pyarrow as pa
import pytest

from headwatch.alerts import Alert
from headwatch.comparison.artifact import download_store
from headwatch.run import load
from headwatch.sinks.artifact import ARTIFACT_TYPE, artifact_name
from headwatch.sinks.scalars import scalars
from headwatch.sinks.store import RunStore
from headwatch.sinks.wandb import WandbSink
from standin.generators import generators
from standin.offline import history, read_offline
from standin.png import png
from standin.processes import HAS_PROC, children
from standin.rows import make_rows
from standin.server import ENTITY

pytestmark = [pytest.mark.timeout(90), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """PNG bytes in order of drawing, made quickly."""
    made = []

    def draw(table, trails, **_):
        made.append(png(len(made)))
        return made[-1]

    monkeypatch.setattr("headwatch.figures.composite.composite_png", draw)
    return made


def assert_rows(stored, rows, pictures):
    logged = [{key: value for key, value in row.items() if key != "headwatch/simplex"} for row in stored.history]
    assert logged == [scalars(row) for row in rows]
    paths = [row["headwatch/simplex"]["path"] for row in stored.history]
    assert [stored.files[path] for path in paths] == pictures


def assert_files(server, run_id, store):
    """The artifact on the server holds the files of the store, byte by byte."""
    (artifact,) = server.artifacts.values()
    assert artifact.committed
    assert (artifact.name, artifact.type, artifact.run) == (artifact_name(run_id), ARTIFACT_TYPE, run_id)
    assert server.artifact_files(artifact) == contents(store)


def contents(folder):
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*.*") if file.is_file()}


def write_store(path, rows):
    store = RunStore(path, {"id": "x"})
    for row in rows:
        for name, snapshot in row.snapshots.items():
            store.write(snapshot, name)
    store.close(status="finished")
    return store.path


def test_rows_pictures_summary_files_and_alerts_arrive(server, start, tmp_path, drawn):
    run = start()
    sink = WandbSink(run)
    rows = list(make_rows())
    for row in rows:
        sink.log(row)
    sink.alert(Alert("rank_one", 4, ("L00.H01",), "Head L00.H01: rank-one collapse (step 4)", "text"))
    sink.close(rows[-1])
    store = write_store(tmp_path / "store", rows)
    sink.upload(store)
    run.finish()
    stored = server.run(run.id)
    assert_rows(stored, rows, drawn)
    assert_files(server, run.id, store)
    assert stored.alerts == [{"title": "Head L00.H01: rank-one collapse (step 4)", "text": "text", "level": "WARN"}]
    drift = rows[-1].snapshots["profile"].heads["drift"].to_pylist()
    assert stored.summary["headwatch/median_drift"] == pytest.approx(sum(sorted(drift)[2:4]) / 2)
    assert (stored.complete, stored.exit_code) == (True, 0)


def test_the_store_comes_back_from_the_artifact(server, start, tmp_path):
    rows = list(make_rows())
    store = RunStore(tmp_path / "store", {"id": "x", "schema_version": 1})
    for row in rows:
        store.write(row.snapshots["profile"])
    store.close(status="finished")
    run = start()
    WandbSink(run, picture=False).upload(store.path)
    run.finish()
    there = download_store(f"wandb:{ENTITY}/p/{run.id}", tmp_path / "there")
    assert contents(there) == contents(store.path)
    assert load(there).steps("profile") == [row.step for row in rows]


def test_a_resumed_run_goes_on_where_it_was(server, start, drawn):
    rows = list(make_rows())
    first = start()
    for row in rows[:3]:
        WandbSink(first).log(row)
    first.finish()
    second = start(id=first.id, resume="must")
    sink = WandbSink(second, history=pa.concat_tables(row.snapshots["profile"].heads for row in rows[:3]))
    for row in rows[3:]:
        sink.log(row)
    second.finish()
    assert_rows(server.run(first.id), rows, drawn)


def test_errors_of_the_server_are_ridden_out(server, start, tmp_path, drawn):
    run = start()
    before = generators()
    for path in ("/files/", "/graphql", "/run-file/", "/artifact-file/"):
        server.fail(path, 429)
        server.fail(path, 500)
    sink = WandbSink(run)
    rows = list(make_rows())
    for row in rows:
        sink.log(row)
    store = write_store(tmp_path / "store", rows)
    sink.upload(store)
    run.finish()
    assert generators() == before
    assert sorted(status for *_, status in server.requests if status != 200) == [429] * 4 + [500] * 4
    assert_rows(server.run(run.id), rows, drawn)
    assert_files(server, run.id, store)


def test_a_network_that_comes_back(server, start, tmp_path, drawn):
    run = start()
    sink = WandbSink(run)
    rows = list(make_rows())
    sink.log(rows[0])
    assert server.wait_for(lambda: len(server.run(run.id).history) == 1)
    server.down()
    for row in rows[1:]:
        sink.log(row)
    sink.close(rows[-1])
    server.up()
    store = write_store(tmp_path / "store", rows)
    sink.upload(store)
    run.finish()
    assert_rows(server.run(run.id), rows, drawn)
    assert_files(server, run.id, store)


def test_a_network_that_stays_away(server, start, tmp_path):
    run = start(finish_timeout=3.0)
    sink = WandbSink(run)
    rows = list(make_rows())
    sink.log(rows[0])
    server.down()
    for row in rows[1:]:
        sink.log(row)
    sink.close(rows[-1])
    began = time.monotonic()
    store = write_store(tmp_path / "store", rows)
    with pytest.raises(TimeoutError, match="within 2 s"):
        sink.upload(store, timeout=2.0)
    assert time.monotonic() - began < 10
    run.finish()
    on_disk = history(read_offline(tmp_path))
    assert [row["headwatch/global_step"] for row in on_disk] == [row.step for row in rows]


@pytest.mark.skipif(not HAS_PROC, reason="finds wandb-core through /proc")
def test_a_killed_wandb_core_raises_for_the_breaker_to_count(server, start):
    run = start()
    sink = WandbSink(run)
    rows = list(make_rows())
    sink.log(rows[0])
    for pid in children("wandb-core"):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionError):
        _log_until_it_fails(sink, rows[1])


def _log_until_it_fails(sink, row):
    for _ in range(50):  # the socket may take a while to notice
        sink.log(row)
        time.sleep(0.1)
