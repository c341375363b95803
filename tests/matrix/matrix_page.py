"""The matrix as a page: ``python tests/matrix/matrix_page.py`` trains every cell and writes ``docs/matrix.md``."""

import platform
import re
import sys
import tempfile
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "matrix.md"
HEAD = """# What a Trainer can be asked to do

Every row is a training of a small decoder, once without headwatch and once with both monitors (profiles every 5 steps,
signatures every 4, both also at steps 1 and 2). What was seen is written here by `tests/matrix/matrix_page.py`; the
tests train every row again and compare it with this page.

- **steps**: optimizer steps made.
- **profiles**, **signatures**: steps in the store. Each due step is there once, with every head once.
- **training**: *bit-identical* when losses, weights, optimizer state, random states and the number of compiled graphs
  are those of the training without headwatch.
- **run**: how `run.json` says that it ended, and how the heads were found.
"""
COLUMNS = ("option", "steps", "profiles", "signatures", "training", "run", "remarks")


def row(cell, seen):
    """What was seen of one cell, as a line of the table."""
    others = [
        f"{name}: {_numbers(steps)}" for name, steps in seen.steps.items() if name not in ("profile", "signature")
    ]
    cells = (
        cell.option,
        str(seen.global_steps[-1] if seen.global_steps else 0),
        *(_numbers(seen.steps.get(name, [])) for name in ("profile", "signature")),
        "bit-identical" if seen.identical else "changed",
        f"{seen.status}, {seen.heads}" if seen.runs else "nothing is written",
        "; ".join(filter(None, (*others, seen.note))),
    )
    return _line(cells)


def rows(page):
    """Lines of the tables of a page, without their heads."""
    lines = re.findall(r"^\| .*\|$", page, flags=re.MULTILINE)
    return [line for line in lines if line != _line(COLUMNS)]


def _line(cells):
    return f"| {' | '.join(cells)} |"


def _numbers(steps):
    return " ".join(map(str, steps)) or "–"


def _section(title, cells, seen):
    table = [_line(COLUMNS), "|---" * len(COLUMNS) + "|", *(row(cell, seen[cell.option]) for cell in cells)]
    return "\n".join((f"## {title}", "", *table, ""))


def _versions():
    import pytorch_lightning
    import torch

    return (
        f"Seen with PyTorch {torch.__version__}, Lightning {pytorch_lightning.__version__}, Python "
        f"{platform.python_version()}, on a CPU.\n"
    )


def main():
    """Train every cell and write the page."""
    import torch
    from cells import CELLS, SECTIONS

    seen = {}
    for cell in CELLS:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen[cell.option] = cell.run(Path(folder), cell)
            torch.use_deterministic_algorithms(False)
        print(row(cell, seen[cell.option]), flush=True)
    sections = [_section(title, cells, seen) for title, cells in SECTIONS.items()]
    PAGE.write_text("\n".join((HEAD, _versions(), *sections)), encoding="utf-8")


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent / "callbacks")]
    main()
