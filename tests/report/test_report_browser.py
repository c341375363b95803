"""The report in headless Chromium: everything that a reader can press."""

import math
import time

import numpy as np
import pytest

from browser import chromium, console_troubles, requests, wait
from headwatch.report import write_report
from headwatch.run import load
from synthetic import make_run

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">{layer}"
READY = "document.documentElement.dataset.ready === 'yes'"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("store") / "r1")


@pytest.fixture(scope="module")
def opened(browser, run):
    browser.get(write_report(run).as_uri())
    wait(browser, READY)
    return browser


@pytest.fixture
def page(opened):
    """The page as it was when it was opened, but for the words in its controls."""
    browser = opened
    browser.execute_script(
        "hr.player.show(10); hr.hidden.set(new Set()); hr.picked.set(new Set());"
        "hr.colouring.set('type'); hr.layerFilter.set('all'); window.scrollTo(0, 0)"
    )
    yield browser
    assert console_troubles(browser) == []
    assert browser.find_element("id", "hw-trouble").is_displayed() is False


def place(page, head: int) -> list[float]:
    return page.execute_script(f"return hr.simplexView.at({head})")


def scroll_to(page, section: str) -> None:
    page.execute_script(f"document.getElementById('{section}').scrollIntoView()")
    wait(page, f"[...document.querySelectorAll('#{section} .chart')].slice(0, 1).every((c) => c.dataset.drawn)")


def column_of(page, index: int) -> list[str]:
    rows = "[...document.querySelectorAll('#heads tbody tr')]"
    return page.execute_script(f"return {rows}.map((row) => row.children[{index}].textContent)")


def drive(page, x: float, y: float, element) -> "object":
    from selenium.webdriver import ActionChains

    size = element.size
    return ActionChains(page).move_to_element_with_offset(element, x - size["width"] / 2, y - size["height"] / 2)


def test_it_asks_for_nothing_but_itself(page):
    for section in ("simplex", "trajectories", "maps", "loss", "signatures", "rank-and-peak", "heads"):
        scroll_to(page, section)
    assert {address.split("#")[0] for address in requests(page)} == {page.current_url.split("#")[0]}


def test_the_slider_moves_heads_to_the_places_of_their_profiles(page, run):
    profiles = np.stack([load(run).profile[key].to_numpy() for key in "abcd"], -1).reshape(11, 16, 4)
    page.execute_script("const s = document.querySelector('.slider'); s.value = 0; s.dispatchEvent(new Event('input'))")
    start = np.array([place(page, i) for i in range(16)])
    page.execute_script("hr.player.show(10)")
    end = np.array([place(page, i) for i in range(16)])
    # An affine map takes (b, c, d) to the screen: the same one at both ends.
    points = np.concatenate([profiles[0], profiles[-1]])
    screen = np.concatenate([start, end])
    _, gap, rank, _ = np.linalg.lstsq(points, screen, rcond=None)
    assert rank == 4
    assert np.all(gap < 0.5)
    assert np.linalg.norm(end - start, axis=1).max() > 50


def test_play_runs_to_the_end_and_stops(page):
    page.execute_script("hr.player.show(8)")
    page.find_element("css selector", ".play").click()
    wait(page, "!hr.player.playing() && hr.player.at() === 10")
    assert page.find_element("css selector", ".play").text.endswith("play")
    assert "step 300" in page.find_element("css selector", ".step").text


def test_hover_names_a_head_and_click_marks_it_everywhere(page):
    scroll_to(page, "simplex")
    canvas = page.find_element("css selector", "canvas.simplex")
    drive(page, *place(page, 5), canvas).perform()
    tip = page.find_element("id", "hw-tip").text
    assert "stable rank" in tip
    label = tip.split()[0]
    drive(page, *place(page, 5), canvas).click().perform()
    assert page.execute_script("return [...hr.picked.get()]") == [label]
    assert page.find_element("css selector", "tr.picked td").get_property("textContent") == label


