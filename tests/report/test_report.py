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
from synthetic import make_profile_table, make_run


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
