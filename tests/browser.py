"""A headless Chromium for tests of pages; without one on the machine the tests skip."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@contextmanager
def chromium(profile: Path, width: int = 1400, height: int = 1000) -> Iterator[Any]:
    """A driver with a new, empty profile; skips the test where Chromium, its driver or selenium is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium drives the browser tests")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("needs chromium and chromedriver on the path")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(driver, env=_plain_environment())
    browser = webdriver.Chrome(options=options, service=service)
    try:
        yield browser
    finally:
        browser.quit()


def console_troubles(browser: Any) -> list[str]:
    """What the console said since the last call that is worse than information."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]


def requests(browser: Any) -> list[str]:
    """Addresses that pages asked for since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = (m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent")
    return [address for address in sent if not address.startswith(("data:", "blob:", "chrome:", "chrome-extension:"))]


def wait(browser: Any, script: str, seconds: float = 30) -> Any:
    """The first true value of a JavaScript expression."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, seconds, poll_frequency=0.05).until(lambda b: b.execute_script(f"return {script}"))


def _plain_environment() -> dict[str, str]:
    """No proxy: the driver is spoken to on loopback."""
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
