"""The formulas that matter, on paper: all of them on two sides, and none wider than its box."""

import re

import pytest

PAGE = "book/cheat-sheet.html"


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_it_prints_on_two_sides(visit, paper):
    with visit(PAGE) as page:
        printed = page.pdf(format=paper)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 2


def test_on_paper_no_formula_is_wider_than_its_box(visit):
    with visit(PAGE) as page:
        page.set_viewport_size({"width": 733, "height": 1000})  # A4 without its margins, in CSS pixels
        page.emulate_media(media="print")
        wide = page.evaluate(
            """() => [...document.querySelectorAll(".formula")].filter((box) => {
                const formula = box.querySelector("mjx-container[display='true'] > mjx-math");
                return formula.getBoundingClientRect().right > box.getBoundingClientRect().right + 1;
            }).map((box) => box.innerText.slice(0, 40))"""
        )
    assert wide == []
