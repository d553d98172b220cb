"""Test tools/code_words.py: it finds the texts that reach functions of lessons_lib.page, and no others."""

import ast
import json
import re

import pytest
from code_words import ROOT, Shown, messages_of_checks, texts_of_drawings, words_of_library, words_of_notebook
from dependencies import parsed

HEAD = "from lessons_lib.page import drawings, glue, plots, predict, table\n"


def shown(code: str) -> list[str]:
    return Shown(parsed([HEAD + code])).messages()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('predict("How many?", ["one", "two"])', ["How many?", "one", "two"]),
        ('table({"row one": x}, ["score"], ".2f", of="weights")', ["row one", "score", "weights"]),
        ('rows = {"one row": 1}\nrows["two rows"] = 2\ntable(rows, [])', ["one row", "two rows"]),
        ('columns = ["mean"]\ncolumns += ["median"]\ntable(rows, columns)', ["mean", "median"]),
        ('table({f"width {d}, by {f(a + b)}": 1 for d in x}, [])', ["width {d}, by {value}"]),
        ('table({f"pair {i + 1} of {i}": 1}, [])', ["pair {i} of {i_2}"]),
        ('ways = {"no mask": 1}\ntable({f"{name}, late": row for name, row in ways.items()}, [])',
         ["no mask", "{name}, late"]),
        ('plots.lines(x, dict(zip(["first", "last"], y)), xlabel="step")', ["first", "last", "step"]),
        ('plots.lines(x, dict(first=1), xlabel="step").set(ylim=(0, 1))', ["first", "step"]),
        ('labels = {"xlabel": "step"}\nplots.lines(x, y, **labels)', ["step"]),
        ('def named(kind):\n    return f"{kind} head"\n\ntable({named("sharp"): 1}, [])', ["{kind} head", "sharp"]),
        ('for name in ("before", "after"):\n    rows[name] = 1\ntable(rows, [])', ["before", "after"]),
        ('drawings.masks({"causal": mask})', ["causal"]),
        ('glue("spread", "about half")', ["about half"]),
        ('share = "small" if x else "large"\nglue("share", share)', ["small", "large"]),
        ('runs = read("file.json")\nsure = runs["one head"]\ntable(runs, [])', ["one head"]),
        ('names = ["old"]\nnames = [*names, "new"]\ntable(zip(names, x), [])', ["old", "new"]),
        ('predict("{" + "} keys", [1, 2])', ["}} keys"]),
    ],
)  # fmt: skip
def test_messages_are_the_texts_that_are_shown(code, expected):
    assert shown(code) == expected


@pytest.mark.parametrize(
    "code",
    [
        'glue("spread", x, ".2f")',
        'table(rows, [], ".2f")\nresults["a name"] = 1',
        'for name, power in (("root", 1), ("width", 2)):\n    glue(f"by_{name}", power)',
        'name = "first use"\nprint(name)\nname = 3\nglue("x", name)',
        'rows = {"a": f(x, mode="a mode")}\ntable(rows, [])',
        'table({"1/√d": 0.5, "$d_k$": 1}, ["q · k"])',
        'results["a name"]\ntable(rows, [])',
        'print("some words")\nassert x, "other words"',
    ],
)
def test_texts_that_are_not_shown_are_no_messages(code):
    assert shown(code) == []


def test_messages_are_the_same_in_every_run():
    path = ROOT / "book/attention/scaling.ipynb"
    first = words_of_notebook(path)
    assert len(first) > 100
    assert all(words_of_notebook(path) == first for _ in range(3))
    for text in ("divided by √d", "width {d}, factor {name}", "entropy, share of ln 64", "Adam, {f}", "nothing"):
        assert text in first


def test_words_of_library_are_those_of_drawings_guesses_and_plots():
    found = words_of_library()
    for text in ("Guess first.", "{told}.", "yes", "density", "key", "number of terms added", "query {i}", "softmax"):
        assert text in found
    assert [text for text in found if text.startswith("<") or text.endswith("_labels") or "must be" in text] == []


def test_texts_of_drawings_leave_out_errors_and_roles():
    code = '''
def draw(n):
    """Draw a row of words."""
    if n == "no words":
        raise ValueError(f"n must be positive, got {n}")
    d = Sketch(10, 10, alt=f"A row of {n} words.")
    d.text((1, 1), f"$x_{n}$ of " + "all words", anchor="middle")
    d.box(1, 1, 1, 1, "box", role="query")
'''
    tree = ast.parse(code)
    tree.body[0].body = tree.body[0].body[1:]  # type: ignore[attr-defined]
    assert [*texts_of_drawings(tree)] == ["A row of {n} words.", "$x_{n}$ of ", "all words", "box"]


CHECKS = '''
"""A docstring."""
NOT_FIRST = "the queries are the last"

@check
def rotate(answer, *, returns: str = "it"):
    """Another docstring."""
    where = f"{kind}, shape {tuple(x.shape)}, base={base:.3g}" + (f", window {w}" if "wide window" in kind else "")
    got = ask("rotate", answer, where=where, returns="the pair")
    cause = "subtract the maximum" + hint(kind)
    assert got == "no words", f"rotate is not finite: {cause} ({where})"
    mistakes = {NOT_FIRST: rearrange(x, "b n (two d) -> b (two d) n"), "the base is "
        "ignored": RotaryEmbedding(pairing="half" if wide else "next ones")(x)}
    compare(name, got, mistakes, where=f"d_k={d_k}, d_model={d_model}")

def hint(kind):
    return ", not its mean" if kind.startswith("one score") else " first"
'''
MESSAGES = """the queries are the last
it
{kind}, shape {value}, base={base}{value}
window {w}
the pair
subtract the maximum{value}
rotate is not finite: {cause} ({where})
the base is ignored
not its mean
 first"""


def test_messages_of_checks_are_their_texts_without_names_and_code(tmp_path):
    path = tmp_path / "checks.py"
    path.write_text(CHECKS)
    assert messages_of_checks(path) == MESSAGES.splitlines()


def test_every_chapter_is_read():
    for path in sorted((ROOT / "book").rglob("*.ipynb")):
        if "exercises" not in path.parts and "table(" in path.read_text(encoding="utf-8"):
            code = [
                cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
            ]
            questions = sum(
                len(re.findall(r"\bpredict(?:_number|_curve)?\(", "".join(cell["source"]))) for cell in code
            )
            assert len(words_of_notebook(path)) > questions, path.stem
