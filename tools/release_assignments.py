"""Write book/exercises from the masters in assignments/source: solutions and hidden tests removed."""

from pathlib import Path

from nbgrader.apps import NbGraderAPI
from tqdm import tqdm
from traitlets.config.loader import PyFileConfigLoader

ASSIGNMENTS = Path(__file__).resolve().parents[1] / "assignments"
EXERCISES = ASSIGNMENTS.parent / "book" / "exercises"


def release(name: str, into: Path = EXERCISES) -> None:
    """Write what students get of one master.

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


def main() -> None:
    """Release every master; stop at the first that is not well formed."""
    for name in tqdm(sorted(path.parent.name for path in (ASSIGNMENTS / "source").glob("*/*.ipynb")), unit="notebook"):
        release(name)


if __name__ == "__main__":
    main()
