"""Lay down the files of a new chapter: notebook, master, checks and their answers, and its place in the contents.

    python tools/new_chapter.py attention/my-chapter
    python tools/new_chapter.py applications/my-chapter "Elsewhere"    # the first chapter of a new part

What is laid down runs, and passes the tests that every chapter must pass, except what only its author can decide.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = Path("assignments/source/header.ipynb")
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

TITLE = """\
# TITLE: the question or the claim

:::{admonition} In short
:class: in-short
Three to five sentences that answer the title, and its one formula. No number here comes from the run.

$$
\\operatorname{Var}(x_i) = 1
$$
:::"""
IMPORTS = """\
import torch
from lessons_lib.page import drawings, plots, table
from lessons_lib.page.guess import predict_number
from lessons_lib.page.notebook import glue
%config InlineBackend.figure_formats = ["svg"]
SEED = 0; torch.manual_seed(SEED);"""
# The opening, and one section of the core, which a chapter repeats three to six times: name, kind, metadata, text.
CORE = (
    (
        "explorer-text",
        "markdown",
        {},
        "**Try it:** one sentence that says what to move. (Below: an explorer, or a drawing until there is one.)",
    ),
    (
        "explorer",
        "code",
        {"mystnb": {"figure": {"caption": "What to see, in one sentence.", "name": "fig-NAME-first"}}},
        "drawings.attention_steps()",
    ),
    (
        "times",
        "markdown",
        {},
        "<!-- times --> **You need:** what comes before. The symbols are listed under [Notation](../notation.md).",
    ),
    (
        "idea-question",
        "markdown",
        {},
        "## A question that somebody would type into a search box?\n\nWhat the reader wants to know, in sixty words.",
    ),
    (
        "idea-guess",
        "code",
        {"tags": ["remove-input"]},
        'guess = predict_number("How widely does it spread?", 0.1, 10, log=True)',
    ),
    ("idea-experiment", "code", {}, "x = torch.randn(10_000)  # the smallest experiment that answers it"),
    (
        "idea-table",
        "code",
        {"tags": ["hide-input"]},
        'glue("spread", x.std(), ".2f")\ntable({"10 000 entries": x.std()}, ["standard deviation"], ".2f")',
    ),
    ("idea-reveal", "code", {"tags": ["remove-input"]}, "guess.reveal(x.std())"),
    (
        "idea-claim",
        "markdown",
        {},
        "The standard deviation is {glue:text}`spread`.\n\n**Theorem.** Symbols, shapes and assumptions.\n\n"
        "$$\n\\operatorname{Var}(x_i) = 1\n$$ (eq-NAME)\n\n*Proof.* A short one. $\\blacksquare$",
    ),
    (
        "idea-naive",
        "code",
        {},
        "y = torch.tensor([[1.0, 2, 3], [0, 1, 0]])  # the equation, typed as it stands\n"
        "torch.testing.assert_close(y.var(-1), y.std(-1) ** 2)  # and the same by the library",
    ),
    (
        "idea-figure",
        "code",
        {
            "mystnb": {
                "figure": {"caption": "What to see, in one sentence.", "name": "fig-NAME"},
                "image": {"alt": "What the figure shows, for those who do not see it."},
            }
        },
        'plots.histogram(x, xlabel="entry");',
    ),
    ("idea-check", "code", {"tags": ["hide-cell"]}, "assert (2 * x).std() > 1.5  # an effect, with a margin"),
    ("idea-answer", "markdown", {}, "**So:** the sentence that answers the heading, without a number from the run."),
)
REMEMBER = """\
## Remember

