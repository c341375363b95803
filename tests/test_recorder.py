"""The recorder: one row per step from all monitors, failures said once, training never disturbed."""

import shutil
import threading

import numpy as np
import pytest

from headwatch.notices import HeadwatchWarning
from headwatch.price import Price
from headwatch.recorder import Moment, Recorder
from headwatch.run import load
from headwatch.schedule import Schedule
from headwatch.sinks.store import RunStore
from headwatch.snapshot import Snapshot, heads_table
from headwatch.watcher import Watcher


class FakeMeasure:
    """Gives one head whose ``a`` (or ``n_eff``) is the step; breaks where it is told to."""

    def __init__(self, kind="profile", breaks_at=(), breaks_later_at=()):
        self.kind = kind
        self.breaks_at, self.breaks_later_at = set(breaks_at), set(breaks_later_at)
        self.threads = set()

    def take(self, step):
        if step in self.breaks_at:
            raise RuntimeError("no weights")
        return self.finish

    def finish(self, step):
        self.threads.add(threading.current_thread().name)
        if step in self.breaks_later_at:
            raise ArithmeticError("no numbers")
        column = "a" if self.kind == "profile" else "n_eff"
        columns = {"step": [step], "layer": [0], "head": [0], "displacement": [0], column: [float(step)]}
        return Snapshot(self.kind, step, heads_table(self.kind, columns))

    def restore(self, table):
        self.restored = table


class Sink:
    name = "a sink"

    def __init__(self, fails=0):
        self.rows, self.fails, self.closed = [], fails, None

    def log(self, row):
        if self.fails:
            self.fails -= 1
            raise ConnectionResetError("gone")
        self.rows.append(row)

    def close(self, row):
        self.closed = row


def moment(step, **more):
    return Moment(step, step - 1, 0, 100.0 + step, 0.5, **more)


def build(tmp_path, measures, sinks=(), background=True, **options):
    store = RunStore(tmp_path / "r", {"schema_version": 1, "id": "r"})
    recorder = Recorder(store, sinks, background=background)
    watchers = [
        Watcher(name, measure, Schedule(every, ()), recorder, Price(1.0), **options)
        for name, (measure, every) in measures.items()
    ]
    return recorder, watchers


def observe_all(recorder, watchers, steps):
    for step in steps:
        for watcher in watchers:
            watcher.observe(moment(step))
    recorder.close("finished")


@pytest.mark.parametrize("background", [True, False])
def test_both_monitors_share_a_row_where_both_are_due(tmp_path, background):
    sink = Sink()
    measures = {"profile": (FakeMeasure(), 2), "signature": (FakeMeasure("signature"), 3)}
    recorder, watchers = build(tmp_path, measures, [sink], background)
    for step in range(13):
        for watcher in watchers:
            watcher.observe(moment(step))
    recorder.close("finished")
    assert {row.step: set(row.snapshots) for row in sink.rows} == {
        0: {"profile", "signature"},
        2: {"profile"},
        3: {"signature"},
        4: {"profile"},
        6: {"profile", "signature"},
        8: {"profile"},
        9: {"signature"},
        10: {"profile"},
        12: {"profile", "signature"},
    }
    assert [row.x for row in sink.rows] == [row.step - 1 for row in sink.rows]
    assert sink.closed is sink.rows[-1]
    run = load(tmp_path / "r")
    assert run.steps("profile") == [0, 2, 4, 6, 8, 10, 12]
    assert run.signature["n_eff"].to_pylist() == [0.0, 3.0, 6.0, 9.0, 12.0]
    assert set(run.profile["loss"].to_pylist()) == {0.5}
    assert run.info["status"] == "finished"


def test_numbers_are_made_off_the_training_thread(tmp_path):
    measure = FakeMeasure()
    recorder, [watcher] = build(tmp_path, {"profile": (measure, 1)})
    watcher.observe(moment(1))
    recorder.close("finished")
    assert measure.threads == {"headwatch"}


