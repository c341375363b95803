"""Fifty runs of 1,024 heads: seconds to compare, size of the page, seconds to its first paint and to its heads.

Run by hand: ``python tests/benchmarks/bench_compare.py [runs] [layers] [heads]``.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from browser import chromium, wait
from headwatch.comparison import compare
from headwatch.comparison.page import write_page
from headwatch.comparison.page_data import snapshots_for
from synthetic import make_run

STEPS = [0, 1, 2, 4, 8, 16, 32, 64, *range(100, 2001, 100)]
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def main() -> None:
    """Print the table."""
    n, layers, heads = (int(x) for x in (*sys.argv[1:], 50, 32, 32)[:3]) if len(sys.argv) > 3 else (50, 32, 32)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        runs = [_run(root, i, layers, heads) for i in range(n)]
        start = time.perf_counter()
        comparison = compare(runs, group_by="optimizer.lr")
        compared = time.perf_counter()
        page = write_page(comparison, root / "page.html")
        done = time.perf_counter()
        print(f"{platform.node()}: {n} runs of {layers} × {heads} heads, {len(STEPS)} snapshots")
        print(f"compare            {compared - start:8.1f} s")
        print(f"write the page     {done - compared:8.1f} s")
        print(
            f"page               {page.stat().st_size / 1e6:8.1f} MB, "
            f"{snapshots_for(comparison.records)} snapshots per run"
        )
        _browse(page, root / "profile")


def _run(root: Path, i: int, layers: int, heads: int) -> Path:
    config = {"optimizer": {"lr": 1e-3 if i % 2 else 3e-4}, "seed": i}
    return make_run(root / f"run{i:02d}", layers, heads, STEPS, i, name=f"run {i}", config=config, d_head=64)


def _browse(page: Path, profile: Path) -> None:
    with chromium(profile) as browser:
        start = time.perf_counter()
        browser.get(page.as_uri())
        paint = wait(browser, PAINT)
        wait(browser, "document.querySelector('#overlay .body').dataset.marks")
        print(f"first paint        {paint / 1000:8.2f} s")
        print(f"simplex filled     {time.perf_counter() - start:8.2f} s")
        choose = (
            "const s = document.querySelector('#overlay select'); s.value = '0'; s.dispatchEvent(new Event('change'))"
        )
        start = time.perf_counter()
        browser.execute_script(choose)
        wait(browser, f"document.querySelector('#overlay .body').dataset.marks == '{len(_layer_marks(browser))}'")
        print(f"heads of a layer   {time.perf_counter() - start:8.2f} s")
        start = time.perf_counter()
        browser.execute_script("document.querySelector('#drift details').open = true")
        wait(browser, "document.querySelector('#drift tbody tr')")
        print(f"drift table        {time.perf_counter() - start:8.2f} s")
        one = (
            "const t = performance.now(); const s = document.querySelector('.slider'); s.value = 5;"
            "s.dispatchEvent(new Event('input')); cmp.simplex.at(0); return performance.now() - t"
        )
        print(f"slider to drawing  {browser.execute_script(one):8.0f} ms")


def _layer_marks(browser) -> list[int]:
    return browser.execute_script("return cmp.runs.flatMap((run) => run.layer.filter((layer) => layer === 0))")


if __name__ == "__main__":
    main()
