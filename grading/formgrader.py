"""Show the model answer, its scheme of points and usual remarks in Formgrader, at each answer graded by hand.

They are added when Formgrader shows a notebook and are written to no file. So they are in no feedback, and in nothing
else that a student receives. A model answer is folded and stands above the student's answer. The remarks are buttons
above the comment; a click appends a remark to the comment and saves it.
"""

import tomllib
from html import escape
from pathlib import Path

import nbformat
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution
from traitlets import Unicode

from grading.draw_numbers import course_numbers, drawn
from grading.report import exercise_title
from grading.text_files import read_text

SHOWN_BY_FORMGRADER = "submission_id"  # among the resources of a page of Formgrader, and of no other page
MARKS = ("### BEGIN SOLUTION", "### END SOLUTION")
EVERY = "every"  # the section of remarks for all answers
SCRIPT = """\
<style>
  details.model { border-left: 3px solid #5cb85c; padding-left: 1em; }
  details.model > summary { cursor: pointer; color: #3c763d; display: list-item; }
  .remarks button { margin: 0 4px 4px 0; white-space: normal; text-align: left; }
</style>
<script>
for (const remarks of document.querySelectorAll(".remarks")) {
  const comment = document.getElementById(`${remarks.dataset.cell}-comment`);
  comment?.parentElement.prepend(remarks);
  for (const button of remarks.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      comment.value = [comment.value.trim(), button.dataset.text].filter(Boolean).join("\\n\\n");
      comment.dispatchEvent(new Event("change", { bubbles: true }));
      window.autosize?.update(comment);
    });
  }
}
</script>"""


class AddModelAnswers(Preprocessor):
    """A preprocessor of Formgrader's pages, listed in ``nbgrader_config.py``; it leaves every other page unchanged."""

    course = Unicode("", help="the folder with source/ and remarks.toml").tag(config=True)

    def preprocess(self, nb, resources):
        """Insert a cell above each answer that is graded by hand, and one with the script at the end."""
        name = resources.get("notebook_id")
        master = Path(self.course) / "source" / str(resources.get("assignment_id")) / f"{name}.ipynb"
        if SHOWN_BY_FORMGRADER not in resources or not master.is_file():
            return nb, resources
        numbers = course_numbers(Path(self.course) / "course.toml")
        models = model_answers(drawn(nbformat.read(master, as_version=4), str(resources["assignment_id"]), numbers))
        remarks = {}
        try:
            remarks = read_remarks(Path(self.course) / "remarks.toml", str(resources["assignment_id"]))
        except ValueError as error:
            self.log.warning("There are no remarks: %s", error)
        cells = []
        for cell in nb.cells:
            if is_graded_by_hand(cell) and (graded := cell.metadata.nbgrader.grade_id) in models:
                text = folded(models[graded]) + buttons(graded, remarks.get(graded, []) + remarks.get(EVERY, []))
                cells.append(nbformat.v4.new_markdown_cell(text))
            cells.append(cell)
        nb.cells = [*cells, nbformat.v4.new_markdown_cell(SCRIPT)]
        return nb, resources


def is_graded_by_hand(cell: NotebookNode) -> bool:
    """Return whether a person gives the points of this cell."""
    return is_grade(cell) and is_solution(cell)


def model_answers(master: NotebookNode) -> dict[str, list[NotebookNode]]:
    """Return the cells of the model answer to each question that is graded by hand.

    These are the solved cells of the exercise from the previous graded cell on: an answer in words may follow code.
    """
    found: dict[str, list[NotebookNode]] = {}
    solved: list[NotebookNode] = []
    for cell in master.cells:
        if exercise_title(cell):
            solved = []
        solved += [cell] if is_solution(cell) else []
        if is_graded_by_hand(cell):
            found[cell.metadata.nbgrader.grade_id] = solved
        solved = [] if is_grade(cell) else solved
    return found


def folded(model: list[NotebookNode]) -> str:
    """Return Markdown with a model answer that is shown after a click."""
    texts = [f"```python\n{_code(cell)}\n```" if cell.cell_type == "code" else cell.source for cell in model]
    answer = "\n\n".join(texts)
    return f'<details class="model"><summary>Model answer and points</summary>\n\n{answer}\n\n</details>\n\n'


def buttons(graded: str, remarks: list[str]) -> str:
    """Return HTML with a button for each remark, empty if there is none."""
    some = (
        f'<button type="button" class="btn btn-default btn-xs" data-text="{_plain(r)}">{_plain(r)}</button>'
        for r in remarks
    )
    return f'<div class="remarks" data-cell="{escape(graded)}">{"".join(some)}</div>' if remarks else ""


def read_remarks(path: Path, assignment: str) -> dict[str, list[str]]:
    """Return the remarks of an assignment by the names of its cells, and those for all answers under ``every``.

    Without the file there are none.

    Raises:
        ValueError: if the file is not well formed.
    """
    if not path.is_file():
        return {}
    table = tomllib.loads(read_text(path))
    sections = {name: table.get(name, {}) for name in (assignment, EVERY)}
    for section, answers in sections.items():
        for name, some in answers.items() if isinstance(answers, dict) else [("", answers)]:
            if not isinstance(some, list) or not all(isinstance(text, str) for text in some):
                raise ValueError(f"{path.name}, [{section}]: {name} must be a list of texts")
    return sections[assignment] | {EVERY: [text for some in sections[EVERY].values() for text in some]}


def _code(cell: NotebookNode) -> str:
    return "\n".join(line for line in cell.source.splitlines() if line.strip() not in MARKS)


def _plain(text: str) -> str:
    """Return text for HTML in one line, in which Markdown finds no formula; MathJax still does."""
    return escape(" ".join(text.split())).replace("$", "&#36;")