def test_drag_and_keys_turn_the_simplex(page):
    scroll_to(page, "simplex")
    before = place(page, 3)
    canvas = page.find_element("css selector", "canvas.simplex")
    drive(page, 40, 40, canvas).click_and_hold().move_by_offset(120, 30).release().perform()
    dragged = place(page, 3)
    canvas.send_keys("\ue014")  # arrow to the right
    assert math.dist(before, dragged) > 5
    assert math.dist(dragged, place(page, 3)) > 1


def test_colour_switch_and_legend(page):
    scroll_to(page, "simplex")
    choice = page.find_element("css selector", "#simplex select")
    choice.send_keys("layer")
    entries = page.find_elements("css selector", "#simplex .legend button")
    assert [entry.text for entry in entries] == ["L00", "L01", "L02", "L03"]
    entries[1].click()
    assert np.isnan([x if x is not None else np.nan for x in place(page, 4)]).all()
    assert place(page, 0)[0] is not None
    assert page.find_elements("css selector", "#simplex .legend button")[1].get_attribute("aria-pressed") == "false"


def test_sorting_and_filtering_the_table(page):
    scroll_to(page, "heads") if page.find_elements("css selector", "#heads .chart") else None
    head = page.find_element("css selector", "th[data-key='stable_rank'] button")
    column = page.execute_script(
        "return [...document.querySelectorAll('#heads th')].findIndex((c) => c.dataset.key === 'stable_rank')"
    )

    def values() -> list[float]:
        return [float(text) for text in column_of(page, column)]

    page.execute_script("arguments[0].click()", head)
    assert values() == sorted(values(), reverse=True)
    page.execute_script("arguments[0].click()", head)
    assert values() == sorted(values())
    assert page.find_element("css selector", "th[data-key='stable_rank']").get_attribute("aria-sort") == "ascending"
    everything = values()
    page.find_element("css selector", "#heads input[type=search]").send_keys("L02 stable_rank<2")
    assert all(value < 2 for value in values())
    labels = column_of(page, 0)
    assert labels
    assert all(label.startswith("L02") for label in labels)
    assert len(labels) < len(everything)


def test_trajectories_follow_the_choice_of_metric_and_layer(page, run):
    scroll_to(page, "trajectories")
    chart = "document.querySelector('#trajectories .chart')"
    assert page.execute_script(f"return {chart}.data.length") == 16
    selects = page.find_elements("css selector", "#trajectories select")
    selects[0].send_keys("distance to")
    selects[2].send_keys("L01")
    wait(page, f"{chart}.data.length === 4 && {chart}.layout.yaxis.title.text.startsWith('distance')")
    table = load(run).profile
    rows = (table["layer"].to_numpy() == 1) & (table["head"].to_numpy() == 2)
    drawn = page.execute_script(f"return {chart}.data[2].y")
    np.testing.assert_allclose(drawn, table["theta_distance"].to_numpy()[rows], rtol=2**-12)
    assert "starts near 0 because M" in page.find_element("css selector", "#trajectories .note").text


def test_charts_name_what_lies_under_the_pointer(page):
    scroll_to(page, "rank-and-peak")
    chart = "document.querySelector('#rank-and-peak .chart')"
    page.execute_script(f"Plotly.Fx.hover({chart}, [{{curveNumber: 0, pointNumber: 0}}])")
    wait(page, "document.querySelector('#rank-and-peak .hovertext')?.textContent.includes('stable rank')")


