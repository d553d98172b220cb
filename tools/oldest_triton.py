"""Test the kernels with the oldest Triton that the library takes, in an environment of its own.

    python tools/oldest_triton.py

The environment lies in ``_build/oldest-triton`` and is made anew when what belongs into it changes. Triton is the
oldest that ``pyproject.toml`` allows, the rest is as pinned in ``requirements.txt``, but for NumPy. The tests are the
two lanes of ``tools/run_tests.py --kernels``: every kernel interpreted, and every tile compiled for its devices. No GPU
is needed. What the compilers say of each candidate is written down by
``_build/oldest-triton/bin/python benchmarks/compiled_kernels.py``.
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
# Triton 3.6 interprets a number as an array with one entry, which NumPy 2.4 has stopped taking for an index; the ones
# before warn, and in the tests a warning is an error.
NUMPY = "numpy<2.4"
ALLOWED = {"PYTEST_ADDOPTS": "-W 'ignore:Conversion of an array with ndim:DeprecationWarning'"}


def oldest(root: Path = ROOT) -> str:
    """The oldest Triton that the extra ``gpu`` allows, as pip takes it."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (wanted,) = project["optional-dependencies"]["gpu"]
    return re.sub(r"^triton>=([\d.]+);.*$", r"triton==\1", wanted)


def names(root: Path = ROOT) -> list[str]:
    """The packages that the kernels' tests need, without Triton."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return sorted({re.split(r"[<>=~]", wanted)[0] for wanted in project["dependencies"]} | TESTING)


def constraints(root: Path = ROOT) -> list[str]:
    """The version of every package that is pinned, NumPy's and Triton's changed."""
    lines = [line.split("#")[0].strip() for line in (root / "requirements.txt").read_text().splitlines()]
    pins = [line for line in lines if "==" in line and not re.match(r"(numpy|triton)==", line)]
    return [NUMPY, *(re.sub(r"\[.*?\]", "", pin) for pin in pins)]


def ready(folder: Path = FOLDER, root: Path = ROOT) -> Path:
    """Make the environment unless it is there already, and return its Python."""
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
    # PyTorch's build for CUDA asks for its own Triton, so this one is put in its place without a question.
    subprocess.run([*install, "--no-deps", oldest(root)], check=True)
    mark.write_text(inside)
    return python


def main() -> int:
    """Make the environment; run the tests in it."""
    if sys.platform != "linux":
        print("oldest_triton.py needs Linux, as Triton does", file=sys.stderr)
        return 1
    python = ready()
    command = [python, "tools/run_tests.py", "--kernels"]
    return subprocess.run(command, cwd=ROOT, env=os.environ | ALLOWED, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