@pytest.mark.parametrize("where", ["breaks_at", "breaks_later_at"])
def test_a_failure_is_said_once_and_the_rest_goes_on(tmp_path, where):
    sink = Sink()
    measures = {
        "profile": (FakeMeasure(**{where: {2}}), 1),
        "signature": (FakeMeasure("signature"), 1),
    }
    recorder, watchers = build(tmp_path, measures, [sink])
    with pytest.warns(HeadwatchWarning, match=r"the profile monitor failed at step 2: .*no (weights|numbers)"):
        observe_all(recorder, watchers, range(1, 4))
    assert {row.step: set(row.snapshots) for row in sink.rows} == {
        1: {"profile", "signature"},
        2: {"signature"},
        3: {"profile", "signature"},
    }
    assert len(load(tmp_path / "r").info["messages"]) == 1


@pytest.mark.filterwarnings("ignore::headwatch.notices.HeadwatchWarning")
def test_three_failures_in_a_row_switch_a_monitor_off_and_the_run_says_so(tmp_path):
    recorder, [watcher] = build(tmp_path, {"profile": (FakeMeasure(breaks_at={2, 4, 5, 6}), 1)}, background=False)
    for step in range(1, 9):
        watcher.observe(moment(step))
    recorder.close("finished")
    run = load(tmp_path / "r")
    assert run.steps() == [1, 3]
    assert "failed 3 times in a row, last at step 6 (RuntimeError: no weights), and is off" in run.info["messages"][-1]


def test_raise_is_for_tests(tmp_path):
    recorder, [watcher] = build(tmp_path, {"profile": (FakeMeasure(breaks_at={1}), 1)}, on_error="raise")
    with pytest.raises(RuntimeError, match="no weights"), pytest.warns(HeadwatchWarning):
        watcher.observe(moment(1))
    recorder.close("failed")


@pytest.mark.filterwarnings("ignore::headwatch.notices.HeadwatchWarning")
@pytest.mark.parametrize(("fails", "kept"), [(2, 6), (3, 0)])
def test_a_sink_that_fails_three_times_in_a_row_is_left_off(tmp_path, fails, kept):
    broken, sound = Sink(fails), Sink()
    recorder, [watcher] = build(tmp_path, {"profile": (FakeMeasure(), 1)}, [broken, sound])
    for step in range(1, 9):
        watcher.observe(moment(step))
    recorder.close("finished")
    assert len(broken.rows) == kept
    assert len(sound.rows) == 8
    assert load(tmp_path / "r").steps() == list(range(1, 9))


def test_a_store_that_cannot_be_written_costs_only_the_store(tmp_path, monkeypatch):
    sink = Sink()
    recorder, [watcher] = build(tmp_path, {"profile": (FakeMeasure(), 1)}, [sink], background=False)
    full = {2, 3, 4, 5}
    write = recorder.store.write_table

    def disk_full(folder, step, table):
        if step in full:
            raise OSError(28, "No space left on device")
        write(folder, step, table)

    monkeypatch.setattr(recorder.store, "write_table", disk_full)
    with pytest.warns(HeadwatchWarning, match=r"could not be written at step 2: .*No space left") as said:
        observe_all(recorder, [watcher], range(1, 8))
    assert len(said) == 1
    assert len(sink.rows) == 7
    assert load(tmp_path / "r").steps() == [1, 6, 7]  # written again as soon as there is room
    assert not list((tmp_path / "r").glob(".tmp/*"))


def test_a_store_deleted_under_the_run_costs_what_was_in_it(tmp_path):
    recorder, [watcher] = build(tmp_path, {"profile": (FakeMeasure(), 1)}, background=False)
    for step in range(1, 6):
        if step == 4:
            shutil.rmtree(tmp_path / "r")
            with pytest.warns(HeadwatchWarning, match="had vanished by step 4 and was begun anew"):
                watcher.observe(moment(step))
        else:
            watcher.observe(moment(step))
    recorder.close("finished")
    assert load(tmp_path / "r").steps() == [4, 5]


