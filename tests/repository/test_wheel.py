"""Tests of the library's wheel: its content, its requirements, and its use without the repository."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from files import listed

ROOT = Path(__file__).resolve().parents[2]
LIVE = """
import importlib, pkgutil, lessons_lib
for module in pkgutil.walk_packages(lessons_lib.__path__, "lessons_lib."):
    if module.name.rpartition(".")[2] not in {"autograd", "block_mask_kernels", "triton_kernels"}:  # these need triton
        importlib.import_module(module.name)
from lessons_lib.training import datasets
from lessons_lib.page import widgets
assert all(len(datasets.load(name).values) for name in datasets.NAMES)
pages = [widgets.TemperatureExplorer(scores=[1.0, 2.0]).to_html(), widgets.HeadsExplorer().to_html()]
assert all("<script>" in page and "<style" in page for page in pages)
print(lessons_lib.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed: requirements.txt names it")
    from build_wheel import build_wheel

    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def empty(tmp_path_factory) -> Path:
    """The Python of a new environment that uses this environment's packages, but not the library.

    A ``.pth`` file adds this environment's packages. The ``.pth`` files in there, which would add the library, are not
    read.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = {Path(path) for path in folder.rglob("site-packages")}
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([python, "-I", *arguments], cwd=python.parent, capture_output=True, text=True, check=False)


def test_wheel_contains_exactly_the_librarys_files(wheel):
    files = {name for name in listed(ROOT, new=True) if name.startswith("lessons_lib/")}
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == files
    assert {Path(name).suffix for name in inside} >= {".py", ".js", ".css", ".xz", ".csv"}


def test_wheel_requires_the_declared_dependencies(wheel):
    (metadata,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA")]
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = re.findall(r"^Requires-Dist: ([\w-]+)\S*$", text, re.MULTILINE)
    assert sorted(asked) == sorted(re.split("[<>=]", want)[0] for want in project["dependencies"])
    assert f"\nVersion: {project['version']}\n" in text


def test_wheel_works_without_the_repository(wheel, empty):
    assert "No module named 'lessons_lib'" in run(empty, "-c", "import lessons_lib").stderr
    without_network = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    pip = [sys.executable, "-m", "pip", "--python", empty, "install", *without_network, wheel]
    subprocess.run(pip, check=True)
    alive = run(empty, "-c", LIVE)
    assert alive.returncode == 0, alive.stderr
    assert Path(alive.stdout.strip()).is_relative_to(empty.parents[1])


def test_the_changelog_begins_with_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest, state = re.findall(r"^## (\S+) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert version == (f"{newest}.dev0" if state == "unreleased" else newest)
    assert state == "unreleased" or re.fullmatch(r"\d{4}-\d\d-\d\d", state)
