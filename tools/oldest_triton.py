"""Test the kernels with the oldest Triton that the library supports, in a separate environment.

    python tools/oldest_triton.py

The environment is in ``_build/oldest-triton`` and is created again when its requirements change. Triton has the oldest
version that ``pyproject.toml`` allows; all other packages except NumPy are pinned as in ``requirements.txt``. The tests
are the two lanes of ``tools/run_tests.py --kernels``: every kernel interpreted, and every tile compiled for its
devices. No GPU is needed. ``_build/oldest-triton/bin/python benchmarks/compiled_kernels.py`` records the compilers'
output for each candidate.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "_build" / "oldest-triton"
TESTING = {"hypothesis", "pytest"}
# Triton 3.6's interpreter represents a number as an array with one entry, which NumPy 2.4 no longer accepts as an
# index. Earlier versions warn, and in the tests a warning is an error.
NUMPY = "numpy<2.4"
ALLOWED = {"PYTEST_ADDOPTS": "-W 'ignore:Conversion of an array with ndim:DeprecationWarning'"}


def oldest(root: Path = ROOT) -> str:
    """Return the requirement of the oldest Triton that the extra ``gpu`` allows."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (wanted,) = project["optional-dependencies"]["gpu"]
    return re.sub(r"^triton>=([\d.]+);.*$", r"triton==\1", wanted)


def names(root: Path = ROOT) -> list[str]:
    """Return the names of the packages that the kernels' tests need, without Triton."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return sorted({re.split(r"[<>=~]", wanted)[0] for wanted in project["dependencies"]} | TESTING)


def constraints(root: Path = ROOT) -> list[str]:
    """Return the pins of ``requirements.txt`` with another version of NumPy and without Triton."""
    lines = [line.split("#")[0].strip() for line in (root / "requirements.txt").read_text().splitlines()]
    pins = [line for line in lines if "==" in line and not re.match(r"(numpy|triton)==", line)]
    return [NUMPY, *(re.sub(r"\[.*?\]", "", pin) for pin in pins)]


def ready(folder: Path = FOLDER, root: Path = ROOT) -> Path:
    """Create the environment unless it exists and is current, and return its Python."""
    python, mark = folder / "bin" / "python", folder / "ready.txt"
    inside = "\n".join([sys.version, oldest(root), *names(root), *constraints(root)])
    if mark.exists() and mark.read_text() == inside:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    pinned = folder / "constraints.txt"
    pinned.write_text("\n".join(constraints(root)) + "\n")
    install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*install, "--constraint", str(pinned), *names(root)], check=True)
    # PyTorch's build for CUDA requires its own Triton version, so this one is installed without dependency checks.
    subprocess.run([*install, "--no-deps", oldest(root)], check=True)
    mark.write_text(inside)
    return python


def main() -> int:
    """Create the environment and run the tests in it."""
    if sys.platform != "linux":
        print("oldest_triton.py needs Linux, as Triton does", file=sys.stderr)
        return 1
    python = ready()
    command = [python, "tools/run_tests.py", "--kernels"]
    return subprocess.run(command, cwd=ROOT, env=os.environ | ALLOWED, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
