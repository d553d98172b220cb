"""Lay down the files of a new explorer: class, scripts, export, example and test.

    python tools/new_explorer.py retrieval-two

The new explorer shows softmax weights at a temperature. It passes the tests of every explorer; what its author must
replace is printed at the end.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDGETS = "lessons_lib/page/widgets"
EXPORTS = f"{WIDGETS}/__init__.py"
EXAMPLES = "tests/page/widgets/examples.py"

PYTHON = '''\
"""The WORDS explorer: what it shows, in one line."""

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.attention.softmax import softmax
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Real
from lessons_lib.page.widgets.words import say

SCORES = (2.0, 1.0, 0.0)


class CLASS(Explorer):
    r"""Change the temperature; the attention weights of three scores follow.

    .. math:: p = \\operatorname{softmax}(s / T)

    Raises:
        ValueError: if ``temperature`` is not between 0.1 and 10.
    """

    script = "MODULE"
    card = Card(
        title="TITLE",
        question="Which question does the figure answer?",
        sentence="In the live figure the temperature has a slider; the weights of the three scores follow.",
        tries={"Temperature 0.1": {"temperature": 0.1}, "Temperature 10": {"temperature": 10.0}},
    )

    temperature = Real(1.0, min=0.1, max=10.0).tag(sync=True)

    def weights(self) -> Float[Tensor, " n"]:
        """Return the attention weights, computed by the library."""
        return softmax(torch.tensor(SCORES, dtype=torch.float64), temperature=self.temperature)

    def still(self) -> str:
        """Draw one bar for each weight."""
        weights = self.weights().tolist()
        rows = [
            text(str(i + 1), x=20, y=20 * i + 15, anchor="end")
            + element("rect", class_="x-solid", x=30, y=20 * i + 4, width=220 * weight, height=14)
            + text(f"{weight:.3f}", x=260, y=20 * i + 15)
            for i, weight in enumerate(weights)
        ]
        shares = ", ".join(f"{weight:.2f}" for weight in weights)
        alt = say("weights at temperature {temperature}: {weights}", temperature=self.temperature, weights=shares)
        return picture(310, 20 * len(rows) + 4, alt, *rows)
'''
MATH = """\
/** The arithmetic of the WORDS explorer. The tests compare each function with the library's. */

import { softmax } from "./arithmetic.js";

export const SCORES = [2, 1, 0];

/** The attention weights at a temperature. @param {number} temperature */
export function weights(temperature) {
  return softmax(SCORES, temperature);
}
"""
DRAWING = """\
/** The attention weights of three scores as bars, at a temperature that a slider changes. */

import { fixed, html, linear, logSlider, named, picture, stage, svg } from "./kit.js";
import { SCORES, weights } from "./MODULE.math.js";
import { say } from "./words.js";

/**
 * @typedef {{ temperature: number }} Traits
 * @typedef {import("./kit.js").Scope<Traits>} Scope
 */

/** @param {{ model: import("./kit.js").Model<Traits>, el: HTMLElement }} context */
function render(context) {
  const scope = stage(context);
  scope.add(
    html(
      "div",
      { class: "x-controls" },
      logSlider(scope.value("temperature"), { label: say("Temperature"), min: 0.1, max: 10, show: (t) => fixed(t) }),
    ),
    html("div", { class: "x-panels" }, bars(scope)),
  );
  scope.when(["temperature"], () => {
    const temperature = scope.read("temperature");
    const shares = weights(temperature).map((weight) => fixed(weight));
    scope.announce(
      say("Temperature {temperature}: the weights are {weights}.", {
        temperature: fixed(temperature),
        weights: shares.join(", "),
      }),
    );
  });
  return scope.dispose;
}

/** One bar for each weight. @param {Scope} scope */
function bars(scope) {
  const [left, right, top, bottom] = [24, 312, 26, 126];
  const y = linear([0, 1], [bottom, top]);
  const step = (right - left) / SCORES.length;
  const drawing = picture(320, 146, say("attention weights"));
  scope.when(["temperature"], () => {
    drawing.replaceChildren(
      svg("path", { class: "x-axis", d: `M${left} ${top}V${bottom}H${right}` }),
      ...[0, 1].map((share) => named(String(share), left - 6, y(share) + 4, "", "end")),
      named(say("weight"), 0, 10),
      ...weights(scope.read("temperature")).map((weight, i) =>
        svg("rect", {
          class: "x-solid",
          x: left + (i + 0.15) * step,
          y: y(weight),
          width: 0.7 * step,
          height: bottom - y(weight),
        }),
      ),
      ...SCORES.map((score, i) =>
        named(say("score {score}", { score }), left + (i + 0.5) * step, bottom + 15, "", "middle"),
      ),
    );
  });
  return html("figure", { class: "x-panel" }, drawing);
}

