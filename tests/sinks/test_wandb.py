"""The W&B sink in an offline run, read back from W&B's own file."""

from __future__ import annotations

import json
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from headwatch.metrics import HEADLINE_KEYS, SIGNATURE_HEADLINE
from headwatch.notices import HeadwatchWarning, Notices
from headwatch.sinks import pictures
from headwatch.sinks.artifact import ARTIFACT_TYPE, artifact_name, store_files
from headwatch.sinks.row import Row
from headwatch.sinks.run_table import run_table
from headwatch.sinks.store import RunStore
from headwatch.sinks.trails import Trails, split_steps
from headwatch.sinks.wandb import WandbSink, upload_store, wandb_run_of
from headwatch.snapshot import Snapshot
from standin.generators import generators
from standin.offline import history, read_offline, summary
from standin.png import png
from standin.rows import make_rows, set_column
from synthetic import make_profile_table

wandb = pytest.importorskip("wandb")

pytestmark = [pytest.mark.timeout(90), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PICTURE = "headwatch/simplex.path"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="p", mode="offline", dir=tmp_path, settings=wandb.Settings(x_disable_stats=True))
    yield run
    run.finish()


def draw_quickly(monkeypatch):
    """A picture that takes no time: the pictures' own tests look at them."""
    monkeypatch.setattr("headwatch.figures.composite.composite_png", lambda table, trails, **_: png(len(trails)))


def test_offline_run_equals_the_store_number_by_number(run, tmp_path, monkeypatch):
    draw_quickly(monkeypatch)
    store = RunStore(tmp_path / "store", {"id": run.id})
    sink = WandbSink(run)
    rows = list(make_rows())
    for row in rows:
        for name, snapshot in row.snapshots.items():
            store.write(snapshot, name)
        sink.log(row)
    sink.close(rows[-1])
    store.close(status="finished")
    sink.upload(store.path)
    run.finish()

    records = read_offline(tmp_path)
    logged = history(records)
    assert [row["headwatch/global_step"] for row in logged] == [row.step for row in rows]
    assert [row["trainer/global_step"] for row in logged] == [row.x for row in rows]
    compared = 0
    for row in logged:
        part = f"step={row['headwatch/global_step']:09}.parquet"
        for kind, keys in (("profile", HEADLINE_KEYS), ("signature", SIGNATURE_HEADLINE)):
            for record in pq.read_table(store.path / kind / part).to_pylist():
                name = f"L{record['layer']:02}.H{record['head']:02}"
                assert {key: row[f"heads/{key}/{name}"] for key in keys} == {key: record[key] for key in keys}
                compared += len(keys)
    assert compared == len(rows) * 6 * 10
    _check_end(records, rows, store)


def _check_end(records, rows, store):
    table = rows[-1].snapshots["profile"].heads
    final = summary(records)
    assert final["headwatch/median_drift"] == pytest.approx(np.median(table["drift"].to_pylist()))
    assert final["headwatch/share_beyond_null"] == pytest.approx(np.mean(table["beyond_null"].to_pylist()))
    assert final["headwatch/heads_rank_one"] == sum(rank < 2 for rank in table["stable_rank"].to_pylist())
    assert final["headwatch/heads"] == 6
    assert final["headwatch/overhead"] == 0.006
    (artifact,) = [record["artifact"] for record in records if record["type"] == "artifact"]
    assert (artifact["name"], artifact["type"]) == (artifact_name(store.info["id"]), ARTIFACT_TYPE)
    sent = {entry["path"] for entry in artifact["manifest"]["contents"]}
    assert sent == {"run.json"} | {
        f"{kind}/step={row.step:09}.parquet" for row in rows for kind in ("profile", "signature", "signature_summary")
    }


def test_pictures_keep_their_bytes_and_get_the_trail(run, tmp_path, monkeypatch):
    draw_quickly(monkeypatch)
    sink = WandbSink(run)
    for row in make_rows(steps=(0, 1, 2)):
        sink.log(row)
    run.finish()
    paths = [row[PICTURE] for row in history(read_offline(tmp_path))]
    (files,) = tmp_path.rglob("files")
    assert [(files / path).read_bytes() for path in paths] == [png(0), png(1), png(2)]


