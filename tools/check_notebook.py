"""Where ``grading/check_notebook.py`` was; goes with the next release."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    print("tools/check_notebook.py has moved, please type: python grading/check_notebook.py", file=sys.stderr)
    moved = Path(__file__).resolve().parents[1] / "grading" / "check_notebook.py"
    runpy.run_path(str(moved), run_name="__main__")
