"""The shell: escaping, its policy, and plain JSON."""

import base64
import hashlib
import json
import re

import numpy as np

from headwatch.page import Section, jsonable, render_page

HOSTILE = "</script><img src=x onerror=document.title='owned'>"


def page(**more) -> str:
    sections = [Section("one", HOSTILE, intro=HOSTILE)]
    return render_page(HOSTILE, sections, subtitle=HOSTILE, data={HOSTILE: HOSTILE}, plotly=False, **more)


def test_hostile_text_never_becomes_an_element():
    html = page(arrays={HOSTILE.replace("'", '"'): np.zeros(3)})
    assert "<img" not in html
    assert html.count("</script>") == html.count("<script")


def test_data_come_back_as_they_were():
    block = re.search(r'<script type="application/json" id="hw-data">(.*?)</script>', page(), re.S).group(1)
    assert json.loads(block) == {HOSTILE: HOSTILE}


def test_the_policy_names_the_hash_of_every_script_and_nothing_else():
    html = page(scripts=["hw.ready(() => {});"])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html).group(1).replace("&#x27;", "'")
    sources = re.findall(r"<script>(.*?)</script>", html, re.S)
    hashes = {base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in sources}
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == hashes
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert "connect-src" not in policy
    assert "connect-src 'self'" in page(live=True).replace("&#x27;", "'")


def test_numbers_of_numpy_and_what_json_has_no_word_for():
    value = {"x": np.array([1.0, np.nan]), "y": (np.int64(2), float("inf")), "z": {1: object}}
    assert jsonable(value) == {"x": [1.0, None], "y": [2, None], "z": {"1": "<class 'object'>"}}