def test_the_real_picture_is_drawn_and_nothing_draws_from_the_global_generators(run, tmp_path):
    sink = WandbSink(run)
    rows = list(make_rows(steps=(0, 1)))
    before = generators()
    for row in rows:
        sink.log(row)
    sink.close(rows[-1])
    (tmp_path / "run.json").write_text("{}")
    sink.upload(tmp_path)
    assert generators() == before
    run.finish()
    assert generators() == before
    images = list(tmp_path.rglob("simplex_*.png"))
    assert len(images) == 2
    assert all(Image.open(image).size[0] >= 1000 for image in images)


def test_two_threads_never_mix_rows(run, tmp_path, monkeypatch):
    draw_quickly(monkeypatch)
    sink = WandbSink(run)
    rows = list(make_rows(steps=tuple(range(60))))
    worker = threading.Thread(target=lambda: [sink.log(row) for row in rows])
    worker.start()
    for i in range(300):
        run.log({"train/loss": i, "trainer/global_step": 1_000_000 + i})
    worker.join()
    run.finish()
    logged = history(read_offline(tmp_path))
    users = [row for row in logged if "train/loss" in row]
    ours = [row for row in logged if "headwatch/global_step" in row]
    assert users == [{"train/loss": i, "trainer/global_step": 1_000_000 + i} for i in range(300)]
    assert [row["trainer/global_step"] for row in ours] == [row.x for row in rows]
    assert len(logged) == 360
    assert all(PICTURE in row and "heads/n_eff/L01.H02" in row for row in ours)


def test_the_run_stays_open(run):
    sink = WandbSink(run, picture=False)
    rows = list(make_rows(steps=(0, 1)))
    sink.log(rows[0])
    sink.close(rows[1])
    run.log({"still": 1})  # raises UsageError on a finished run


def test_a_drawing_that_fails_costs_the_picture_alone(monkeypatch):
    monkeypatch.setattr("headwatch.figures.composite.composite_png", _broken)
    run = _FakeRun()
    notices = Notices(aloud=False)
    sink = WandbSink(run, say=notices.say)
    for row in make_rows(steps=tuple(range(6))):
        sink.log(row)
    assert [row["headwatch/global_step"] for row in run.rows] == list(range(6))
    assert ["no more pictures" in message for message in notices.messages] == [False, True]
    assert "ValueError: no ink" in notices.messages[0]


def _broken(*_, **__):
    raise ValueError("no ink")


def test_a_full_disk_costs_the_picture_alone(monkeypatch):
    draw_quickly(monkeypatch)
    run = _FakeRun(media_error=OSError(28, "No space left on device"))
    with pytest.warns(HeadwatchWarning, match="No space left"):
        WandbSink(run).log(next(iter(make_rows())))
    assert len(run.rows) == 1
    assert "headwatch/simplex" not in run.rows[0]


def test_failures_of_w_and_b_are_raised_for_the_recorder_to_count(monkeypatch):
    draw_quickly(monkeypatch)
    run = _FakeRun(error=ConnectionResetError("Connection lost"))
    with pytest.raises(ConnectionResetError):
        WandbSink(run).log(next(iter(make_rows())))


def test_a_part_of_the_heads_is_said_once():
    run = _FakeRun()
    notices = Notices(aloud=False)
    sink = WandbSink(run, picture=False, say=notices.say)
    for step in (0, 1):
        table = make_profile_table(32, 16, (step,))
        sink.log(Row(step, step, 0, {"profile": Snapshot("profile", step, table)}))
    assert len(notices.messages) == 1
    assert "64 of 512 heads" in notices.messages[0]
    assert run.rows[0].keys() == run.rows[1].keys()


def test_upload_happens_once_and_within_its_time(tmp_path):
    run = _FakeRun(hang=5.0)
    sink = WandbSink(run, picture=False)
    (tmp_path / "run.json").write_text(json.dumps({}))
    with pytest.raises(TimeoutError, match="within 0 s"):
        sink.upload(tmp_path, timeout=0.05)
    sink.upload(tmp_path)
    assert run.artifacts == []
    run.release.set()


def test_errors_of_the_upload_are_raised(tmp_path):
    with pytest.raises(AttributeError):
        upload_store(SimpleNamespace(id="x"), tmp_path)


