"""Whole comparisons over made-up runs: tables, notes, and what is left out with which words."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwatch.comparison import compare
from headwatch.comparison.artifact import download_store
from headwatch.comparison.resolve import unique_labels
from headwatch.comparison.terminal import print_comparison
from headwatch.run import load
from synthetic import make_profile_table, make_run, make_signature_table, write_parts

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>[red]%{y}"


def seeds(root, n=3, **options):
    return [make_run(root / f"run{i}", seed=i, name=f"run {i}", **options) for i in range(n)]


def test_tables_have_a_row_for_every_head_and_pair(tmp_path):
    comparison = compare(seeds(tmp_path))
    assert comparison.drift.num_rows == 3 * 16
    assert comparison.matches.num_rows == 2 * 16
    assert comparison.signatures.num_rows == 3 * 7
    assert comparison.runs["run"].to_pylist() == ["run 0", "run 1", "run 2"]
    assert comparison.config["key"].to_pylist() == ["seed"]
    assert comparison.groups is None
    assert comparison.trajectories.num_rows == 3 * 16 * 11


def test_data_frames_of_everything(tmp_path):
    pandas = pytest.importorskip("pandas")
    comparison = compare(seeds(tmp_path, 2), group_by="seed")
    for name in ("runs", "config", "drift", "matches", "layers", "groups", "signatures", "trajectories"):
        assert isinstance(comparison.to_pandas(name), pandas.DataFrame)
    with pytest.raises(ValueError, match=r"no table 'heads' here; expected one of runs, config, drift"):
        comparison.table("heads")


def test_drift_equals_the_tables_own_columns(tmp_path):
    first, second = seeds(tmp_path, 2)
    drift = compare([first, second]).drift.to_pandas().query("run == 'run 0'")
    profile = load(first).profile.to_pandas()
    last = profile[profile.step == profile.step.max()]
    np.testing.assert_allclose(drift.drift, last.drift, rtol=1e-9)
    np.testing.assert_allclose(drift.path_length, last.path_length, rtol=1e-9)
    np.testing.assert_array_equal(drift.left_null_step, last.left_null_step)


def permuted_copy(path, source, rng):
    """A store whose heads are those of ``source`` in another order within each layer, with another seed."""
    make_run(path, seed=99, name="copy")
    table = load(source).profile.to_pandas()
    signature = load(source).signature.to_pandas()
    orders = {layer: rng.permutation(4) for layer in range(4)}
    for frame in (table, signature):
        frame["head"] = [orders[la][h] for la, h in zip(frame["layer"], frame["head"], strict=True)]
    import pyarrow as pa

    schema, other = make_profile_table().schema, make_signature_table().schema
    write_parts(path / "profile", pa.Table.from_pandas(table, schema=schema, preserve_index=False))
    write_parts(path / "signature", pa.Table.from_pandas(signature, schema=other, preserve_index=False))
    return orders


def test_a_permuted_copy_is_matched_and_its_signatures_agree(tmp_path):
    pytest.importorskip("pandas")
    source = make_run(tmp_path / "source", seed=5, name="source")
    orders = permuted_copy(tmp_path / "copy", source, np.random.default_rng(0))
    comparison = compare([source, tmp_path / "copy"])
    for row in comparison.matches.to_pylist():
        assert row["head"] == orders[row["layer"]][row["reference_head"]]
        assert row["verdict"] == "match"
        assert row["cost"] == pytest.approx(0, abs=1e-3)
    for row in comparison.signatures.to_pylist():
        assert row["aligned"] == "match"
        assert row["pearson"] == pytest.approx(1)


def test_same_seed_is_compared_by_index(tmp_path):
    paths = [make_run(tmp_path / f"lr{i}", seed=4, name=f"lr{i}", speed=1 + i) for i in range(2)]
    comparison = compare(paths)
    assert all(row["head"] == row["reference_head"] for row in comparison.matches.to_pylist())
    assert set(comparison.matches["verdict"].to_pylist()) == {"same seed"}
    assert any("by index" in note for note in comparison.notes)


def test_other_shapes_by_distributions_only(tmp_path):
    comparison = compare([*seeds(tmp_path, 2), make_run(tmp_path / "big", n_layers=2, n_heads=8, seed=7, name="big")])
    assert set(comparison.matches["run"].to_pylist()) == {"run 1"}
    assert "big" in comparison.layers["run"].to_pylist()
    assert any("different shapes are compared by their distributions only" in note for note in comparison.notes)
    assert any(note == "No other run has the shape of: big." for note in comparison.notes)


def test_groups_by_a_key_say_what_they_can_reach(tmp_path):
    paths = [
        make_run(
            tmp_path / f"r{i}", seed=i, name=f"r{i}", config={"optimizer": {"lr": 1e-3 if i < 3 else 1e-4}, "seed": i}
        )
        for i in range(6)
    ]
    comparison = compare(paths, group_by="optimizer.lr")
    groups = comparison.groups.to_pandas()
    assert {"mean[0.001]", "mean[0.0001]", "p", "p_adjusted"} <= set(groups.columns)
    assert set(groups.layer) == {-1, 0, 1, 2, 3}
    assert groups.p.min() >= 2 / 20 - 1e-12
    note = next(note for note in comparison.notes if note.startswith("Groups by"))
    assert "all 20 labellings" in note
    assert "Benjamini–Hochberg" in note
    assert "at step 300" in note
    assert any("no difference can be significant" in note for note in comparison.notes)


def test_against_loss_lines_up_runs_of_other_speed(tmp_path):
    slow = make_run(tmp_path / "slow", seed=1, name="slow", steps=range(0, 1000, 100))
    fast = make_run(tmp_path / "fast", seed=1, name="fast", steps=range(0, 500, 50))
    by_step, by_loss = (
        compare([slow, fast], against=axis).matches["cost"].to_numpy().mean() for axis in ("step", "loss")
    )
    assert by_loss < 0.5 * by_step


def test_runs_that_cannot_be_read_are_left_out_by_name(tmp_path):
    good = seeds(tmp_path, 2)
    empty = make_run(tmp_path / "empty", steps=[0], signatures=False)
    for part in (empty / "profile").iterdir():
        part.unlink()
    corrupt = make_run(tmp_path / "corrupt")
    part = next((corrupt / "profile").iterdir())
    part.write_bytes(part.read_bytes()[:200])
    later = make_run(tmp_path / "later", info={"schema_version": 99})
    broken = make_run(tmp_path / "broken")
    (broken / "run.json").write_text("{")
    comparison = compare([*good, tmp_path / "missing", empty, corrupt, later, broken])
    reasons = dict(comparison.left_out)
    assert comparison.runs.num_rows == 2
    assert "no run at" in reasons[str(tmp_path / "missing")]
    assert "holds no profile snapshot" in reasons[str(empty)]
    assert part.name in reasons[str(corrupt)]
    assert "store version 99" in reasons[str(later)]
    assert "run.json cannot be read" in reasons[str(broken)]


def test_a_run_that_did_not_finish_is_compared_and_marked(tmp_path):
    comparison = compare([*seeds(tmp_path, 2), make_run(tmp_path / "x", seed=8, name="x", status="running")])
    assert comparison.runs.to_pylist()[2]["note"].startswith("did not finish")
    assert "x: did not finish: compared up to its last snapshot (step 300)." in comparison.notes


def test_a_run_that_diverged_is_marked(tmp_path):
    healthy, broken = seeds(tmp_path, 2, signatures=False)
    part = broken / "profile" / "step=000000300.parquet"
    table = pq.read_table(part)
    for name in ("a", "b", "c", "d", "stable_rank"):
        values = [None, None, None, *table[name].to_pylist()[3:]]
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values, pa.float64()))
    pq.write_table(table, part)
    notes = compare([healthy, broken]).notes
    assert "run 1: 3 of 16 heads have no profile at its last snapshot (step 300)." in notes
    assert [note for note in notes if note.startswith("run 0")] == []


def test_too_few_and_too_many(tmp_path):
    (only,) = seeds(tmp_path, 1)
    with pytest.raises(ValueError, match=r"needs two runs that can be read, found 1\.\n .*nowhere: no run at"):
        compare([only, tmp_path / "nowhere"])
    for i in range(51):
        (tmp_path / "many" / str(i)).mkdir(parents=True)
        (tmp_path / "many" / str(i) / "run.json").write_text(json.dumps({"schema_version": 1}))
    with pytest.raises(ValueError, match="51 runs; at most 50"):
        compare([tmp_path / "many"])
    with pytest.raises(ValueError, match="expected 'step' or 'loss'"):
        compare([only], against="time")


def test_a_directory_of_runs_is_all_of_them_and_each_once(tmp_path):
    paths = seeds(tmp_path, 2)
    assert compare([tmp_path, paths[0]]).runs.num_rows == 2


def test_one_run_named_twice_is_said(tmp_path):
    (only,) = seeds(tmp_path, 1)
    (tmp_path / "link").symlink_to(only)
    message = rf"found 1\.\n  {tmp_path / 'link'}: the same run as {only}; name another one"
    with pytest.raises(ValueError, match=message):
        compare([only, tmp_path / "link"])
    opened = load(only)
    with pytest.raises(ValueError, match=rf"found 1\.\n  {only}: the same run as {only}"):
        compare([opened, opened])


def test_labels_are_told_apart(tmp_path):
    runs = [load(make_run(tmp_path / place / name, name="gpt")) for place in "ab" for name in ("x", "y")]
    labels = unique_labels([*runs[:2], load(make_run(tmp_path / "z", name="own")), *runs[2:3]])
    assert labels == ["gpt (x) #1", "gpt (y)", "own", "gpt (x) #4"]


def test_runs_without_signatures_or_loss(tmp_path):
    comparison = compare(seeds(tmp_path, 2, signatures=False))
    assert comparison.signatures.num_rows == 0


def test_terminal_prints_names_as_they_stand(tmp_path):
    paths = [make_run(tmp_path / f"r{i}", seed=i, name=f"[bold]{HOSTILE} {i}") for i in range(2)]
    text = printed(compare([*paths, tmp_path / "none"], group_by="seed"))
    assert f"[bold]{HOSTILE} 0" in text
    for heading in (
        "Runs",
        "Configuration differences",
        "Heads that moved most",
        "Heads matched",
        "Differences between",
        "Signatures",
    ):
        assert heading in text
    assert "left out" in text


def printed(comparison) -> str:
    from rich.console import Console

    console = Console(width=400, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_comparison(comparison, console)
    return console.export_text()


def test_tables_that_the_terminal_cuts_say_so(tmp_path):
    paths = [
        make_run(
            tmp_path / f"r{i}", 2, 2, (0, 1), i, name=f"r{i}", config={"seed": i % 7, **{f"k{k}": i for k in range(24)}}
        )
        for i in range(22)
    ]
    comparison = compare(paths, group_by="seed", output=tmp_path / "page.html")
    text = printed(comparison)
    assert "Configuration differences: 20 of 25; the page has all" in text
    assert "(median distance): 20 of 21 runs; the page has all" in text
    assert "over heads, 6 of 7 groups): 20 of " in text
    assert "n_eff; the page has the others: 20 of 231 pairs; the page has all" in text
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="hw-data">(.*?)</script>', page, re.S).group(1))
    assert all(f"<td>k{k}</td>" in page for k in range(24))
    assert sum(row[2] == "n_eff" for row in data["signatures"]) == 231
    assert len({row["run"] for row in data["tests"]}) == 21
    assert f"20 of {len(data['groupTests']['rows'])}; the page has all" in text
    assert "Configuration differences: 20 of 25; comparison.config has all" in printed(replace(comparison, output=None))
    assert "has all" not in printed(compare(seeds(tmp_path / "few", 2)))


def test_wandb_addresses_are_checked_before_anything_is_fetched():
    with pytest.raises(ValueError, match="expected wandb:entity/project/run"):
        download_store("wandb:only/two")


def test_wandb_run_is_compared_through_its_artifact(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    asked = []

    class Artifact:
        def download(self, root):
            make_run(root, seed=3, name="from W&B")

    class Api:
        def artifact(self, name, type):
            asked.append((name, type))
            if "gone" in name:
                raise ValueError("artifact not found")
            return Artifact()

    monkeypatch.setattr(wandb, "Api", Api)
    comparison = compare([*seeds(tmp_path, 1), "wandb:me/gpt/1x2y", "wandb:me/gpt/gone"])
    assert asked == [("me/gpt/headwatch-1x2y:latest", "headwatch"), ("me/gpt/headwatch-gone:latest", "headwatch")]
    assert comparison.runs["run"].to_pylist() == ["run 0", "from W&B"]
    assert "give the store's directory instead" in dict(comparison.left_out)["wandb:me/gpt/gone"]


def without_loss(path, **options):
    import pyarrow as pa
    import pyarrow.parquet as pq

    make_run(path, signatures=False, **options)
    for part in (path / "profile").iterdir():
        table = pq.read_table(part)
        place = table.schema.get_field_index("loss")
        pq.write_table(
            table.set_column(place, table.schema.field("loss"), pa.nulls(table.num_rows, pa.float64())), part
        )
    return path


def test_loss_that_nobody_recorded_gives_way_to_steps(tmp_path):
    bare = [without_loss(tmp_path / f"bare{i}", seed=i, name=f"bare{i}") for i in range(2)]
    with pytest.warns(UserWarning, match="no run recorded a training loss"):
        assert compare(bare, against="loss").against == "step"
    mixed = compare([bare[0], *seeds(tmp_path, 2, signatures=False)], against="loss", output=tmp_path / "page.html")
    assert "No training loss was recorded by: bare0. On the axis of loss they do not appear." in mixed.notes
    assert any("matched at the runs' last snapshots" in note for note in mixed.notes)


def test_a_run_that_is_still_going_is_compared_and_marked(tmp_path):
    from headwatch.sinks.lock import RunLock

    going = make_run(tmp_path / "going", seed=8, name="going", status="running", signatures=False)
    lock = RunLock(going)
    lock.acquire()
    try:
        notes = compare([*seeds(tmp_path, 1, signatures=False), going]).notes
    finally:
        lock.release()
    assert "going: still going: compared up to its newest snapshot (step 300)." in notes


def test_command_writes_the_page_and_prints_the_tables(tmp_path):
    from typer.testing import CliRunner

    from headwatch.cli import build_app

    paths = [str(path) for path in seeds(tmp_path, 2, signatures=False)]
    page = tmp_path / "out" / "page.html"
    done = CliRunner().invoke(
        build_app(), ["compare", *paths, "--group-by", "seed", "--against", "loss", "-o", str(page)]
    )
    assert done.exit_code == 0, done.output
    assert "Heads that moved most" in done.output
    assert page.read_text().startswith("<!doctype html>")
    wrong = CliRunner().invoke(build_app(), ["compare", *paths, "--against", "time"])
    assert "--against: expected step or loss, found 'time'" in str(wrong.exception)


def test_a_comparison_prints_in_one_line(tmp_path):
    comparison = compare(seeds(tmp_path, 2, signatures=False))
    assert repr(comparison).startswith("<Comparison of 2 runs, 32 heads; tables: runs, config, drift")