def test_light_and_dark(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.execute_script(f"return {ground}")
    page.execute_script("window.scrollTo(0, 0)")
    page.find_element("id", "hw-theme").click()
    assert page.execute_script(f"return {ground}") != before
    page.find_element("id", "hw-theme").click()
    assert page.execute_script(f"return {ground}") == before


def test_no_button_sends_a_chart_anywhere(page):
    scroll_to(page, "trajectories")
    buttons = "[...document.querySelectorAll('.modebar-btn')]"
    titles = page.execute_script(f"return {buttons}.map((button) => button.dataset.title ?? '')")
    assert titles
    assert not [title for title in titles if "loud" in title or "hare" in title]


def test_hostile_names_do_nothing(browser, tmp_path):
    run = make_run(
        tmp_path / "r",
        2,
        2,
        name=HOSTILE,
        module=HOSTILE,
        flags=HOSTILE,
        config={HOSTILE: HOSTILE},
        info={"messages": [HOSTILE]},
    )
    browser.get(write_report(run).as_uri())
    wait(browser, READY)
    for section in ("simplex", "trajectories", "maps", "heads", "run"):
        browser.execute_script(f"document.getElementById('{section}').scrollIntoView()")
    wait(browser, "[...document.querySelectorAll('#trajectories .chart')].every((chart) => chart.dataset.drawn)")
    drive(browser, *place(browser, 1), browser.find_element("css selector", "canvas.simplex")).perform()
    assert "<img src=x" in browser.find_element("id", "hw-tip").text
    assert browser.title != "owned"
    assert browser.find_elements("css selector", "img[src=x]") == []
    assert console_troubles(browser) == []


def test_missing_numbers_are_dashes(browser, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headwatch.sinks.parts import list_parts

    run = make_run(tmp_path / "r", 2, 2, signatures=False)
    for part in list_parts(run / "profile"):
        table = pq.read_table(part.path)
        for field in table.schema:
            if pa.types.is_floating(field.type) and field.name != "loss":
                values = [None, *table[field.name].to_pylist()[1:]]
                table = table.set_column(table.schema.get_field_index(field.name), field, pa.array(values, field.type))
        pq.write_table(table, part.path)
    browser.get(write_report(run).as_uri())
    wait(browser, READY)
    row = browser.find_element("css selector", "#heads tbody tr[data-row='0']").get_property("textContent")
    assert "–" in row
    assert "NaN" not in browser.find_element("tag name", "body").text
    assert [x for x in place(browser, 0) if x is not None and not math.isnan(x)] == []
    assert console_troubles(browser) == []


def test_a_snapshot_without_profiles_says_so(browser, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    run = make_run(tmp_path / "r", 2, 2, signatures=False)
    last = run / "profile" / "step=000000300.parquet"
    table = pq.read_table(last)
    for name in ("a", "b", "c", "d", "stable_rank"):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.nulls(table.num_rows, pa.float64()))
    pq.write_table(table, last)
    browser.get(write_report(run).as_uri())
    wait(browser, READY)
    said = "[...document.querySelectorAll('#simplex .absent, #maps .absent')].map((p) => p.textContent)"
    simplex, rank, position = browser.execute_script(f"return {said}")
    assert (
        simplex == "No head has a profile at step 300; see the flags in the table of heads. All had one up to step 200."
    )
    assert rank.startswith("No head has a value of “stable rank” at step 300")
    assert position == ""
    browser.execute_script("hr.player.show(9)")
    assert browser.execute_script(f"return {said}") == ["", "", ""]
    assert not browser.find_element("css selector", "#simplex .absent").is_displayed()
    assert console_troubles(browser) == []


def test_a_big_run_stays_light_and_usable(browser, tmp_path):
    run = make_run(tmp_path / "r", 32, 32, steps=range(0, 20000, 100), separate_parts=False)
    path = write_report(run)
    size = path.stat().st_size / 1e6
    assert size < 15
    browser.get(path.as_uri())
    wait(browser, READY, 120)
    paint = browser.execute_script("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
    ready = browser.execute_script("return performance.now()")
    wait(browser, "document.querySelector('#simplex .chart').dataset.drawn", 120)
    start = time.perf_counter()
    browser.execute_script("hr.player.show(50)")
    place(browser, 0)
    print(f"{size:.1f} MB; seconds to first paint {paint / 1e3:.2f}, to use {ready / 1e3:.2f},", end=" ")
    print(f"for a step of the slider {time.perf_counter() - start:.2f}")
    assert browser.execute_script("return document.querySelectorAll('#heads tbody tr').length") == 50
    assert console_troubles(browser) == []
