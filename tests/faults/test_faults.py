"""What can go wrong around a training: it ends as it would have, and what was stored reads."""

import contextlib
import itertools
import os
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from tiny import CONTEXT, VOCABULARY, Tiny, batches, fingerprint, trainer

import headwatch
from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor
from headwatch.info import new_run_id
from headwatch.notices import HeadwatchWarning
from headwatch.recorder import Moment, Recorder
from headwatch.sinks import files
from headwatch.sinks.lock import LockedError
from headwatch.sinks.store import RunStore
from headwatch.snapshot import SCHEMA_VERSION, Snapshot, heads_table

DOCUMENTS = torch.randint(0, VOCABULARY, (4, CONTEXT), generator=torch.Generator().manual_seed(1))
INFO = {"schema_version": SCHEMA_VERSION, "id": "r", "status": "running"}
FULL = "No space left on device"


def fit(root, monitors, model=None, ckpt=None, lr=0.05, **options):
    """One training; its fingerprint, with the module."""
    pl.seed_everything(3)
    model = model or Tiny(lr=lr)
    run = trainer(root, monitors, **options)
    run.fit(model, batches(), ckpt_path=ckpt)
    return fingerprint(model, run)


def both(**settings):
    return [
        QKProfileMonitor(5, early_steps=(1, 2), **settings),
        MarginalAttentionMonitor(DOCUMENTS, 4, early_steps=(1, 2), **settings),
    ]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The training without headwatch."""
    return fit(tmp_path_factory.mktemp("plain"), [])


def mounted(place, *options):
    """Mount a tiny file system of its own there, or skip."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip(f"may not mount a file system: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    mounted(place, "size=1m")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