export default { render };
"""
TEST = '''\
"""Tests of the WORDS explorer: its arithmetic agrees with the library, and the figure follows the traits."""

import pytest

from lessons_lib.page.widgets import CLASS


@pytest.mark.browser
@pytest.mark.parametrize("temperature", [0.1, 1.0, 7.5])
def test_weights_agree_with_the_library(javascript, temperature):
    ours = javascript("MODULE.math", "weights", temperature)
    assert ours == pytest.approx(CLASS(temperature).weights().tolist(), abs=1e-12)


@pytest.mark.browser
def test_wrong_weights_are_noticed(altered):
    with altered("MODULE.math", "SCORES, temperature", "SCORES") as javascript, pytest.raises(AssertionError):
        test_weights_agree_with_the_library(javascript, 7.5)


@pytest.mark.rejects
def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match=r"temperature.*at least 0\\.1 and at most 10"):
        CLASS(temperature=0.0)


@pytest.mark.browser
def test_figure_follows_the_temperature(show):
    with show(CLASS()) as page:
        heights = "rects => rects.map(rect => Number(rect.getAttribute('height')))"
        before = page.locator("svg rect").evaluate_all(heights)
        page.get_by_role("slider", name="Temperature").press("End")
        after = page.locator("svg rect").evaluate_all(heights)
        assert max(after) - min(after) < max(before) - min(before)
'''
EXAMPLE = """\
    (
        partial(CLASS, temperature=0.5),
        {"temperature": 4.0},
    ),
"""
REMAINS = """\
What remains:
  the title, question, sentence and Try links of the card, the traits and the still picture in the class
  the drawing and the arithmetic in the two scripts; rules of style that no other explorer needs in static/MODULE.css
  the explorer's line in the docstring of lessons_lib/page/widgets/__init__.py
  another value for each trait in tests/page/widgets/examples.py
  book/explorers.ipynb     a section that shows it; in book/_ext/thumbnails.py a drawing, or its card is plain
Then: make format, make check, make test."""


def lay_down(name: str, root: Path = ROOT) -> list[Path]:
    """Write the files of the explorer ``name``, and its lines in the export and the examples; return all their paths.

    Raises:
        ValueError: if the name is not in small letters and hyphens, or is taken.
    """
    if not re.fullmatch(r"[a-z]+(-[a-z]+)*", name):
        raise ValueError(f"the name must be small letters, with hyphens between words, got {name!r}")
    module = name.replace("-", "_")
    explorer = "".join(word.capitalize() for word in name.split("-")) + "Explorer"
    texts = {
        f"{WIDGETS}/{module}.py": PYTHON,
        f"{WIDGETS}/static/{module}.js": DRAWING,
        f"{WIDGETS}/static/{module}.math.js": MATH,
        f"tests/page/widgets/test_{module}.py": TEST,
    }
    exports = (root / EXPORTS).read_text(encoding="utf-8")
    taken = [path for path in texts if (root / path).exists()]
    if taken or explorer in exports:
        raise ValueError(f"the name must be new, got {name!r}, and there is {taken[0] if taken else explorer}")
    words = {"WORDS": name.replace("-", " "), "TITLE": name.replace("-", " ").capitalize()}
    words |= {"CLASS": explorer, "MODULE": module}
    examples = (root / EXAMPLES).read_text(encoding="utf-8")
    texts |= {EXPORTS: with_export(exports, module, explorer), EXAMPLES: with_example(examples, explorer)}
    for path, text in texts.items():
        filled = re.sub(r"\b(WORDS|TITLE|CLASS|MODULE)\b", lambda found: words[found[0]], text)
        (root / path).write_text(filled, encoding="utf-8")
    return [*map(Path, texts)]


def with_export(text: str, module: str, explorer: str) -> str:
    """Return ``__init__.py`` with the explorer last in the reading order, imported, and listed in ``__all__``."""
    line = f"    {module:<11}  the line of this explorer\n"
    text = text.replace('"""\n\nfrom', f'{line}"""\n\nfrom', 1)
    text = sorted_with(
        text, r"(?:from [\w.]+ import \w+\n)+", f"from lessons_lib.page.widgets.{module} import {explorer}\n"
    )
    return sorted_with(text, r'(?<=__all__ = \[\n)(?:    "\w+",\n)+', f'    "{explorer}",\n')


def with_example(text: str, explorer: str) -> str:
    """Return ``examples.py`` with the explorer imported, and its example last."""
    text = sorted_with(text, r"(?<=import \(\n)(?:    \w+,\n)+", f"    {explorer},\n")
    return text.replace("]\n\nBY_NAME", f"{EXAMPLE.replace('CLASS', explorer)}]\n\nBY_NAME", 1)


def sorted_with(text: str, pattern: str, line: str) -> str:
    """Return the text with a line added, in order, to the first block of lines that matches the pattern."""
    (block,) = re.findall(pattern, text)[:1]
    return text.replace(block, "".join(sorted([*block.splitlines(keepends=True), line])), 1)


def main(name: str) -> int:
    """Lay the files down, and print their paths and what remains."""
    try:
        written = lay_down(name)
    except ValueError as error:
        print(f"usage: make explorer NAME=retrieval-two\n{error}", file=sys.stderr)
        return 1
    print(*written, sep="\n")
    print(REMAINS.replace("MODULE", name.replace("-", "_")))
    return 0


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:2] or [""])))
