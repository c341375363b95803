"""What the report says about a run, without a browser."""

import json
import re

import numpy as np
import pyarrow as pa
import pytest

from headwatch.figures.grid import HeadGrid
from headwatch.page import unpack
from headwatch.report import write_report
from headwatch.report.glance import glance
from headwatch.report.kinds import keys_over_time, kind_arrays
from headwatch.run import StoreError, load
from synthetic import make_profile_table, make_run, make_signature_table


def data_of(html: str) -> dict:
    return json.loads(re.search(r'id="hw-data">(.*?)</script>', html, re.S).group(1))


def array_of(html: str, name: str) -> np.ndarray:
    return unpack(re.search(rf'data-name="{name}">(.*?)</script>', html).group(1))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("store") / "r1")


@pytest.fixture(scope="module")
def html(run) -> str:
    return write_report(run).read_text(encoding="utf-8")


def test_it_lies_beside_the_run_or_where_told(run, tmp_path):
    assert write_report(run) == run / "report.html"
    other = tmp_path / "new" / "page.html"
    assert write_report(str(run), other) == other
    assert [path.name for path in other.parent.iterdir()] == ["page.html"]


def test_every_number_of_the_store_is_on_the_page(run, html):
    table = load(run).profile
    kind = data_of(html)["kinds"]["profile"]
    assert kind["steps"] == sorted(set(table["step"].to_pylist()))
    for key in ("a", "stable_rank", "theta_position", "drift", "n_pos"):
        np.testing.assert_allclose(array_of(html, f"profile/{key}"), table[key].to_numpy(), rtol=2**-13, atol=1e-30)


def test_every_metric_carries_the_words_of_the_registry(html):
    data = data_of(html)
    keys = [key for kind in data["kinds"].values() for key in kind["keys"] if key in data["metrics"]]
    assert len(keys) > 30
    assert all(data["metrics"][key]["meaning"] for key in keys)


def test_glance_counts_heads_medians_and_flips():
    table = make_profile_table(2, 2, steps=(0, 10, 20))
    parity = np.array([[0, 1, -1, 1], [1, 1, 1, 1], [-1, 1, 1, 0]]).ravel()
    place = table.schema.get_field_index("parity")
    table = table.set_column(place, table.schema.field("parity"), pa.array(parity, pa.int32()))
    tiles = {tile.label: tile.value for tile in glance(HeadGrid.of(table), None)}
    rank = table["stable_rank"].to_numpy().reshape(3, 4)
    assert tiles["heads"] == "4"
    assert tiles["parity flips"] == "2"
    assert tiles["median stable rank"] == f"{np.median(rank[0]):.3g} → {np.median(rank[-1]):.3g}"
    assert tiles["heads of stable rank below 2"] == f"{(rank[-1] < 2).sum()} of 4"
    assert tiles["heads beyond chance"] == f"{sum(table['beyond_null'].to_pylist()[-4:])} of 4"


def replaced(table: pa.Table, name: str, values: list) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))


def diverged(table: pa.Table, step: int, heads: tuple[int, ...], flag: str = "nan") -> pa.Table:
    """The table as a store has it when the weights of some heads are NaN from a step on, and the loss too."""
    late = table["step"].to_numpy() >= step
    gone = late & np.isin(table["head"].to_numpy(), heads)
    context = ("time", "seconds", "overhead")
    for field in table.schema:
        if (pa.types.is_floating(field.type) and field.name not in context) or field.name in ("parity", "head_type"):
            empty = late if field.name == "loss" else gone
            values = [None if out else value for value, out in zip(table[field.name].to_pylist(), empty, strict=True)]
            table = replaced(table, field.name, values)
    return replaced(table, "flags", [flag if out else "" for out in gone])


def tiles_of(profile: pa.Table | None, signature: pa.Table | None = None) -> dict[str, tuple[str, str]]:
    grids = (HeadGrid.of(table) if table is not None else None for table in (profile, signature))
    return {tile.label: (tile.value, tile.why) for tile in glance(*grids)}


def test_a_model_that_diverged_does_not_look_healthy():
    table = make_profile_table(2, 2, steps=(0, 1, 5, 10, 20))
    tiles = tiles_of(diverged(table, 10, (0, 1)))
    loss = table["loss"].to_numpy()[::4]
    assert tiles["training loss"][0] == f"{loss[1]:.3g} → none"
    assert f"none at step 20; {loss[2]:.3g} at step 5" in tiles["training loss"][1]
    assert tiles["median stable rank"][0].endswith("→ none")
    for label in ("heads beyond chance", "heads of stable rank below 2"):
        assert tiles[label] == ("–", "no head has a profile at step 20")
    without = tiles["heads without a profile at the last snapshot"]
    assert without == ("4 of 4", "NaN in the weights (4); all heads have one up to step 5")
    assert tiles["furthest head"][0] == "–"


