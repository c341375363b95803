"""The comparison's page in a real browser: slider, play, hover, sort, filter, legend; hostile names; themes; size."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest

from browser import chromium, console_troubles, requests, wait
from headwatch.comparison import compare
from headwatch.comparison.page import page_html
from headwatch.page import unpack
from synthetic import make_run

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>%{y}${title}"
MODULE = "h.{layer}.<svg onload=window.hacked=1>"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    names = [HOSTILE, "quick", "slow", "other"]
    lr = [1e-3, 1e-3, 1e-4, 1e-4]
    paths = [
        make_run(
            root / f"r{i}",
            seed=min(i, 2),
            name=names[i],
            module=MODULE,
            speed=1 + i,
            config={"lr": lr[i], "seed": min(i, 2)},
        )
        for i in range(4)
    ]
    big = make_run(
        root / "big", n_layers=2, n_heads=6, seed=9, name="big", config={"lr": 1e-4, "seed": 9, "<b>k</b>": HOSTILE}
    )
    return compare(
        [*paths, big, root / "<img src=x onerror=window.hacked=1>"], group_by="lr", output=root / "page.html"
    )


@pytest.fixture(scope="module")
def browser(comparison, tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def page(browser, comparison):
    browser.get(comparison.output.as_uri())
    wait(browser, "document.querySelector('#overlay .body').dataset.marks === '76'")
    return browser


pytestmark = pytest.mark.browser


def test_nothing_hostile_runs_and_nothing_is_fetched(page, comparison):
    assert not page.execute_script("return window.hacked")
    assert page.execute_script("return document.querySelectorAll('main img, main svg[onload], main b').length") == 0
    assert HOSTILE in page.execute_script("return document.querySelector('#run-table').textContent")
    assert HOSTILE in page.execute_script("return document.querySelector('#config').textContent")
    assert console_troubles(page) == []
    assert [address for address in requests(page) if not address.startswith("file:")] == []
    assert page.execute_script("return document.getElementById('hw-trouble').hidden")


def test_slider_moves_the_heads_and_says_where_it_stands(page):
    end = page.execute_script("return cmp.simplex.at(0)")
    page.execute_script("const s = document.querySelector('.slider'); s.value = 0; s.dispatchEvent(new Event('input'))")
    start = page.execute_script("return cmp.simplex.at(0)")
    assert np.hypot(*np.subtract(start, end)) > 5
    assert page.execute_script("return document.querySelector('.step').textContent") == "step 0"


def test_play_runs_to_the_end_and_pauses(page):
    click = "document.querySelector('.play').click()"
    page.execute_script(click)
    wait(page, "document.querySelector('.slider').value === '3'")
    page.execute_script(click)
    stopped = page.execute_script("return document.querySelector('.slider').value")
    time.sleep(0.6)
    assert page.execute_script("return document.querySelector('.slider').value") == stopped
    assert page.execute_script("return document.querySelector('.play').textContent") == "▶ play"


def test_hover_names_run_head_and_module(page):
    from selenium.webdriver.common.action_chains import ActionChains

    canvas = page.find_element("css selector", "canvas.simplex")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    x, y = page.execute_script("return cmp.simplex.at(20)")
    size = canvas.size
    ActionChains(page).move_to_element_with_offset(canvas, x - size["width"] / 2, y - size["height"] / 2).perform()
    text = wait(page, "!document.getElementById('hw-tip').hidden && document.getElementById('hw-tip').innerText")
    run, head, step, numbers = text.split("\n")
    assert run in (HOSTILE, "quick", "slow", "other", "big")
    assert re.match(r"L\d\d\.H\d\d · ", head)
    assert step == "step 300"
    assert numbers.startswith("a 0.")


def test_legend_hides_a_run_everywhere(page):
    shown = (
        "[...document.querySelectorAll('#bands .legend button[data-run]')].map((b) => b.getAttribute('aria-pressed'))"
    )
    page.execute_script("document.querySelector('#overlay .legend button[data-run=\"1\"]').click()")
    assert page.execute_script(f"return {shown}") == ["true", "false", "true", "true", "true"]
    assert page.execute_script("return Number.isNaN(cmp.simplex.at(16)[0])")
    page.execute_script("document.querySelector('#overlay .legend button[data-run=\"1\"]').click()")
    assert page.execute_script("return cmp.simplex.at(16)[0] > 0")


def test_axis_of_loss_lines_runs_up(page):
    page.execute_script(
        "const offers = (s) => [...s.options].some((o) => o.value === 'loss');"
        "const s = [...document.querySelectorAll('#overlay select')].find(offers);"
        "s.value = 'loss'; s.dispatchEvent(new Event('change'))"
    )
    assert page.execute_script("return document.querySelector('.step').textContent").startswith("loss ")


def test_drift_table_sorts_and_filters(page, comparison):
    rows = "[...document.querySelectorAll('#drift tbody tr')].map((tr) => [...tr.children].map((td) => td.textContent))"
    wait(page, "document.querySelector('#drift tbody tr')")
    first = page.execute_script(f"return {rows}")
    drifts = [float(row[3]) for row in first]
    assert drifts == sorted(drifts, reverse=True)
    assert drifts[0] == pytest.approx(max(comparison.drift["drift"].to_pylist()), rel=5e-3)
    page.execute_script("document.querySelector('#drift th[data-key=stable_rank_end] button').click()")
    ranks = [float(row[7]) for row in page.execute_script(f"return {rows}")]
    assert ranks == sorted(ranks, reverse=True)
    page.execute_script(
        "const f = document.querySelector('#drift input[type=search]'); f.value = 'quick L02 stable_rank_end<1000';"
        "f.dispatchEvent(new Event('input'))"
    )
    found = page.execute_script(f"return {rows}")
    assert len(found) == 4
    assert {(row[0], row[1][:3]) for row in found} == {("quick", "L02")}


def test_a_wide_table_scrolls_in_its_own_box(page):
    size = page.get_window_size()
    page.set_window_size(1200, 900)
    try:
        page.execute_script("document.getElementById('drift').scrollIntoView()")
        wait(page, "document.querySelector('#drift tbody tr')")
        root = "document.documentElement"
        assert page.execute_script(f"return [{root}.scrollWidth, {root}.clientWidth]") == [1200, 1200]
        box = "document.querySelector('#drift .scroll')"
        assert page.execute_script(f"return getComputedStyle({box}).overflowX") == "auto"
        assert page.execute_script(f"return {box}.getBoundingClientRect().right") < 1200
    finally:
        page.set_window_size(size["width"], size["height"])


def test_drift_table_holds_the_tables_numbers(page, comparison):
    wait(page, "document.querySelector('#drift tbody tr')")
    steps = comparison.records[1].drift["left_null_step"].to_pylist()
    packed = page.execute_async_script("hw.array('drift-steps-1').then((a) => arguments[0]([...a]))")
    assert [None if x is None else int(x) for x in packed[:16]] == steps


def test_a_picked_head_names_its_partners(page):
    wait(page, "document.querySelector('#drift tbody tr')")
    page.execute_script("cmp.picked.set({run: 2, head: 5})")  # seed 2, as run 3
    said = wait(page, "document.querySelector('#overlay p.note').textContent")
    assert said.startswith("slow L01.H01")
    page.execute_script("cmp.picked.set({run: 4, head: 0})")
    wait(page, "document.querySelector('#overlay p.note').textContent.includes('no partner in other runs')")


def test_charts_are_drawn_with_groups_as_curves_and_bands(page):
    page.execute_script("document.querySelector('#bands').scrollIntoView()")
    wait(page, "document.querySelector('#bands .chart').dataset.drawn")
    names = page.execute_script(
        "return document.querySelector('#bands .chart').data.map((t) => [t.name ?? '', t.fill ?? ''])"
    )
    assert [name for name, fill in names if not fill] == ["0.001 (2 runs)", "0.0001 (3 runs)"]
    assert sum(fill == "toself" for _, fill in names) == 2


def test_matching_groups_and_signatures_are_there(page):
    assert "matched by" in page.execute_script("return document.querySelector('#matching').textContent")
    page.execute_script("document.querySelector('#matching details').open = true")
    wait(page, "document.querySelectorAll('#matching details tbody tr').length > 10")
    assert page.execute_script("return document.querySelectorAll('#groups tbody tr').length") == 7
    page.execute_script("document.querySelector('#signatures').scrollIntoView()")
    wait(page, "document.querySelector('#signatures .chart').dataset.drawn")
    assert page.execute_script("return document.querySelectorAll('#signatures tbody tr').length") == 6


def test_light_and_dark(page):
    colour = "getComputedStyle(document.body).backgroundColor"
    before = page.execute_script(f"return {colour}")
    page.execute_script("document.getElementById('hw-theme').click()")
    after = page.execute_script(f"return {colour}")
    page.execute_script("document.getElementById('hw-theme').click()")
    assert before != after


def test_packed_profiles_are_the_stores_to_three_digits(comparison):
    html = comparison.output.read_text()
    packed = re.search(r'data-name="pi-1">([^<]*)<', html)[1]
    sent = unpack(packed).reshape(-1, 16, 3)
    pi = comparison.records[1].trajectories.pi()
    np.testing.assert_allclose(sent, np.stack([pi[..., 0] - 0.5, pi[..., 2], pi[..., 3]], -1), rtol=1e-3, atol=1e-7)


def test_text_of_names_cannot_close_an_element(comparison):
    html = comparison.output.read_text()
    assert "<script>window.hacked" not in html
    assert "<img src=x" not in html
    data = re.search(r'id="hw-data">(.*?)</script>', html, re.S)[1]
    assert json.loads(data)["runs"][0]["name"] == HOSTILE


def test_page_is_whole_or_not_written(comparison, tmp_path, monkeypatch):
    from headwatch.comparison import page

    def fail(_):
        raise RuntimeError("no")

    monkeypatch.setattr(page, "page_html", fail)
    with pytest.raises(RuntimeError):
        page.write_page(comparison, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
    assert page_html(comparison).startswith("<!doctype html>")
