"""Write the student notebooks, without solutions and hidden tests, from the masters in assignments/source.

The notebooks in book/exercises are committed pages of the book and install the newest library. The notebooks in
assignments/hand-outs are for students and install the commit from which they were made. (assignments/release is
written by grading, which compares submissions with it.)
"""

import shutil
from pathlib import Path

from nbgrader.apps import NbGraderAPI
from pin_library import pin_all
from tqdm import tqdm
from traitlets.config.loader import PyFileConfigLoader

ASSIGNMENTS = Path(__file__).resolve().parents[1] / "assignments"
EXERCISES = ASSIGNMENTS.parent / "book" / "exercises"
HAND_OUTS = ASSIGNMENTS / "hand-outs"


def release(name: str, into: Path = EXERCISES) -> None:
    """Write the student notebook of one master.

    Raises:
        ValueError: if the master is not well formed; the message is nbgrader's log.
    """
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ASSIGNMENTS)).load_config()
    config.CourseDirectory.release_directory = str(into)
    config.GenerateAssignment.no_database = True  # the gradebook is for grading
    config.SaveCells.enabled = False
    done = NbGraderAPI(config=config).generate_assignment(name)
    if not done["success"]:
        raise ValueError(f"the master of {name} is not well formed:\n{done.get('log', '')}{done.get('error', '')}")


def hand_out(released: Path = EXERCISES, into: Path = HAND_OUTS) -> str:
    """Copy the released notebooks to the folder ``into`` and pin the library; return a notice or an empty string."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(released, into, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    return pin_all(into)


def main() -> None:
    """Release every master, and stop at the first that is not well formed."""
    for name in tqdm(sorted(path.parent.name for path in (ASSIGNMENTS / "source").glob("*/*.ipynb")), unit="notebook"):
        release(name)
    if notice := hand_out():
        print(notice)
    root = ASSIGNMENTS.parent
    print(f"To hand out to students: {HAND_OUTS.relative_to(root)}")
    print(f"To commit: what has changed in {ASSIGNMENTS.relative_to(root)}/source and {EXERCISES.relative_to(root)}")


if __name__ == "__main__":
    main()