:::{container} remember
* The first thing to remember, with [a link to its section](#a-question-that-somebody-would-type-into-a-search-box).
* The second thing, with [a link](#a-question-that-somebody-would-type-into-a-search-box).
* The third thing, with [a link](#a-question-that-somebody-would-type-into-a-search-box).
:::"""
EXERCISES = """\
## Exercises

They are in a notebook of their own, with hints and with checks that name the likely mistake: \
[exercises on TITLE](../exercises/NAME/NAME.ipynb).

1. A claim to derive. *Paper, ★☆☆, 10 minutes.*
2. A function to complete. *Code with a check, ★☆☆, 20 minutes.*
3. An open question. *Open, ★★★, 60 minutes.*"""
DEEPER = """\
## Going deeper

### A topic

One sentence that says what this topic shows.

A topic has 100 to 1,000 words. The page folds it to its heading and its first sentence."""
CLAIMS = """\
## Claims you will meet

| what is said | what holds |
|---|---|
| What one reads elsewhere | [half true](#a-question-that-somebody-would-type-into-a-search-box): if |"""
SOURCES = """\
## Sources

* [1] Vaswani et al., *Attention Is All You Need*, 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762)."""

OPENING = """\
# Exercises: TITLE

They belong to [the chapter on TITLE](../../PART/NAME.ipynb). Three exercises, 12 points, about an hour and a half.

Work from top to bottom. A cell with `check` tells you at once whether your answer holds, and if it does not, often \
why; an exercise not yet done shows an error there, and the cells after it still run. When the work is graded, the \
same checks meet other inputs."""
ASKED = """\
## Exercise {number}. {title}

*{kind} · difficulty {stars} · {minutes} minutes · {points} points*

What is asked.

<details>
<summary>Hint</summary>

What helps without giving it away.

</details>"""
SOLUTION = '''\
def twice(n):
    """Return twice n."""
    ### BEGIN SOLUTION
    return 2 * n
    ### END SOLUTION'''
HIDDEN = """\
# Other inputs, when the work is graded.
### BEGIN HIDDEN TESTS
check.twice(twice, seed=41017, cases=20)
### END HIDDEN TESTS"""
OPEN = """\
### BEGIN SOLUTION
possible_experiment = torch.randn(100).std()
### END SOLUTION"""

CHECKS = '''\
"""Checks of the exercises on TITLE."""

from collections.abc import Callable

import torch

from lessons_lib.checks import ask, check, compare_number


@check
def twice(answer: Callable[[int], int], *, seed: int = 0, cases: int = 5) -> None:
    """Check that a number is doubled."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(cases):
        n = int(torch.randint(3, 1000, (), generator=generator))
        got, mistakes = ask("twice", answer, n, where=f"n={n}"), {"that is the square": n**2}
        compare_number("twice", got, 2 * n, mistakes, where=f"n={n}")
'''
ANSWERS = '''\
"""Answers to the exercises on TITLE: right ones in any style, wrong ones with what they must be told."""

import torch

from lessons_lib.checks import MODULE as check

RIGHT = {check.twice: [lambda n: 2 * n, lambda n: n + n, lambda n: float(2 * n), lambda n: torch.tensor(2 * n)]}

WRONG = {
    check.twice: [
        (lambda n: n * n, "that is the square"),
        (lambda n: 2 * n + 1, ", wanted "),
        (lambda n: 2 * n - 1, ", wanted "),
        (lambda n: n, ", wanted "),
        (lambda n: n / 2, ", wanted "),
        (lambda n: 2, "twice is 2, wanted "),
        (lambda n: -2 * n, "twice is -"),
        (lambda n: str(2 * n), "must be a number, got str"),
        (lambda n: [2 * n], "must be a number, got list"),
        (lambda n: torch.tensor([2 * n]), "a tensor must have shape"),
    ]
}
'''
REMAINS = """\
What remains, besides the words and the numbers in these files:
  book/instructors.md      its row in the table is there; give it a week in the syllabuses of 8 and of 12 weeks
  book/explorers.ipynb     show its explorer there too, if it has one (lessons_lib/page/widgets, CONTRIBUTING.md)
  book/_ext/gallery.py     its question for the card on the first page; in thumbnails.py a drawing, or the card is plain
  make assignments         whenever the master has changed
Then: make test-quick, and make test."""


def lay_down(place: str, caption: str = "", root: Path = ROOT) -> list[Path]:
    """Write the files of the chapter ``PART/NAME`` and its lines in the contents; return the files, as seen from root.

    A part that has no chapters yet needs a caption, and comes after those that have.

    Raises:
        ValueError: if the place is not of that form, the part has no chapters and no caption is given, or has some and
            one is given, or the name is taken.
    """
    if not re.fullmatch(r"[a-z]+/[a-z]+(-[a-z0-9]+)*", place):
        raise ValueError(f"the place must read PART/NAME, in small letters and hyphens, got {place!r}")
    part, name = place.split("/")
    module = name.replace("-", "_")
    contents = with_chapter((root / "_toc.yml").read_text(encoding="utf-8"), part, name, caption)
    page = (root / "book/instructors.md").read_text(encoding="utf-8")
    texts = {
        f"book/{place}.ipynb": notebook(chapter(install_line(root))),
        f"assignments/source/{name}/{name}.ipynb": notebook(master()),
        f"lessons_lib/checks/{module}.py": CHECKS,
        f"tests/checks/answers/{module}.py": ANSWERS,
    }
    taken = [path for path in (*texts, *root.glob(f"book/*/{name}.ipynb")) if (root / path).exists()]
    if taken:
        raise ValueError(f"the name must be new, got {name!r}, and there is {Path(taken[0])}")
    words = {"TITLE": name.replace("-", " "), "NAME": name, "PART": part, "MODULE": module}
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        filled = re.sub("TITLE|NAME|PART|MODULE", lambda found: words[found[0]], text)
        (root / path).write_text(filled, encoding="utf-8")
    (root / "_toc.yml").write_text(contents, encoding="utf-8")
    row = f"| [{words['TITLE']}: the question or the claim]({place}.ipynb) | 5 | 3 | 90 | 12 |\n"
    (root / "book/instructors.md").write_text(with_row(page, row), encoding="utf-8")
    return [*map(Path, texts), Path("_toc.yml"), Path("book/instructors.md")]


def with_chapter(contents: str, part: str, name: str, caption: str = "") -> str:
    """The table of contents with the chapter after the last one of its part, or in a new part after the others."""
    lines = contents.splitlines(keepends=True)
    chapters = [at for at, line in enumerate(lines) if line.startswith(f"      - file: book/{part}/")]
    if bool(chapters) == bool(caption):
        had = "has chapters" if chapters else "has none"
        rule = "the part must be one that has chapters in _toc.yml, or come with a caption for a new one"
        raise ValueError(f"{rule}, got {part!r}, which {had}, and caption {caption!r}")
    numbered = [at for at, line in enumerate(lines) if line.startswith("    numbered:")]
    end = (chapters or numbered)[-1] + (1 if chapters else 2)
    while end < len(lines) and lines[end].startswith("        " if chapters else "      "):
        end += 1
    title = name.replace("-", " ").capitalize()  # the part of the page's own heading before the colon
    page = f"      - file: book/{part}/{name}\n        title: {title}\n"
    exercises = f"        sections:\n          - file: book/exercises/{name}/{name}\n"
    new = f"  - caption: {caption}\n    numbered: 1\n    chapters:\n" if caption else ""
    return "".join([*lines[:end], new, page, exercises, *lines[end:]])


def with_row(page: str, row: str) -> str:
    """The instructors' page with the row after those of the other chapters, before the longer assignments."""
    (table,) = re.findall(r"<!-- chapters -->\n((?:\|.*\n)+)", page)
    rows = table.splitlines(keepends=True)
    end = next(at for at, line in enumerate([*rows, "longer assignment"]) if "longer assignment" in line)
    return page.replace(table, "".join([*rows[:end], row, *rows[end:]]))


def install_line(root: Path) -> str:
    """The cell that installs the library on Colab, as every notebook opens with it."""
    (cell,) = json.loads((root / HEADER).read_text(encoding="utf-8"))["cells"]
    return "".join(cell["source"])


def chapter(install: str) -> list[dict]:
    """The cells of the chapter."""
    return [
        cell("title", "markdown", TITLE),
        cell("colab", "code", install, tags=["remove-cell"]),
        cell("imports", "code", IMPORTS),
        *(cell(name, kind, text, **metadata) for name, kind, metadata, text in CORE),
        cell("remember", "markdown", REMEMBER),
        cell("exercises", "markdown", EXERCISES),
        cell("deeper", "markdown", DEEPER),
        cell("claims", "markdown", CLAIMS),
        cell("sources", "markdown", SOURCES),
    ]


def master() -> list[dict]:
    """The cells of the master: one exercise on paper, one in code, one open."""
    asked = [
        ASKED.format(number=number, title=title, kind=kind, stars=stars, minutes=minutes, points=points)
        for number, title, kind, stars, minutes, points in (
            (1, "A claim to derive", "On paper", "★☆☆", 10, 3),
            (2, "A hole to fill", "Code", "★☆☆", 20, 3),
            (3, "A question of your own", "Open", "★★★", 60, 6),
        )
    ]
    setup = "import torch\nfrom lessons_lib.checks import MODULE as check"
    return [
        graded("title", "markdown", OPENING, locked=True),
        graded("setup", "code", setup, locked=True),
        graded("paper-text", "markdown", asked[0], locked=True),
        graded("paper", "markdown", "The model answer.\n\n*Points:* 3 for it.", points=3, solution=True),
        graded("twice-text", "markdown", asked[1], locked=True),
        graded("twice", "code", SOLUTION, solution=True),
        graded("twice-check", "code", "check.twice(twice)", locked=True, points=2, tags=["raises-exception"]),
        graded("twice-graded", "code", HIDDEN, locked=True, points=1, tags=["raises-exception"]),
        graded("open-text", "markdown", asked[2], locked=True),
        graded("open", "code", OPEN, solution=True, tags=["raises-exception"]),
        graded("open-answer", "markdown", "*A possible answer.*\n\n*Points:* 6 for it.", points=6, solution=True),
    ]


def graded(
    name: str,
    kind: str,
    text: str,
    *,
    locked: bool = False,
    solution: bool = False,
    points: int | None = None,
    **metadata,
) -> dict:
    """A cell that nbgrader knows."""
    about = {"cell_type": kind, "grade": points is not None, "grade_id": name, "locked": locked}
    about |= {} if points is None else {"points": points}
    about |= {"schema_version": 3, "solution": solution, "task": False}
    return cell(name, kind, text, nbgrader=about, **metadata)


def cell(name: str, kind: str, text: str, **metadata) -> dict:
    """A cell without outputs."""
    run = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": name, "metadata": metadata, **run, "source": text.splitlines(keepends=True)}


def notebook(cells: list[dict]) -> str:
    """The notebook as the repository keeps it."""
    whole = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main(place: str, caption: str = "") -> int:
    """Lay the files down, write the student notebook from the master, and say what remains."""
    try:
        written = lay_down(place, caption)
    except ValueError as error:
        print(f'usage: make chapter NAME=attention/my-chapter [PART="New part"]\n{error}', file=sys.stderr)
        return 1
    from release_assignments import release

    name = place.split("/")[1]
    release(name)
    print(*written, Path("book/exercises", name, f"{name}.ipynb"), sep="\n")
    print(REMAINS)
    return 0


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:3] or [""])))