def test_heads_are_counted_among_those_that_have_a_profile():
    table = make_profile_table(2, 2, steps=(0, 10, 20))
    tiles = tiles_of(diverged(table, 20, (1,), flag="norm_gain_folded_in,inf"))
    rank = table["stable_rank"].to_numpy().reshape(3, 4)[-1, ::2]
    beyond = table["beyond_null"].to_numpy().reshape(3, 4)[-1, ::2]
    assert tiles["heads without a profile at the last snapshot"][0] == "2 of 4"
    assert tiles["heads without a profile at the last snapshot"][1].startswith("infinity in the weights (2);")
    assert tiles["heads of stable rank below 2"][0] == f"{(rank < 2).sum()} of 2"
    assert tiles["heads beyond chance"][0] == f"{beyond.sum()} of 2"


def test_signatures_that_are_gone_are_said():
    tiles = tiles_of(None, diverged(make_signature_table(2, 2, steps=(0, 10, 20)), 10, (0, 1), flag="not_captured"))
    without = tiles["heads without a signature at the last snapshot"]
    assert without == ("4 of 4", "attention not captured (4); all heads have one up to step 0")
    assert tiles["median row entropy"][0].endswith("→ none")


def test_a_healthy_run_has_no_tile_of_missing_heads(run):
    found = load(run)
    tiles = tiles_of(found.profile, found.signature)
    assert [label for label in tiles if "without" in label] == []
    assert [value for value, _ in tiles.values() if "none" in value] == []


@pytest.mark.parametrize(
    ("profile_steps", "signature_steps", "shown"),
    [((0, 10), (0, 10), "6 %"), ((0, 10, 15), (0, 10), "2 %"), ((0, 10), (0, 20), "6 %"), ((0, 10), None, "2 %")],
)
def test_overhead_is_the_newest_share_of_both_kinds(profile_steps, signature_steps, shown):
    profile = make_profile_table(1, 2, steps=profile_steps)
    profile = replaced(profile, "overhead", [0.02] * profile.num_rows)
    signature = None
    if signature_steps is not None:
        signature = make_signature_table(1, 2, steps=signature_steps)
        signature = replaced(signature, "overhead", [0.06] * signature.num_rows)
    assert tiles_of(profile, signature)["own overhead"][0] == shown


def test_distance_to_theta_never_stands_alone(html):
    assert "near 0 from the start, for M lies on Θ" in html
    assert "has not thereby learned anything" in html


def test_facts_name_what_was_left_out_messages_and_flags(tmp_path):
    left = [{"module": "decoder.cross", "reason": "key and query come from different spaces"}]
    info = {"left_out": left, "messages": ["the W&B sink is off"], "wandb": {"url": "https://wandb.example/x"}}
    text = write_report(make_run(tmp_path / "r", flags="qk_norm", info=info)).read_text(encoding="utf-8")
    for words in ("decoder.cross", "different spaces", "the W&amp;B sink is off", "QK-norm", "https://wandb.example/x"):
        assert words in text


def test_columns_are_packed_until_the_budget_is_spent():
    grid = HeadGrid.of(make_profile_table())
    keys = keys_over_time(grid, "profile")
    assert keys[:4] == ["a", "b", "c", "d"]
    packed = kind_arrays(grid, keys, budget=2000)
    assert sum(map(len, packed.values())) <= 2000
    assert 0 < len(packed) < len(keys)


def test_a_run_of_signatures_alone_has_a_report(tmp_path):
    run = make_run(tmp_path / "r")
    for part in (run / "profile").iterdir():
        part.unlink()
    data = data_of(write_report(run).read_text(encoding="utf-8"))
    assert list(data["kinds"]) == ["signature"]


def test_a_named_monitor_is_shown_when_there_is_no_other(tmp_path):
    run = make_run(tmp_path / "r", signatures=False)
    (run / "profile").rename(run / "profile-teacher")
    assert data_of(write_report(run).read_text(encoding="utf-8"))["kinds"]["profile"]["steps"][-1] == 300


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "run.json").unlink(), "no run at"),
        (lambda run: (run / "run.json").write_text("{"), "cannot be read"),
        (lambda run: [p.unlink() for p in (run / "profile").iterdir()], "holds no snapshot yet"),
        (lambda run: (run / "profile" / "step=000000300.parquet").write_bytes(b"torn"), "not a readable Parquet file"),
        (lambda run: (run / "run.json").write_text('{"schema_version": 99}'), "reads versions up to"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, spoil, message):
    run = make_run(tmp_path / "r", signatures=False)
    spoil(run)
    with pytest.raises(StoreError, match=message):
        write_report(run)