def test_files_of_a_store(tmp_path):
    names = [
        "run.json",
        "profile/a.parquet",
        "budgets/b.npy",
        ".tmp/c.parquet",
        "superseded/profile/d.parquet",
        ".lock",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert {file.relative_to(tmp_path).as_posix() for file in store_files(tmp_path)} == set(names[:3])


def test_run_table_leaves_out_what_is_undefined():
    table = make_profile_table(1, 2, (0,))
    table = set_column(table, "drift", [None, None])
    table = set_column(table, "beyond_null", [None, None])
    values = run_table({"profile": Snapshot("profile", 0, table)}, None)
    assert set(values) == {"headwatch/heads", "headwatch/heads_rank_one"}
    assert run_table({}, None) == {}


def test_trails_keep_the_first_and_stay_bounded():
    trails = Trails(capacity=8)
    for i in range(100):
        trails.add(i)
        assert trails.tables[0] == 0
        assert trails.tables[-1] == i
        assert len(trails.tables) <= 8
    assert list(trails.tables) == sorted(trails.tables)
    assert max(np.diff(trails.tables)) < 50


def test_a_resumed_run_draws_the_trail_of_its_past(monkeypatch):
    draw_quickly(monkeypatch)
    before = make_profile_table(steps=(0, 1, 2))
    drawn = pictures.Pictures("t", before, lambda key, message: None).of(next(iter(make_rows(steps=(3, 4)))))
    assert drawn == {"headwatch/simplex": png(3)}


def test_drawing_stays_a_small_share_of_the_time_and_the_last_picture_comes(monkeypatch):
    now = [0.0]

    def takes_six_seconds(table, trails, **_):
        now[0] += 6
        return png(len(trails))

    monkeypatch.setattr("headwatch.figures.composite.composite_png", takes_six_seconds)
    draws = pictures.Pictures("t", None, lambda key, message: None, clock=lambda: now[0])
    drawn = []
    for row in make_rows(steps=range(8)):
        drawn.append(draws.of(row))
        now[0] += 100
    assert [bool(each) for each in drawn] == [True, True, False, False, True, False, False, True], (
        "12 s of drawing are 10 and half a percent of 400 s"
    )
    assert drawn[-1] == {"headwatch/simplex": png(7)}, "the trail has the steps that were not drawn"
    now[0] += 2000  # 24 s of drawing are 10 and half a percent of 2,800 s
    later = draws.of(next(iter(make_rows(steps=(8, 9)))))
    assert later == {"headwatch/simplex": png(8)}


def test_a_long_history_is_thinned_and_keeps_its_ends():
    parts = split_steps(make_profile_table(1, 2, steps=range(100)), most=10)
    steps = [table["step"][0].as_py() for table in parts]
    assert (steps[0], steps[-1], len(steps)) == (0, 99, 10)
    assert set(np.diff(steps)) == {11}
    assert all(table.num_rows == 2 for table in parts)
    assert split_steps(make_profile_table(1, 2, steps=(0,)).slice(0, 0)) == []


def test_wandb_loggers_are_known_by_name_and_dummies_are_not_runs(run):
    class WandbLogger:
        experiment = run

    class Mine(WandbLogger):
        pass

    class OtherRank(WandbLogger):
        experiment = SimpleNamespace(id=lambda *_: None)

    class TensorBoardLogger:
        experiment = run

    assert wandb_run_of(Mine()) is run
    assert wandb_run_of(OtherRank()) is None
    assert wandb_run_of(TensorBoardLogger()) is None


def test_a_disabled_run_gets_nothing():
    class WandbLogger:
        experiment = wandb.init(mode="disabled")

    assert wandb_run_of(WandbLogger()) is None


@pytest.mark.parametrize("package", ["pytorch_lightning", "lightning.pytorch"])
def test_loggers_of_both_lightnings(package, run, tmp_path):
    loggers = pytest.importorskip(f"{package}.loggers")
    dummy = pytest.importorskip(f"{package}.loggers.logger").DummyLogger
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert wandb_run_of(loggers.WandbLogger(experiment=run)) is run
    assert wandb_run_of(dummy()) is None
    assert wandb_run_of(loggers.CSVLogger(tmp_path)) is None


class _FakeRun:
    """Just enough of a run to fail on demand."""

    name = id = "fake"

    def __init__(self, error=None, media_error=None, hang=0.0):
        self.rows, self.artifacts, self.release = [], [], threading.Event()
        self._error, self._media_error, self._hang = error, media_error, hang

    def log(self, values):
        if self._error:
            raise self._error
        if self._media_error and "headwatch/simplex" in values:
            raise self._media_error
        self.rows.append(values)

    def log_artifact(self, artifact):
        self.release.wait(self._hang)
