"""Write the student notebooks, without solutions and hidden tests, from the masters in assignments/source.

The notebooks in book/exercises are committed pages of the book and install the newest library. The notebooks in
assignments/hand-outs are for students and install the commit from which they were made. (assignments/release is
written by grading, which compares submissions with it.)
"""

import shutil
import sys
from pathlib import Path

from nbgrader.apps import NbGraderAPI
from pin_library import pin_all
from tqdm import tqdm
from traitlets.config.loader import PyFileConfigLoader

sys.path.append(str(Path(__file__).resolve().parents[1]))
from grading.draw_numbers import course_numbers  # isort: skip

ASSIGNMENTS = Path(__file__).resolve().parents[1] / "assignments"
EXERCISES = ASSIGNMENTS.parent / "book" / "exercises"
HAND_OUTS = ASSIGNMENTS / "hand-outs"


def release(name: str, into: Path = EXERCISES, numbers: int = 0) -> None:
    """Write the student notebook of one master, with the numbers of the book or those drawn from ``numbers``.

    Raises:
        ValueError: if the master is not well formed; the message is nbgrader's log.
    """
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ASSIGNMENTS)).load_config()
    config.CourseDirectory.release_directory = str(into)
    config.DrawNumbers.numbers = numbers
    config.GenerateAssignment.no_database = True  # the gradebook is for grading
    config.SaveCells.enabled = False
    done = NbGraderAPI(config=config).generate_assignment(name)
    if not done["success"]:
        raise ValueError(f"the master of {name} is not well formed:\n{done.get('log', '')}{done.get('error', '')}")


def hand_out(released: Path = EXERCISES, into: Path = HAND_OUTS, numbers: int = 0) -> str:
    """Copy the released notebooks to the folder ``into`` and pin the library; return a notice or an empty string.

    If the course has numbers of its own, the masters are released again, with these.
    """
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(released, into, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for name in (path.parent.name for path in into.glob("*/*.ipynb")) if numbers else ():
        release(name, into, numbers)
    return pin_all(into)


def main() -> None:
    """Release every master, and stop at the first that is not well formed."""
    for name in tqdm(sorted(path.parent.name for path in (ASSIGNMENTS / "source").glob("*/*.ipynb")), unit="notebook"):
        release(name)
    numbers = course_numbers(ASSIGNMENTS / "course.toml")
    if notice := hand_out(numbers=numbers):
        print(notice)
    root = ASSIGNMENTS.parent
    if numbers:
        print(f"The hand-outs have the numbers of this course ({numbers}), the pages those of the book.")
    print(f"To hand out to students: {HAND_OUTS.relative_to(root)}")
    print(f"To commit: what has changed in {ASSIGNMENTS.relative_to(root)}/source and {EXERCISES.relative_to(root)}")


if __name__ == "__main__":
    main()