def fill(disk):
    """Use up every byte."""
    with open(disk / "ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


class Fills(pl.Callback):
    """Fills the disk at one step and makes room at another."""

    def __init__(self, disk, full, room):
        self.disk, self.full, self.room = disk, full, room

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        [monitor] = [c for c in trainer.callbacks if isinstance(c, QKProfileMonitor)]
        if trainer.global_step in (self.full, self.room):
            monitor._session.recorder.flush()  # what is due before is on disk
        if trainer.global_step == self.full:
            fill(self.disk)
        if trainer.global_step == self.room:
            (self.disk / "ballast").unlink()


@pytest.mark.filterwarnings("ignore::headwatch.notices.HeadwatchWarning")
class TestFullDisk:
    def test_training_goes_on_and_the_store_again_when_there_is_room(self, small_disk, plain):
        assert fit(small_disk, [Fills(small_disk, 3, 7), *both()]) == plain
        run = headwatch.load(small_disk)
        assert run.steps("profile") == [0, 1, 2, 10, 12]  # 5 fell due while the disk was full
        assert run.steps("signature") == [0, 1, 2, 8, 12]
        assert run.info["status"] == "finished"
        [said] = [text for text in run.info["messages"] if FULL in text]
        assert "Free some space" in said
        assert not list(run.path.glob(".tmp"))

    def test_full_to_the_end(self, small_disk, plain):
        with pytest.warns(HeadwatchWarning, match="run.json does not say how the run ended"):
            assert fit(small_disk, [Fills(small_disk, 3, 99), *both()]) == plain
        run = headwatch.load(small_disk)
        assert run.steps("profile") == run.steps("signature") == [0, 1, 2]
        assert not run.is_live
        (small_disk / "ballast").unlink()
        RunStore(run.path, dict(run.info))  # nothing of ours is in the way of a resume

    def test_full_from_the_start_is_said_before_training(self, small_disk):
        fill(small_disk)
        model = Tiny()
        with pytest.raises(OSError, match=r"cannot write its store at .*No space left.*free some space"):
            fit(small_disk, [QKProfileMonitor()], model)
        assert model.losses == []


@pytest.mark.parametrize("place", ["/proc/headwatch", "a file", "read-only"])
def test_a_directory_that_cannot_be_written_is_said_before_training(tmp_path, place):
    if place == "read-only":
        mounted(tmp_path / "disk", "size=1m", "ro")
    (tmp_path / "file").write_text("")
    root = {"a file": str(tmp_path / "file"), "read-only": str(tmp_path / "disk")}.get(place, place)
    model = Tiny()
    try:
        with pytest.raises(OSError, match=r"cannot write its store at .*dirpath="):
            fit(tmp_path, [QKProfileMonitor(dirpath=root)], model)
    finally:
        if place == "read-only":
            subprocess.run(["umount", "-l", root], check=False)
    assert model.losses == []


class TestSlowDisk:
    def test_training_waits_for_no_more_than_the_queue(self, tmp_path, monkeypatch, plain):
        """While every file takes its time, training runs ahead of the store by what the queue holds."""
        ahead, written = [], []
        fsync, write = os.fsync, RunStore.write

        def slow(number):
            time.sleep(0.03)
            fsync(number)

        def noted(store, snapshot, name=None):
            write(store, snapshot, name)
            written.append(snapshot.step)

        class Ahead(pl.Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                ahead.append(trainer.global_step - max(written, default=-1))

        monkeypatch.setattr(files.os, "fsync", slow)
        monkeypatch.setattr(RunStore, "write", noted)
        monitor = QKProfileMonitor(1, early_steps=(), max_overhead=1.0, on_error="raise")
        assert fit(tmp_path, [monitor, Ahead()]) == plain
        assert headwatch.load(tmp_path).steps() == list(range(13))  # all are there in the end
        assert 1 < max(ahead) <= 4  # two wait, one is being written, one was just handed over

    def test_a_disk_that_stops_answering_stops_nothing(self, tmp_path, monkeypatch):
        """Training waits once, within bounds; a checkpoint and the end wait within bounds too."""
        gate, hangs = threading.Event(), threading.Event()
        replace = os.replace

        def hanging(source, target):
            if hangs.is_set():
                gate.wait(60)
            replace(source, target)

        recorder = Recorder(RunStore(tmp_path / "r", INFO), patience=0.2)
        monkeypatch.setattr(files.os, "replace", hanging)
        member = Member(recorder)
        member.hand_over(0)
        recorder.flush()
        hangs.set()
        start = time.monotonic()
        with pytest.warns(HeadwatchWarning, match=r"worker has not come back for 0 s.*the disk of .* does not answer"):
            member.hand_over_all(range(1, 200))
        recorder.flush(timeout=0.1)
        assert time.monotonic() - start < 30  # 199 snapshots, one wait
        hangs.clear()
        gate.set()
        while recorder._worker._queue.full():
            time.sleep(0.01)
        recorder.flush()
        member.hand_over_all([200, 201])
        recorder.close("finished")
        steps = headwatch.load(tmp_path / "r").steps()
        assert steps[:2] == [0, 1]  # the one that hung arrived whole
        assert steps[-2:] == [200, 201]  # and the worker is back
        assert len(steps) < 10

    def test_an_end_on_a_disk_that_stopped_answering_is_bounded(self, tmp_path, monkeypatch):
        gate = threading.Event()
        recorder = Recorder(RunStore(tmp_path / "r", INFO), patience=0.1)
        monkeypatch.setattr(files.os, "replace", lambda source, target: gate.wait(60))
        member = Member(recorder)
        with pytest.warns(HeadwatchWarning, match="has not come back"):
            member.hand_over_all(range(6))
        with pytest.warns(HeadwatchWarning, match="behind a checkpoint"):
            recorder.flush(timeout=0.1)
        with pytest.warns(HeadwatchWarning, match="the worker did not end within 0 s"):
            recorder.close("finished", timeout=0.2)
        gate.set()


class Member:
    """A monitor whose snapshots have one head."""

    name = "profile"

    def __init__(self, recorder):
        self.recorder = recorder
        self.overhead = 0.0
        recorder.attach(self)

    def expects(self, moment):
        return False

    def hand_over(self, step):
        columns = {"step": [step], "layer": [0], "head": [0], "displacement": [0], "a": [float(step)]}
        snapshot = Snapshot("profile", step, heads_table("profile", columns))
        self.recorder.submit(self, Moment(step, step, 0, 0.0), lambda at: snapshot, seconds=0.0)

    def hand_over_all(self, steps):
        for step in steps:
            self.hand_over(step)


def test_a_clock_that_runs_backwards(tmp_path, monkeypatch, plain):
    """Two hours back at every look: order is by step, the lock and the budget do not look at it."""
    now = itertools.count(1_800_000_000, -7200)
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    assert fit(tmp_path, both(on_error="raise")) == plain
    monkeypatch.undo()
    run = headwatch.load(tmp_path)
    rows = run.to_pandas()
    assert run.steps("profile") == [0, 1, 2, 5, 10, 12]
    assert run.steps("signature") == [0, 1, 2, 4, 8, 12]
    assert rows.groupby("step").time.first().is_monotonic_decreasing  # kept as the clock gave it
    assert (rows.seconds >= 0).all()
    assert rows.overhead.between(0, 1).all()
    assert run.info["status"] == "finished"


class TestTwoRuns:
    def test_told_to_use_one_directory_the_second_is_refused_before_training(self, tmp_path):
        checkpoint = ModelCheckpoint(tmp_path / "ckpt", save_top_k=-1, every_n_train_steps=4)
        fit(tmp_path, [*both(), checkpoint], enable_checkpointing=True)
        run = headwatch.load(tmp_path)
        steps = run.steps()
        holder = RunStore(run.path, dict(run.info))  # the first one goes on
        [path] = (tmp_path / "ckpt").glob("*step=4.ckpt")
        model = Tiny()
        with pytest.raises(LockedError, match=rf"written by process {os.getpid()} .*one writer.*dirpath="):
            fit(tmp_path, both(), model, ckpt=path)
        assert model.losses == []
        assert headwatch.load(tmp_path).steps() == steps  # it has touched nothing
        assert headwatch.load(tmp_path).is_live
        holder.close()
        fit(tmp_path, both(), ckpt=path)

    def test_of_one_trainer_directory_each_gets_its_own(self, tmp_path):
        for _ in range(2):
            fit(tmp_path, both(), max_steps=2)
        assert len(list((tmp_path / "headwatch").iterdir())) == 2

    def test_ids_made_in_one_second_differ(self):
        assert len({new_run_id() for _ in range(200)}) == 200


def test_a_resume_from_an_older_checkpoint_replaces_later_rows_and_keeps_them_marked(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path / "ckpt", save_top_k=-1, every_n_train_steps=4)
    fit(tmp_path, [*both(), checkpoint], enable_checkpointing=True)
    before = headwatch.load(tmp_path)
    old = {kind: before.to_pandas(kind) for kind in ("profile", "signature")}
    [path] = (tmp_path / "ckpt").glob("*step=4.ckpt")
    fit(tmp_path, both(), ckpt=path, max_steps=10)
    run = headwatch.load(tmp_path)
    assert run.path == before.path
    assert run.steps("profile") == [0, 1, 2, 5, 10]
    assert run.steps("signature") == [0, 1, 2, 4, 8, 10]
    assert run.info["resumed_at"] == 4
    for kind, column in (("profile", "norm"), ("signature", "max_logit")):
        new = run.to_pandas(kind)
        assert new.groupby("step").size().eq(4).all()
        kept = pd.read_parquet(run.path / "superseded" / kind)
        late = old[kind][old[kind].step > 4]
        assert sorted(set(kept.step)) == sorted(set(late.step))
        np.testing.assert_array_equal(kept.sort_values(["step", "layer", "head"])[column], late[column])
    for folder in ("signature_summary", "signature_tokens"):
        assert set(run.table(folder)["step"].to_pylist()) == set(run.steps("signature"))
        assert set(pd.read_parquet(run.path / "superseded" / folder).step) == {8, 12}


@pytest.mark.filterwarnings("ignore::headwatch.notices.HeadwatchWarning")
class TestFailingForward:
    """The probe's forward raises half way through: training is what it would have been, to the last bit."""

    @staticmethod
    def breaking(calls):
        """Runs the network, moves every random state, breaks off within the second block at these calls."""
        count = itertools.count()

        def probe_fn(module, batch):
            call = next(count)
            torch.rand(3), np.random.rand(3)

            def boom(*given):
                raise RuntimeError(f"call {call} broke off")

            handle = module.blocks[1].register_forward_pre_hook(boom) if call in calls else None
            try:
                module(batch)
            finally:
                if handle is not None:
                    handle.remove()

        return probe_fn

    def test_once_leaves_one_hole(self, tmp_path, plain):
        probe_fn = self.breaking({2})  # after the trial and step 0
        monitor = MarginalAttentionMonitor(DOCUMENTS, 4, early_steps=(1, 2), probe_fn=probe_fn, prove=False)
        assert fit(tmp_path, [monitor]) == plain
        run = headwatch.load(tmp_path)
        assert run.steps("signature") == [0, 2, 4, 8, 12]
        [said] = [text for text in run.info["messages"] if "failed at step 1" in text]
        assert "call 2 broke off" in said
        assert "on_error='raise'" in said

    def test_always_switches_that_monitor_off_and_no_other(self, tmp_path, plain):
        always, later = self.breaking(range(10_000)), self.breaking({1, *range(3, 10_000)})  # all but the trial
        monitors = [
            QKProfileMonitor(5, early_steps=(1, 2), probe_fn=always),
            MarginalAttentionMonitor(DOCUMENTS, 4, early_steps=(1, 2), probe_fn=later, name="broken"),
            MarginalAttentionMonitor(DOCUMENTS, 4, early_steps=(1, 2)),
        ]
        assert fit(tmp_path, monitors) == plain
        run = headwatch.load(tmp_path)
        assert run.monitors == ["profile", "signature"]
        assert run.steps("profile") == [0, 1, 2, 5, 10, 12]
        assert run.steps("signature") == [0, 1, 2, 4, 8, 12]
        assert set(run.profile["status"].to_pylist()) == {"structural"}
        assert any("could not be proven on the first batch" in text for text in run.info["messages"])
        assert any("signature-broken monitor failed 3 times in a row" in text for text in run.info["messages"])

    @pytest.mark.parametrize("call", [1, 3])
    def test_raise_is_for_tests(self, tmp_path, call):
        monitor = MarginalAttentionMonitor(
            DOCUMENTS, 4, early_steps=(1, 2), probe_fn=self.breaking({call}), prove=False, on_error="raise"
        )
        with pytest.raises(RuntimeError, match=f"call {call} broke off"):
            fit(tmp_path, [monitor])
        assert headwatch.load(tmp_path).info["status"] == "failed"


def test_raise_reaches_what_fails_on_the_worker(tmp_path, monkeypatch):
    def broken(*given, **more):
        raise ArithmeticError("no eigenvalues")

    monkeypatch.setattr(RunStore, "write", broken)
    with pytest.raises(ArithmeticError, match="no eigenvalues"), pytest.warns(HeadwatchWarning):
        fit(tmp_path, [QKProfileMonitor(5, on_error="raise")])


def test_the_lock_is_kept_fresh_by_a_run_that_never_rests(tmp_path):
    """Hosts other than ours judge a lock by its age; the worker's idle time is no measure of life."""
    store = RunStore(tmp_path / "r", INFO)
    lock = Path(tmp_path / "r" / ".lock")
    os.utime(lock, (0, 0))
    recorder = Recorder(store, background=False)
    Member(recorder).hand_over(1)
    assert lock.stat().st_mtime > 1e9
    recorder.close("finished")
