"""The wheel and the sdist hold everything, callbacks under their public name included."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA_SUFFIXES = {".html", ".css", ".js", ".typed"}

NOT_SOURCE = (".*", "*.egg-info", "build", "dist", "site", "venv", "wandb", "__pycache__", "headwatch-demo")

pytest.importorskip("build", reason="building needs the package 'build'")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that is built from it."""
    source = tmp_path_factory.mktemp("packaging") / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    out = source.parent / "dist"
    command = [sys.executable, "-m", "build", "--no-isolation", "-o", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def installed_names() -> set[str]:
    """What an installation must hold, read off the source tree."""
    trees = ((ROOT / "src" / "headwatch", "headwatch"), (ROOT / "callbacks", "headwatch/callbacks"))
    return {
        f"{prefix}/{path.relative_to(tree).as_posix()}"
        for tree, prefix in trees
        for path in tree.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix in {".py", *DATA_SUFFIXES}
    }


def wheel_of(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


def test_wheel_holds_every_module_and_data_file(dist: Path) -> None:
    with zipfile.ZipFile(wheel_of(dist)) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == installed_names()


def test_wheel_says_what_it_is(dist: Path) -> None:
    with zipfile.ZipFile(wheel_of(dist)) as archive:
        info = {name.split(".dist-info/")[1]: name for name in archive.namelist() if ".dist-info/" in name}
        metadata = archive.read(info["METADATA"]).decode()
        scripts = archive.read(info["entry_points.txt"]).decode()
    assert "licenses/LICENSE" in info
    assert "headwatch = headwatch.cli:main" in scripts
    assert "License-Expression: Apache-2.0" in metadata
    for extra in ("demo", "dashboard", "test", "docs", "all"):
        assert f"Provides-Extra: {extra}\n" in metadata


def test_sdist_holds_what_a_rebuild_and_a_test_run_need(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "callbacks/__init__.py"} <= names
    assert {"tests/test_packaging.py", "tests/no-deps.txt"} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".ckpt")]


def test_installed_wheel_imports_from_its_own_files(dist: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with zipfile.ZipFile(wheel_of(dist)) as archive:
        archive.extractall(target)
    code = "import headwatch, headwatch.callbacks as c; print(headwatch.__file__); print(c.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split()
    assert Path(first) == target / "headwatch" / "__init__.py"
    assert Path(second) == target / "headwatch" / "callbacks" / "__init__.py"


def test_every_package_of_the_source_is_listed() -> None:
    tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    source = ROOT / "src"
    found = {".".join(path.parent.relative_to(source).parts) for path in source.rglob("__init__.py")}
    assert listed == found | {"headwatch.callbacks"}


def test_oldest_packages_of_the_check_are_the_oldest_allowed() -> None:
    tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")
    allowed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    checked = [line for line in (ROOT / ".ci/oldest.txt").read_text().splitlines() if line and not line.startswith("#")]
    oldest = [
        f"{name}=={'.'.join((release + '.0.0').split('.')[:3])}" for name, release in (r.split(">=") for r in allowed)
    ]
    assert sorted(checked) == sorted(
        pin for pin in oldest if not pin.startswith("torch=")
    )  # one build of torch is at hand


def test_versions_agree() -> None:
    import headwatch

    version = headwatch.__version__
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
