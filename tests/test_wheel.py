"""The library as a wheel: everything that belongs to it and nothing else, alive where only the wheel was installed."""

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

ROOT = Path(__file__).resolve().parents[1]
LIVE = """
import importlib, pkgutil, lessons_lib
for module in pkgutil.walk_packages(lessons_lib.__path__, "lessons_lib."):
    if module.name.rpartition(".")[2] not in {"launch", "triton_kernels"}:  # these need triton
        importlib.import_module(module.name)
from lessons_lib import datasets, widgets
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
    """The Python of a new environment that finds what the library needs, but not the library, in this one.

    A folder that a ``.pth`` file names is searched, but its own ``.pth`` files, which lead here, are not read.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = {Path(path) for path in folder.rglob("site-packages")}
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([python, "-I", *arguments], cwd=python.parent, capture_output=True, text=True, check=False)


def test_it_holds_the_library_s_files_and_nothing_else(wheel):
    files = {name for name in listed(ROOT, new=True) if name.startswith("lessons_lib/")}
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == files
    assert {Path(name).suffix for name in inside} >= {".py", ".js", ".css", ".xz", ".csv"}


def test_it_asks_for_what_the_users_ranges_say(wheel):
    (metadata,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA")]
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = re.findall(r"^Requires-Dist: ([\w-]+)\S*$", text, re.MULTILINE)
    assert sorted(asked) == sorted(re.split("[<>=]", want)[0] for want in project["dependencies"])
    assert f"\nVersion: {project['version']}\n" in text


def test_it_works_where_nothing_else_of_the_repository_is(wheel, empty):
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
