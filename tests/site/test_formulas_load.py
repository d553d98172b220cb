"""Test how a page loads its formulas: their fonts first, and the MathML of those that are not yet seen last."""

import json
import re

from built_site import read

CHAPTER = "book/attention/scaling.html"
REQUESTED = re.compile(r"for \(const font of (\[[^;]*?\])\) document\.fonts\.load\(font\)")
LAID_OUT = """() => [...document.querySelectorAll("mjx-assistive-mml")].every(
  (formula) => getComputedStyle(formula).contentVisibility === "visible")"""
SEEN = "() => [...document.querySelectorAll('mjx-container')].filter((formula) => formula.checkVisibility()).length"


def test_fonts_of_formulas_are_requested_in_the_head():
    head = read(CHAPTER).partition("</head>")[0]
    declared = re.findall(r"@font-face \{font-family: ([\w-]+);", head)
    requested = REQUESTED.search(head)
    assert requested is not None
    assert json.loads(requested[1]) == [f"1em {family}" for family in declared]
    assert {"MJXTEX", "MJXTEX-I"} < set(declared)


def test_a_screen_reader_gets_every_formula_that_is_shown(visit):
    with visit(CHAPTER) as page:
        page.wait_for_function(LAID_OUT)
        nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
        formulas = [one for one in nodes if one["role"]["value"] == "MathMLMath" and not one["ignored"]]
        assert len(formulas) == page.evaluate(SEEN) > 50
