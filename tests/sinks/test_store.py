"""The store: readable at every moment, one part per step, later rows kept aside on a resume."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from headwatch.run import StoreError, find_runs, load
from headwatch.sinks.lock import LockedError
from headwatch.sinks.parts import list_parts
from headwatch.sinks.store import RunStore
from headwatch.snapshot import SCHEMA_VERSION, Snapshot, heads_table, profile_schema

HEADS = 4


def info(**more):
    return {"schema_version": SCHEMA_VERSION, "headwatch_version": "0", "id": "r", "status": "running", **more}


def snapshot(step, value=None, **summary):
    columns = {
        "step": np.full(HEADS, step),
        "layer": [0, 0, 1, 1],
        "head": [0, 1, 0, 1],
        "displacement": [0] * HEADS,
        "a": np.full(HEADS, float(step if value is None else value)),
    }
    return Snapshot("profile", step, heads_table("profile", columns), summary)


def filled(path, steps):
    store = RunStore(path, info())
    for step in steps:
        store.write(snapshot(step))
    return store


def test_reads_while_it_grows_with_every_tool(tmp_path):
    filled(tmp_path / "r", [0, 1, 2])
    glob = str(tmp_path / "r" / "profile" / "*.parquet")
    assert sorted(pl.read_parquet(glob)["step"].unique().to_list()) == [0, 1, 2]
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.sql(f"select count(*) as n from '{glob}'").to_arrow_table()["n"].to_pylist() == [3 * HEADS]
    assert len(pd.read_parquet(tmp_path / "r" / "profile")) == 3 * HEADS
    run = load(tmp_path / "r")
    assert run.is_live
    assert run.steps() == [0, 1, 2]
    assert run.profile.schema.equals(profile_schema())


def test_a_step_is_rewritten_not_duplicated(tmp_path):
    store = filled(tmp_path / "r", [0, 1])
    store.write(snapshot(1, value=0.25))
    table = load(tmp_path / "r").to_pandas()
    assert table[table.step == 1].a.tolist() == [0.25] * HEADS
    assert len(table) == 2 * HEADS


def test_resume_keeps_superseded_parts_aside(tmp_path):
    filled(tmp_path / "r", [0, 1, 2, 4]).close(status="failed")
    store = RunStore(tmp_path / "r", info())
    assert store.supersede_after(1) == 2
    assert load(tmp_path / "r").steps() == [0, 1]
    kept = pd.read_parquet(tmp_path / "r" / "superseded" / "profile")
    assert sorted(set(kept.step)) == [2, 4]
    store.write(snapshot(2, value=0.5))
    store.supersede_after(1)  # a second fall-back keeps both versions
    kept = pd.read_parquet(tmp_path / "r" / "superseded" / "profile")
    assert sorted(kept[kept.step == 2].a.unique()) == [0.5, 2.0]


def test_compaction_loses_nothing_and_can_be_resumed_into(tmp_path):
    steps = list(range(30))
    store = filled(tmp_path / "r", steps)
    store.compact(above=10)
    assert len(list_parts(tmp_path / "r" / "profile")) == 1
    assert load(tmp_path / "r").steps() == steps
    store.supersede_after(11)
    assert load(tmp_path / "r").steps() == steps[:12]
    assert sorted(set(pd.read_parquet(tmp_path / "r" / "superseded" / "profile").step)) == steps[12:]
    store.write(snapshot(12))
    assert load(tmp_path / "r").steps() == steps[:13]


def test_a_kill_within_compaction_leaves_no_duplicate(tmp_path):
    store = filled(tmp_path / "r", range(12))
    parts = {p.path.name: p.path.read_bytes() for p in list_parts(tmp_path / "r" / "profile")}
    store.compact(above=10)
    for name, data in list(parts.items())[5:]:  # as if it died before it deleted these
        (tmp_path / "r" / "profile" / name).write_bytes(data)
    assert load(tmp_path / "r").profile.num_rows == 12 * HEADS
    store.close()
    RunStore(tmp_path / "r", info())
    assert len(list_parts(tmp_path / "r" / "profile")) == 1


def test_two_writers_are_refused_and_a_dead_one_is_not(tmp_path):
    code = (
        "import sys; from pathlib import Path; from headwatch.sinks.store import RunStore;"
        "RunStore(Path(sys.argv[1]), {'schema_version': 1}); print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "r")], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "open\n"
    with pytest.raises(LockedError, match=f"process {other.pid} .*another dirpath="):
        RunStore(tmp_path / "r", info())
    other.kill()
    other.wait()
    RunStore(tmp_path / "r", info())


def test_the_same_process_is_refused_too(tmp_path):
    store = RunStore(tmp_path / "r", info())
    with pytest.raises(LockedError):
        RunStore(tmp_path / "r", info())
    store.close()
    RunStore(tmp_path / "r", info())


def test_unwritable_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write its store at .*file.*dirpath="):
        RunStore(tmp_path / "file" / "r", info())


def test_a_store_deleted_under_a_live_run_is_begun_anew(tmp_path):
    import shutil

    store = filled(tmp_path / "r", [0, 1])
    shutil.rmtree(tmp_path / "r")
    store.write(snapshot(2))
    assert load(tmp_path / "r").steps() == [2]
    assert load(tmp_path / "r").is_live


def test_summary_and_identity_come_back(tmp_path):
    store = RunStore(tmp_path / "r", info())
    store.write(snapshot(3, n_eff_consistency=0.5))
    run = load(tmp_path / "r")
    assert run.summary.to_pylist() == [{"step": 3, "key": "n_eff_consistency", "value": 0.5}]
    assert run.monitors == ["profile"]


class TestMessages:
    def test_missing(self, tmp_path):
        with pytest.raises(StoreError, match="no run at"):
            load(tmp_path / "none")

    def test_root_with_one_run_and_with_several(self, tmp_path):
        filled(tmp_path / "headwatch" / "one", [0])
        assert load(tmp_path).path.name == "one"
        filled(tmp_path / "headwatch" / "two", [0])
        assert len(find_runs(tmp_path)) == 2
        with pytest.raises(StoreError, match=r"2 runs below .*name one of them"):
            load(tmp_path)

    def test_later_version(self, tmp_path):
        filled(tmp_path / "r", [0])
        (tmp_path / "r" / "run.json").write_text(json.dumps(info(schema_version=99, headwatch_version="9.9")))
        with pytest.raises(StoreError, match=r"headwatch 9\.9 with store version 99.*Upgrade"):
            load(tmp_path / "r")

    @pytest.mark.parametrize("text", ["", "{", "[1]"])
    def test_broken_run_json(self, tmp_path, text):
        filled(tmp_path / "r", [0])
        (tmp_path / "r" / "run.json").write_text(text)
        with pytest.raises(StoreError, match=r"run\.json"):
            load(tmp_path / "r")

    def test_broken_part(self, tmp_path):
        filled(tmp_path / "r", [0])
        Path(tmp_path / "r" / "profile" / "step=000000000.parquet").write_bytes(b"PAR1garbage")
        with pytest.raises(StoreError, match=r"step=000000000\.parquet is not a readable"):
            _ = load(tmp_path / "r").profile


@pytest.mark.parametrize("read", ["table", "steps", "to_pandas", "to_polars"])
def test_a_kind_that_no_store_has_is_refused(tmp_path, read):
    filled(tmp_path / "r", [0])
    with pytest.raises(ValueError, match=r"no kind 'signatures': this run has profile\. Expected one of profile, sign"):
        getattr(load(tmp_path / "r"), read)("signatures")
    for name in ("nonsense", "profile_", "signature_token", "", "profile-", "../profile"):
        with pytest.raises(ValueError, match="no kind "):
            getattr(load(tmp_path / "r"), read)(name)


@pytest.mark.parametrize(
    "kind",
    ["signature", "signature_summary", "signature_tokens", "profile_summary", "profile-teacher", "signature-a_summary"],
)
def test_a_known_kind_that_was_not_measured_is_empty(tmp_path, kind):
    filled(tmp_path / "r", [0])
    run = load(tmp_path / "r")
    assert run.table(kind).num_rows == len(run.to_pandas(kind)) == 0
    assert run.steps(kind) == []


def test_a_run_prints_in_one_short_line(tmp_path):
    store = filled(tmp_path / "r", range(30))
    store.write(snapshot(30, n_eff_consistency=0.5))
    assert repr(load(tmp_path / "r")) == f"<Run {tmp_path / 'r'}: still going; profile (31 snapshots)>"
    store.compact(above=10)
    store.close(status="finished")
    run = load(tmp_path / "r")
    assert repr(run) == f"<Run {tmp_path / 'r'}: finished; profile (31 snapshots)>"
    (part,) = list_parts(tmp_path / "r" / "profile")
    part.path.write_bytes(b"torn")
    assert repr(run) == f"<Run {tmp_path / 'r'}: finished; its snapshots cannot be read>"
    RunStore(tmp_path / "e", info()).close(status="failed")
    assert repr(load(tmp_path / "e")) == f"<Run {tmp_path / 'e'}: failed; no snapshot yet>"
