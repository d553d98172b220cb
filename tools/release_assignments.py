"""Write book/exercises from the masters in assignments/source: solutions and hidden tests removed."""

import subprocess
import sys
from pathlib import Path

ASSIGNMENTS = Path(__file__).resolve().parents[1] / "assignments"


def main() -> None:
    """Release every master; nbgrader stops at the first that is not well formed."""
    nbgrader = Path(sys.executable).with_name("nbgrader")
    for folder in sorted(path.parent for path in (ASSIGNMENTS / "source").glob("*/*.ipynb")):
        command = [nbgrader, "generate_assignment", folder.name, "--no-db", "--force"]
        subprocess.run(command, cwd=ASSIGNMENTS, check=True)


if __name__ == "__main__":
    main()
