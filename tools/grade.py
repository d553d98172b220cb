"""Where ``python -m grading`` was; goes with the next release."""

import runpy
import sys

if __name__ == "__main__":
    print("tools/grade.py has moved, please type: python -m grading", file=sys.stderr)
    runpy.run_module("grading", run_name="__main__", alter_sys=True)
