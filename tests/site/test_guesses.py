"""Tests of guesses on the built pages: every guess has a possible answer, and results are covered until it is given."""

import gzip
import json
import re
from html import unescape

import pytest
from built_site import HTML, read
from thorough import all_but
from visits import OPEN_FOLDS, PHONE, Seen, compressed, each_of

PAGES = sorted(
    str(page.relative_to(HTML))
    for page in HTML.glob("book/**/*.html")
    if 'class="guess"' in page.read_text(encoding="utf-8")
)
every_page = each_of(PAGES)
MASKS = "book/attention/masks.html"
SCALING = "book/attention/scaling.html"
WHY = "book/attention/why-attention.html"
some_pages_first = pytest.mark.parametrize("path", all_but(PAGES, lambda path: path == SCALING))


def asked(page: str) -> list[dict]:
    """Return the state of each guess on a page, in order."""
    return [json.loads(found) for found in re.findall(r'\bmount\(explorer, (\{"kind":.*\})\);', page)]


def reveals(page: str) -> list[tuple[str, dict]]:
    """Return the key and the answer of each reveal on a page, in order."""
    found = re.findall(r'class="g-truth" data-guess="(\w+)" data-answer="([^"]*)"', page)
    return [(key, json.loads(unescape(answer))) for key, answer in found]


def test_selected_chapters_have_guesses_of_every_kind():
    assert {SCALING, MASKS, WHY} <= set(PAGES)
    for path in (SCALING, MASKS, WHY):
        kinds = [guess["kind"] for guess in asked(read(path))]
        assert set(kinds) == {"choice", "number", "curve"}


@every_page
def test_every_guess_has_a_possible_answer_below(path):
    page = read(path)
    guesses, answers = asked(page), dict(reveals(page))
    assert len(guesses) == page.count('<div class="guess">') == len(reveals(page)) == len(answers)
    for guess in guesses:
        place = page.index(f'"key":"{guess["key"]}"')
        assert place < page.index(f'data-guess="{guess["key"]}"'), guess["question"]
        answer, about = answers[guess["key"]], guess["about"]
        assert answer["note"] == "", (guess["question"], answer)
        if guess["kind"] == "choice":
            assert answer["at"] in range(len(about["options"]))
        elif guess["kind"] == "number":
            assert about["low"] <= answer["at"] <= about["high"]
        else:
            assert all(about["y"][0] <= y <= about["y"][1] for y in answer["at"][1])


@every_page
def test_guesses_of_a_page_share_one_script(path):
    page = read(path)
    parts = re.findall(r'<(script|style) data-part="([\w.-]+)">(.*?)</\1>', page, re.DOTALL)
    keys = [(kind, key) for kind, key, _ in parts]
    assert len(keys) == len(set(keys))
    shared = "".join(body for _, key, body in parts if key.startswith("guess"))
    files = sum(compressed(HTML / "_static" / name) for name in ("guesses.js", "guesses.css"))
    assert len(gzip.compress(shared.encode())) + files < 17_500
    outputs = re.findall(r'<div class="guess">.*?</script></div>|<p class="g-truth".*?</p>', page, re.DOTALL)
    rest = re.sub(r'<(script|style) data-part="[\w.-]+">.*?</\1>', "", "".join(outputs), flags=re.DOTALL)
    assert len(gzip.compress(rest.encode())) < 600 * len(asked(page))


# --- in a browser ---------------------------------------------------------------------------------------------------

HIDDEN = "document.querySelectorAll('.g-away').length"
# Elements that show a hidden answer to the eye, to a screen reader, or for copying: they have no height, nor any child.
LEAKS = """() => [...document.querySelectorAll('.g-away')].filter((e) =>
  e.offsetHeight || [...e.children].some((c) => c.checkVisibility())).map((e) => e.outerHTML.slice(0, 120))"""

# Outputs between a reveal and its text would also give the answer away.
SHOWN_BEHIND = """() => [...document.querySelectorAll('.g-told')].flatMap((truth) => {
  const shown = [];
  for (let next = truth.closest('.cell').nextElementSibling; next?.matches('.cell'); next = next.nextElementSibling) {
    if (next.matches('.tag_hide-cell')) continue;
    if (next.querySelector('.guess, .explorer, .g-truth')) break;
    shown.push(...next.querySelectorAll('.cell_output:not(.g-away):has(img, svg, table, pre)'));
  }
  return shown.map((e) => e.outerHTML.slice(0, 120));
})"""


def guess_of(page, kind: str):
    part = {"choice": ".g-option", "number": ".g-range", "curve": ".g-pad:not(.g-shown)"}[kind]
    return page.locator(f".guess:has({part})").first


def card_of(page, guess):
    """Return a locator of the guess's card that stays valid after the card has changed."""
    return page.locator("section.g-card").nth(
        guess.evaluate("e => [...document.querySelectorAll('.guess:has(section)')].indexOf(e)")
    )


def draw_with_keys(card):
    pen = card.get_by_role("slider")
    pen.press("PageUp")
    pen.press("End")
    pen.press("Enter")


def answer(card, kind: str) -> None:
    if kind == "choice":
        card.locator("button.g-option").first.click()
    elif kind == "number":
        card.get_by_role("slider").press("ArrowRight")
        card.locator(".g-commit").click()
    else:
        draw_with_keys(card)


