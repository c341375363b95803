"""The live page: whom it answers, what it says, and that it follows a store that grows."""

import http.client
import json
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from browser import chromium, console_troubles, requests, wait
from headwatch.page import unpack
from headwatch.report.feed import Feed
from headwatch.watch import serve
from synthetic import DEFAULT_STEPS, make_profile_table, make_run


@contextmanager
def serving(path: Path):
    with serve(path) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path: str = "/news.json", method: str = "GET", **headers: str) -> tuple[int, str, dict]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8"), dict(answer.getheaders())


def store_until(path: Path, n_steps: int) -> Path:
    """A run whose later parts are not there yet."""
    run = make_run(path, signatures=False, status="running")
    for step in DEFAULT_STEPS[n_steps:]:
        (run / "profile" / f"step={step:09d}.parquet").unlink()
    return run


def grow(run: Path, step: int) -> None:
    """Add a part as the store does: written aside, then renamed."""
    table = make_profile_table()
    rows = table.filter(np.isin(table["step"].to_numpy(), [step]))
    (run / ".tmp").mkdir(exist_ok=True)
    pq.write_table(rows, run / ".tmp" / "part")
    (run / ".tmp" / "part").rename(run / "profile" / f"step={step:09d}.parquet")


def test_news_are_the_numbers_that_came_in(tmp_path):
    run = store_until(tmp_path / "r", 9)
    feed = Feed(run)
    before = {"profile": (9, DEFAULT_STEPS[8])}
    assert feed.news(before)["kinds"]["profile"]["steps"] == []
    for step in DEFAULT_STEPS[9:]:
        grow(run, step)
    feed._rest_until = 0.0
    news = feed.news(before)["kinds"]["profile"]
    assert news["steps"] == list(DEFAULT_STEPS[9:])
    table = make_profile_table()
    expected = table["stable_rank"].to_numpy()[-32:]
    np.testing.assert_allclose(unpack(news["arrays"]["stable_rank"]), expected, rtol=2**-13)


def test_news_tell_the_overhead_of_the_newest_snapshot_of_both_kinds(tmp_path):
    run = make_run(tmp_path / "r")
    last = run / "signature" / "step=000000300.parquet"
    table = pq.read_table(last)
    place = table.schema.get_field_index("overhead")
    pq.write_table(table.set_column(place, "overhead", pa.array([0.07] * table.num_rows)), last)
    news = Feed(run).news({"profile": (11, 300), "signature": (11, 300)})
    assert [tile["value"] for tile in news["tiles"] if tile["label"] == "own overhead"] == ["7 %"]


@pytest.mark.parametrize("known", [{}, {"profile": (3, 300)}, {"profile": (99, 300)}, {"signature": (3, 2)}])
def test_a_reader_who_holds_something_else_begins_again(tmp_path, known):
    assert Feed(store_until(tmp_path / "r", 5)).news(known)["reset"] is True


def test_only_this_machine_is_answered(tmp_path):
    with serving(store_until(tmp_path / "r", 3)) as server:
        assert server.server_address[0] == "127.0.0.1"
        for host in ("localhost", "127.0.0.1:9999", "[::1]:8000"):
            assert ask(server, Host=host)[0] == 200
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example:80", "", "[", "10.0.0.1"):
            status, text, _ = ask(server, Host=host)
            assert (status, "snapshot" in text) == (403, False)


def test_nothing_but_two_addresses_and_only_reading(tmp_path):
    with serving(store_until(tmp_path / "r", 3)) as server:
        for path in ("/run.json", "/profile/", "/../../etc/passwd", "/profile/step=000000000.parquet"):
            assert ask(server, path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(server, "/", method)[0] == 501
        status, _, headers = ask(server, "/")
        assert (status, headers["Cache-Control"], headers["X-Frame-Options"]) == (200, "no-store", "DENY")


def test_an_empty_directory_waits_and_a_broken_part_is_said(tmp_path):
    empty = tmp_path / "later"
    empty.mkdir()
    with serving(empty) as server:
        assert "Waiting for the first snapshot" in ask(server, "/")[1]
        assert json.loads(ask(server)[1]) == {"trouble": json.loads(ask(server)[1])["trouble"], "reset": False}
    run = store_until(tmp_path / "r", 3)
    with serving(run) as server:
        assert json.loads(ask(server, "/news.json?profile=3:2")[1])["trouble"] is None
        (run / "profile" / "step=000000500.parquet").write_bytes(b"torn")
        server.feed._rest_until = 0.0
        news = json.loads(ask(server, "/news.json?profile=3:2")[1])
        assert "not a readable Parquet file" in news["trouble"]
        assert news["kinds"]["profile"]["steps"] == []


def test_a_missing_directory_and_a_taken_port_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a directory"):
        serve(tmp_path / "nothing")
    with serve(tmp_path) as server, pytest.raises(OSError, match="choose another with --port"):
        serve(tmp_path, server.server_port)


@pytest.mark.browser
def test_the_page_follows_a_store_that_grows(tmp_path):
    empty = tmp_path / "root"
    empty.mkdir()
    with serving(empty) as server, chromium(tmp_path / "chromium") as browser:
        browser.get(server.address)
        wait(browser, "document.querySelector('#waiting')")
        run = store_until(empty / "r", 3)
        wait(browser, "window.hr === undefined ? document.querySelector('.slider') : true")
        wait(browser, "document.querySelector('.slider')?.max === '2'")
        writer = threading.Thread(target=lambda: [grow(run, step) for step in DEFAULT_STEPS[3:]])
        writer.start()
        wait(browser, "document.querySelector('.slider').max === '10'")
        writer.join()
        assert "step 300" in browser.find_element("css selector", ".step").text
        drawn = browser.execute_script("return hr.kinds.profile.line('stable_rank', 7)")
        np.testing.assert_allclose(drawn, make_profile_table()["stable_rank"].to_numpy()[7::16], rtol=2**-12)
        assert "steps 0 to 300" in browser.find_element("css selector", ".tile .why").text
        assert console_troubles(browser) == []
        assert all(address.startswith(server.address) for address in requests(browser))
