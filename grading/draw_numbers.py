r"""Draw the numbers of questions on paper when an assignment is released, so that they change from year to year.

A master may have a code cell tagged ``numbers``, which calls ``pick`` and computes what the model answers need::

    heads = pick(32, 16, 64)  # the first value is the book's; a course gets one of the others
    width = pick(128, 64)
    entries = heads * width

In its Markdown cells, ``{{heads}}`` and ``{{entries}}`` are then replaced by the values. A whole number of five digits
or more is grouped as the text around it demands, ``41\,943\,040`` in a formula and ``41 943 040`` outside. A text is
inserted as it is, so that the cell can format a value itself. The cell is not part of the hand-out.

A course chooses its numbers by a line above the first section of ``course.toml``, such as ``numbers = 2027``. This
number is not the secret seed of the checks, because students see what is drawn from it. Without it a course has the
numbers of the book.
"""

import copy
import random
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Integer

from grading.text_files import read_text

TAG = "numbers"
KEY = "numbers"  # in course.toml
FORMULA = re.compile(r"(\$\$.*?\$\$|\$[^$\n]+\$)", re.DOTALL)
PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
GROUPED_FROM = 10_000


def course_numbers(rules: Path) -> int:
    """Return the number in ``course.toml`` from which a course's numbers are drawn, or 0 for those of the book.

    Raises:
        ValueError: if it is not a whole number from 0 up.
    """
    if not rules.is_file():
        return 0
    numbers = tomllib.loads(read_text(rules)).get(KEY, 0)
    if isinstance(numbers, bool) or not isinstance(numbers, int) or numbers < 0:
        raise ValueError(f"{rules.name}: {KEY} must be a whole number from 0 up, such as a year, got {numbers!r}")
    return numbers


def picker(name: str, numbers: int) -> Callable[..., Any]:
    """Return the function ``pick`` of an assignment: the book's value for 0, else one of the others at random."""
    generator = random.Random(f"{name} {numbers}")

    def pick(book: Any, *others: Any) -> Any:
        return generator.choice(others) if numbers and others else book

    return pick


def drawn(notebook: NotebookNode, name: str, numbers: int = 0) -> NotebookNode:
    """Return a master with its numbers filled in and without the cell that draws them.

    Raises:
        ValueError: if the master has several such cells, or a text asks for a number that the cell does not define.
    """
    cells = [cell for cell in notebook.cells if TAG in cell.metadata.get("tags", [])]
    if not cells:
        return notebook
    if len(cells) > 1:
        raise ValueError(f"the master of {name} must have one cell tagged {TAG}, got {len(cells)}")
    values: dict[str, Any] = {"pick": picker(name, numbers)}
    exec(cells[0].source, values)  # a cell of the master, not of a student
    notebook = copy.deepcopy(notebook)
    notebook.cells = [cell for cell in notebook.cells if TAG not in cell.metadata.get("tags", [])]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            try:
                cell.source = filled(cell.source, values)
            except KeyError as error:
                raise ValueError(
                    f"the master of {name}: {cell.metadata.nbgrader.grade_id} asks for the number {error}, "
                    f"which the cell tagged {TAG} does not define"
                ) from error
    return notebook


def filled(text: str, values: dict[str, Any]) -> str:
    r"""Return Markdown with its placeholders replaced by values.

    >>> filled("{{n}} tokens, $2 \\cdot {{n}}$", {"n": 32768})
    '32 768 tokens, $2 \\cdot 32\\,768$'

    Raises:
        KeyError: if there is no value of that name.
    """
    parts = FORMULA.split(text)
    return "".join(
        PLACEHOLDER.sub(lambda found, gap=(" ", r"\,")[i % 2]: written(values[found[1]], gap), part)
        for i, part in enumerate(parts)
    )


def written(value: Any, gap: str) -> str:
    """Return a value as text: whole numbers in groups of three digits, others with up to six digits.

    >>> written(1234, " "), written(98304, " "), written(1.125, " "), written("2^{19}", " ")
    ('1234', '98 304', '1.125', '2^{19}')
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}".replace(",", gap) if abs(value) >= GROUPED_FROM else f"{value}"
    return f"{value:g}" if isinstance(value, float) else f"{value}"


class DrawNumbers(NbGraderPreprocessor):
    """The first preprocessor of nbgrader's release step, listed in ``nbgrader_config.py``."""

    numbers = Integer(0, help="from which the numbers are drawn; 0: those of the book").tag(config=True)

    def preprocess(self, nb, resources):
        """Fill in the numbers of the questions on paper."""
        return drawn(nb, resources["nbgrader"]["assignment"], self.numbers), resources
