"""The page of formulas prints on two pages, and no formula is wider than its box."""

import re

import pytest

PAGE = "book/cheat-sheet.html"


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_formulas_page_prints_on_two_pages(visit, paper):
    with visit(PAGE) as page:
        printed = page.pdf(format=paper)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 2


def test_printed_formulas_fit_their_boxes(visit):
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
