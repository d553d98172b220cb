"""Build the library as a wheel into _build/wheel, from the files in this folder and without the network."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build_wheel(target: Path) -> Path:
    """Write the wheel into ``target`` and return its path."""
    without_network = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", *without_network, "--wheel-dir", str(target), str(ROOT)]
    subprocess.run(command, check=True)
    (wheel,) = target.glob("lessons_lib-*.whl")
    return wheel


def main() -> int:
    """Build the wheel and print its path."""
    target = ROOT / "_build" / "wheel"
    for old in target.glob("*.whl"):
        old.unlink()
    wheel = build_wheel(target)
    print(f"{wheel.relative_to(ROOT)}   (pip install it; pip brings torch and the rest)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
