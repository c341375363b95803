"""What imports what: an import of headwatch is cheap, and rooms only know the rooms below them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "headwatch"
LIGHTNING = {"lightning", "pytorch_lightning"}
OPTIONAL = LIGHTNING | {"matplotlib", "plotly", "wandb", "transformers", "pandas", "polars", "scipy"}
MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))

# Who may import what, anywhere in the file (prefixes of paths under src/headwatch).
ALLOWED = {
    "pytorch_lightning": ("demo/",),
    "lightning": (),
    "transformers": (),
    "wandb": ("sinks/wandb.py", "dashboard", "comparison/artifact.py", "demo/"),
    "wandb_workspaces": ("dashboard",),
    "plotly": ("figures/", "report/", "comparison/", "page/"),
    "matplotlib": ("figures/", "report/", "comparison/", "page/"),
}


def imported(path: Path) -> set[str]:
    """Top-level names that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def modules_after(statement: str) -> set[str]:
    """Top-level modules that a new interpreter has loaded after the statement."""
    code = f"{statement}; import sys; print(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_of_headwatch_loads_no_optional_package() -> None:
    assert modules_after("import headwatch") & OPTIONAL == set()


def test_import_of_the_callbacks_adds_only_torch_and_ours_to_what_lightning_loads() -> None:
    lightning = modules_after("import torch, pytorch_lightning, lightning.pytorch")
    assert (modules_after("import headwatch.callbacks") - lightning) & OPTIONAL == set()


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_what_its_room_may(module: str) -> None:
    names = imported(SOURCE / module)
    wrong = [name for name, rooms in ALLOWED.items() if name in names and not module.startswith(rooms)]
    assert wrong == []


def test_callbacks_import_headwatch_by_its_full_name() -> None:
    relative = [
        f"{path.name}:{node.lineno}"
        for path in (ROOT / "callbacks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_only_tests_and_examples_know_transformers() -> None:
    users = [path.name for path in (ROOT / "callbacks").rglob("*.py") if "transformers" in imported(path)]
    assert users == []