def test_flags_of_the_moment_reach_every_head(tmp_path):
    recorder, [watcher] = build(tmp_path, {"profile": (FakeMeasure(), 1)})
    watcher.observe(moment(1, final=True, flags=("averaged_weights:EMA",)))
    recorder.close("finished")
    assert load(tmp_path / "r").profile["flags"].to_pylist() == ["averaged_weights:EMA"]


def test_resume_restores_baselines_and_knows_what_is_stored(tmp_path):
    recorder, [watcher] = build(tmp_path, {"profile": (FakeMeasure(), 5)})
    for step in range(12):
        watcher.observe(moment(step))
    recorder.close("failed")
    measure = FakeMeasure()
    recorder, [watcher] = build(tmp_path, {"profile": (measure, 5)})
    recorder.store.supersede_after(7)
    watcher.resume(7, [tmp_path / "r"])
    assert measure.restored["step"].to_pylist() == [0, 5]
    taken = [step for step in range(7, 17) if watcher.due(step) and watcher.observe(moment(step)) is None]
    recorder.close("finished")
    assert taken == [10, 15]
    np.testing.assert_array_equal(load(tmp_path / "r").steps(), [0, 5, 10, 15])


class Asks(FakeMeasure):
    """Remembers which steps of another measure the worker has finished when it takes its own."""

    def __init__(self, other):
        super().__init__("signature")
        self.other, self.seen = other, []

    def take(self, step):
        self.seen.append(list(self.other.finished))
        return super().take(step)


class Remembers(FakeMeasure):
    def __init__(self):
        super().__init__()
        self.finished = []

    def finish(self, step):
        self.finished.append(step)
        return super().finish(step)


def test_the_worker_starts_when_the_last_monitor_has_measured(tmp_path):
    profile = Remembers()
    signature = Asks(profile)
    recorder, watchers = build(tmp_path, {"profile": (profile, 10), "signature": (signature, 20)}, background=False)
    observe_all(recorder, watchers, [0, 10, 20])
    assert signature.seen == [[], [0, 10]]  # never its own step
    assert profile.finished == [0, 10, 20]
    assert load(tmp_path / "r").steps("signature") == [0, 20]


def test_what_waits_for_a_monitor_that_breaks_is_written(tmp_path):
    recorder, watchers = build(
        tmp_path, {"profile": (FakeMeasure(), 10), "signature": (FakeMeasure("signature", breaks_at=[0]), 10)}
    )
    with pytest.warns(HeadwatchWarning, match="signature monitor failed at step 0"):
        observe_all(recorder, watchers, [0])
    assert load(tmp_path / "r").steps("profile") == [0]


@pytest.mark.parametrize("end", ["flush", "close"])
def test_what_waits_for_a_monitor_that_never_comes_is_written(tmp_path, end):
    recorder, (profile, _) = build(
        tmp_path, {"profile": (FakeMeasure(), 10), "signature": (FakeMeasure("signature"), 10)}
    )
    profile.observe(moment(0))
    recorder.flush() if end == "flush" else recorder.close("failed")
    assert load(tmp_path / "r").steps("profile") == [0]
    recorder.close("failed")


class Costs(Price):
    """A price that is known."""

    def __init__(self, overhead):
        super().__init__(1.0)
        self.known = overhead

    @property
    def overhead(self):
        return self.known


def test_overhead_is_that_of_all_monitors_at_every_step(tmp_path):
    sink = Sink()
    recorder, watchers = build(
        tmp_path, {"profile": (FakeMeasure(), 10), "signature": (FakeMeasure("signature"), 20)}, [sink]
    )
    for watcher, share in zip(watchers, (0.125, 0.25), strict=True):
        watcher.price = Costs(share)
    observe_all(recorder, watchers, [0, 10, 20])
    assert [row.run_scalars["headwatch/overhead"] for row in sink.rows] == [0.375] * 3
    assert load(tmp_path / "r").profile["overhead"].to_pylist() == [0.375] * 3
