"""Write the model answers and schemes of points of each assignment into _build/solutions: NAME.html, without network.

For teaching assistants who grade: a page has the questions, the answers and the points of every graded cell. Nothing is
run; ``make book-solutions`` builds the whole book with its exercises solved and run.
"""

import re
import sys
from html import escape
from pathlib import Path

import nbformat
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from runs import BUILD, ROOT
from typeset_page import self_contained, to_html

sys.path.append(str(ROOT))
from grading.draw_numbers import course_numbers, drawn  # isort: skip

MASTERS = ROOT / "assignments" / "source"
FORMAT = HtmlFormatter(nowrap=True, noclasses=True, style="default")
MARKS = re.compile(r"^\s*### (?:BEGIN|END) (?:SOLUTION|HIDDEN TESTS)\n?", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!http)[^)]*\)")
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Model answers: {name}</title>
<style>
  body {{ max-width: 48rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 Georgia, "DejaVu Serif", serif; }}
  h1, h2, .label {{ font-family: system-ui, sans-serif; line-height: 1.2; }}
  h2 {{ margin-top: 3rem; border-top: 1px solid; padding-top: 1rem; }}
  .label {{ margin: 0 0 0.5rem; font-weight: 600; }}
  .answer {{ margin: 1rem 0; padding: 0.75rem 1rem; border-left: 4px solid #0072b2; background: #f4f6f8; }}
  .points {{ color: #48566b; }}
  pre {{ overflow-x: auto; font: 0.875rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap; }}
  table {{ border-collapse: collapse; }} th, td {{ padding: 0.2rem 0.8rem; border: 1px solid #c5ccd3; }}
  @media print {{ .answer {{ break-inside: avoid; }} }}
</style>
</head>
<body>
<p><strong>Not for students.</strong> Model answers and schemes of points.</p>
{body}
</body>
</html>
"""


def solutions(notebook: nbformat.NotebookNode, name: str) -> str:
    """Return the page of an assignment, given its master; formulas are TeX."""
    return PAGE.format(name=escape(name), body="\n".join(map(block, notebook.cells)))


def block(cell: nbformat.NotebookNode) -> str:
    """Return one cell of a master: text, an answer with its points, or the points of a check."""
    about = cell.metadata.nbgrader
    label = f"<p class='label'>{label_of(cell)}</p>\n" if about.solution or about.grade else ""
    if cell.cell_type == "markdown":
        text = to_html(LINK.sub(r"\1", cell.source)).replace("<details>", "<details open>")
    else:
        text = f"<pre>{highlight(MARKS.sub('', cell.source), PythonLexer(), FORMAT)}</pre>"
    if about.solution:
        return f'<div class="answer" id="{about.grade_id}">\n{label}{text}</div>'
    return f'<div class="points">\n{label}{text}</div>' if about.grade else text


def label_of(cell: nbformat.NotebookNode) -> str:
    """Return what a cell is, for a person who grades, with its points."""
    about = cell.metadata.nbgrader
    points = f", {points_of(about.points)}" if about.grade else ""
    if about.solution:
        return f"Model answer <code>{about.grade_id}</code>{points}"
    return f"Check <code>{about.grade_id}</code>{points}, graded by machine"


def points_of(points: float) -> str:
    """Return a number of points in words.

    >>> points_of(1), points_of(2.0), points_of(0.5)
    ('1 point', '2 points', '0.5 points')
    """
    return "1 point" if points == 1 else f"{points:g} points"


def write_solutions(target: Path) -> list[Path]:
    """Write the pages of all assignments, with this course's numbers, into ``target``; return their paths."""
    numbers = course_numbers(MASTERS.parent / "course.toml")
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for master in sorted(MASTERS.glob("*/*.ipynb")):
        notebook = drawn(nbformat.read(master, as_version=4), master.stem, numbers)
        page = solutions(notebook, master.stem)
        written.append(target / f"{master.stem}.html")
        written[-1].write_text(self_contained(page), encoding="utf-8")
    return written


def main() -> int:
    """Write the pages and print their folder."""
    written = write_solutions(BUILD / "solutions")
    print(f"{(BUILD / 'solutions').relative_to(ROOT)}: {len(written)} pages with model answers, not for students")
    return 0


if __name__ == "__main__":
    sys.exit(main())
