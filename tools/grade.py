"""Where ``python -m grading`` was; goes with the next release."""

import sys

from grading.__main__ import main

if __name__ == "__main__":
    print("tools/grade.py has moved, please type: python -m grading", file=sys.stderr)
    sys.exit(main())