@pytest.mark.browser
@some_pages_first
def test_results_are_hidden_until_answered_and_answers_are_stored(visit, path):
    """Tested from files, without a server."""
    with visit(path, from_files=True) as page:
        before = page.evaluate(HIDDEN)
        assert before > 0
        assert page.evaluate(LEAKS) == []
        assert page.evaluate(SHOWN_BEHIND) == []
        assert page.locator(".g-hold").count() == 0
        assert page.locator("div.explorer:visible").count() > 0
        page.evaluate(OPEN_FOLDS)
        kinds = dict.fromkeys(guess["kind"] for guess in asked(read(path)))  # each once, in order
        cards = {kind: card_of(page, guess_of(page, kind)) for kind in kinds}
        for kind, card in cards.items():
            answer(card, kind)
            card.locator(".g-verdict").get_by_text(re.compile("(it|answer) is|: right")).wait_for()
        if "curve" in cards:
            assert cards["curve"].locator(".g-true-line").count() == 1
        if page.evaluate(HIDDEN) == before:  # each of these guesses hides the same outputs as another one
            page.locator(".g-skip").first.click()
        page.wait_for_function(f"{HIDDEN} < {before}")
        last = [*cards.values()][-1].locator(".g-verdict")
        said = last.inner_text()
        tally = page.locator(".g-tally").inner_text()
        assert re.search(rf"You were right in \d of {len(cards)}; only this device knows", tally)

        page.reload()
        page.evaluate(OPEN_FOLDS)
        last.get_by_text(said, exact=True).wait_for()
        page.get_by_role("button", name="Forget my answers").click()
        page.wait_for_function(f"{HIDDEN} === {before}")
        assert page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('guess ')).length") == 0
        page.get_by_role("radio", name="Just read").check(force=True)
        page.wait_for_function(f"{HIDDEN} === 0")
        assert page.seen.rest(page) == Seen()


@pytest.mark.browser
def test_chapter_is_marked_as_read_once_all_its_guesses_are_answered(visit):
    marked = "Object.keys(localStorage).filter((key) => key.startsWith('read ')).length"
    with visit(SCALING) as page:
        page.evaluate(OPEN_FOLDS)
        for i, guess in enumerate(asked(read(SCALING))):
            assert page.evaluate(marked) == 0
            answer(page.locator("section.g-card").nth(i), guess["kind"])
        page.wait_for_function(f"{marked} === 1")


@pytest.mark.browser
def test_show_me_uncovers_without_a_guess(visit):
    with visit(SCALING) as page:
        bar = page.locator(".g-bar").first
        bar.get_by_role("button", name="guess above").click()
        assert page.evaluate("document.activeElement.closest('.guess') !== null")
        before = page.evaluate(HIDDEN)
        bar.get_by_role("button", name="show it").click()
        page.wait_for_function(f"{HIDDEN} < {before}")
        assert page.get_by_text("Not guessed").first.is_visible()
        assert page.evaluate("document.activeElement.matches('.cell_output')")


@pytest.mark.browser
def test_guesses_accept_touch_on_a_phone(visit, finger):
    with visit(MASKS, has_touch=True, is_mobile=True) as page:
        page.set_viewport_size(PHONE)
        choice, curve = (card_of(page, guess_of(page, kind)) for kind in ("choice", "curve"))
        choice.locator("button.g-option").last.tap()
        choice.get_by_text("Your guess", exact=True).wait_for()
        pad = curve.locator(".g-pad")
        pad.evaluate("e => scrollBy(0, e.getBoundingClientRect().top - 300)")
        box, before = pad.bounding_box(), page.evaluate("scrollY")
        x, y = box["x"] + 46, box["y"] + 60
        finger(page, (x, y), (x + 60, y + 20), (x + 120, y + 60), (x + 260, y + 70), (x + 260, y + 71))
        assert page.evaluate("scrollY") == before
        page.wait_for_timeout(600)  # Chromium ignores a tap immediately after a swipe
        curve.locator(".g-commit").tap()
        curve.locator(".g-true-line").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 360


REFUSED = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('refused'); } })"
NO_REVEALS = """document.addEventListener('DOMContentLoaded', () => {
  for (const truth of document.querySelectorAll('.g-truth')) truth.remove(); }, true)"""


@pytest.mark.browser
def test_print_and_missing_answers_hide_nothing(visit, browser):
    with visit(MASKS) as page:
        page.emulate_media(media="print")
        assert page.locator(".g-truth").first.is_visible()
        assert page.locator(".only-print").first.is_visible()
        hidden = "[...document.querySelectorAll('.g-away')].filter((e) => !e.offsetHeight)"
        assert page.evaluate(f"{hidden}.filter((e) => !e.closest('details')).length") == 0
        assert page.locator(".g-bar:visible, .g-tally:visible, .g-foot:visible").count() == 0
        page.emulate_media(media="screen")
        assert page.locator(".only-print:visible").count() == 0
    own = browser.new_context()
    page = own.new_page()
    page.add_init_script(NO_REVEALS)
    page.goto((HTML / MASKS).as_uri())
    assert page.evaluate(HIDDEN) == page.locator(".g-hold").count() == page.locator(".g-tally").count() == 0
    own.close()


@pytest.mark.browser
def test_guesses_work_without_local_storage(browser):
    own = browser.new_context()
    page = own.new_page()
    page.add_init_script(REFUSED)
    page.goto((HTML / MASKS).as_uri())
    card = card_of(page, guess_of(page, "choice"))
    card.locator("button.g-option").first.click()
    card.get_by_text(re.compile("it is|the answer")).first.wait_for()
    own.close()


@pytest.mark.browser
def test_guesses_without_javascript_hide_nothing(visit):
    with visit(MASKS, java_script_enabled=False) as page:
        page.locator("details.fold:not([open]) > summary").evaluate_all("all => all.forEach((one) => one.click())")
        texts = page.locator(".g-truth")
        assert texts.count() > 0
        assert all(texts.nth(i).is_visible() for i in range(texts.count()))
        assert page.get_by_text("Guess first.").first.is_visible()
