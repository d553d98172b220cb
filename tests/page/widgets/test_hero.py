"""Tests of the hero: arcs agree with the library, its sentences are true, and its animation ends."""

import gzip
import itertools
import re
from types import SimpleNamespace

import pytest
import torch
import traitlets
from axe_playwright_python.sync_playwright import Axe
from fonts import wide_serif
from torch.testing import assert_close

from lessons_lib.page import palette, widgets
from lessons_lib.page.widgets import HeadsExplorer, Hero
from lessons_lib.page.widgets.heads import HEADS
from lessons_lib.page.widgets.hero import FAINT, LONGEST, SENTENCES
from lessons_lib.training import stories
from lessons_lib.training.stories import VERBS, VOCABULARY

CASES = [
    ("the king near the birds", 4, []),
    ("the king near the birds", 2, ["1.1", "2.3"]),
    ("the queen that these dogs follow", 5, ["2.1", "2.2", "2.3", "2.4"]),
    ("two cats", 1, []),
]
every_case = pytest.mark.parametrize(("words", "query", "off"), CASES)


def shares(words, off=(), query=LONGEST - 1):
    """The probabilities of a singular and of a plural verb, by the library."""
    p = Hero(words, query, list(off)).next_word()
    return [
        sum(p[VOCABULARY.index(verb)].item() for verb in VERBS if verb.endswith("s") == one) for one in (True, False)
    ]


# --- what it says is so -----------------------------------------------------------------------------------------------


@every_case
def test_arcs_are_the_weights_on_paths_to_the_query(words, query, off):
    """Arcs of layer 2 belong to the query; an arc of layer 1 has the largest layer-2 weight on ``to`` as share."""
    weights, hero = HeadsExplorer(words, query, off).weights(), Hero(words, query, off)
    wanted = set()
    for i, head in enumerate(HEADS):
        for to, origin in itertools.product(range(len(words.split())), repeat=2):
            read = [weights[k, query, to].item() for k in range(4, 8) if HEADS[k] not in off]
            arrives = 1.0 if to == query else max(read, default=0.0) if i < 4 else 0.0
            if head not in off and weights[i, to, origin] >= 0.1 <= arrives:
                wanted.add((head, origin, to, round(weights[i, to, origin].item(), 9), round(arrives, 9)))
    assert {(*arc[:3], round(arc.weight, 9), round(arc.share, 9)) for arc in hero.arcs()} == wanted
    assert len(wanted) > 1


def check_arcs(javascript, words, query, off):
    hero = Hero(words, query, off)
    drawn = javascript("hero.math", "arcs", hero.weights().tolist(), query, off)
    assert [(a["head"], a["from"], a["to"]) for a in drawn] == [arc[:3] for arc in hero.arcs()]
    assert [a["layer"] for a in drawn] == [int(arc.head[0]) for arc in hero.arcs()]
    ours, theirs = ([[a["weight"], a["share"]] for a in drawn], [arc[3:] for arc in hero.arcs()])
    assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=0, atol=1e-12)


@pytest.mark.browser
@every_case
def test_script_arcs_agree_with_python(javascript, words, query, off):
    check_arcs(javascript, words, query, off)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("+(to === query)", "1"),  # what any word reads in layer 2
        ("word === query ? 1 : ", ""),
        ("weight >= FAINT && ", ""),
        ("FAINT = 0.1", "FAINT = 0.2"),
        ("({ head }) => !off.includes(head)", "({ head }) => head !== off"),
    ],
)
def test_wrong_arcs_are_noticed(altered, right, wrong):
    with altered("hero.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_arcs(javascript, *CASES[1])


@pytest.mark.browser
@every_case
def test_strongest_path_leads_to_the_query(javascript, words, query, off):
    arcs = [arc for arc in Hero(words, query, off).arcs() if arc.origin != arc.to]
    ways = [
        (one.weight * two.weight, one.head, one.origin, two.head, two.origin)
        for one, two in itertools.product(arcs, repeat=2)
        if one.head < "2" <= two.head and two.to == query and one.to == two.origin
    ]
    drawn = javascript("hero.math", "arcs", Hero(words, query, off).weights().tolist(), query, off)
    found = javascript("hero.math", "chain", drawn, query)
    assert bool(ways) == (found is not None) == (query > 1 and len(off) < 4)
    if ways:
        one, two = found
        assert (one["head"], one["from"], two["head"], two["from"]) == max(ways)[1:]


@pytest.mark.browser
@pytest.mark.parametrize("words", SENTENCES)
def test_offered_head_has_the_largest_ablation_effect(javascript, words):
    one, several = shares(words)
    without = {head: shares(words, [head])[one > several] for head in HEADS}
    last = len(words.split()) - 1
    assert javascript("hero.math", "pivot", words.split(), last) == max(without, key=without.__getitem__)
    assert javascript("hero.math", "pivot", words.split(), 0) is None  # no verb comes after "the"


def test_first_page_names_the_offered_head():
    """Ablating head 1.1 changes the verb's subject from king to birds; in the mirrored sentence it is head 1.4."""
    assert SENTENCES[:2] == ("the king near the birds", "the birds near the king")
    assert shares(SENTENCES[0])[0] > 0.99
    assert shares(SENTENCES[0], ["1.1"])[1] > 0.9
    assert shares(SENTENCES[1])[1] > 0.98
    assert shares(SENTENCES[1], ["1.1"])[1] > 0.9
    assert shares(SENTENCES[1], ["1.4"])[0] > 0.9


@pytest.mark.browser
def test_script_limits_agree_with_python(javascript):
    words = ["the", "king", "waits", "."] * 2
    weights = Hero(" ".join(words), 7).weights()
    drawn = javascript("hero.math", "arcs", weights.tolist(), 7, [])
    assert len(words) == LONGEST
    assert min(arc["weight"] for arc in drawn) >= FAINT
    likely = javascript("hero.math", "likeliest", Hero().next_word().tolist(), 3)
    best = Hero().next_word().topk(3)
    assert [one["word"] for one in likely] == [VOCABULARY[i] for i in best.indices.tolist()]
    assert [one["p"] for one in likely] == pytest.approx(best.values.tolist())


@pytest.mark.browser
def test_only_noun_is_the_noun_of_that_number(javascript):
    for singular in (True, False):
        nouns = {word for word in VOCABULARY if javascript("hero.math", "onlyNoun", [word], singular) == word}
        plural = set(stories._NOUNS["they"])
        assert nouns == ({noun for c in ("she", "he", "it") for noun in stories._NOUNS[c]} if singular else plural)
    for words, one, several in (
        ("the king near the birds", "king", "birds"),
        ("the queen that these dogs follow", "queen", "dogs"),
        ("the king near a queen", None, None),
        ("she loves the women", None, "women"),
    ):
        found = [javascript("hero.math", "onlyNoun", words.split(), singular) for singular in (True, False)]
        assert found == [one, several]


# --- in Python --------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"words": "the emperor"}, "words must be of stories.VOCABULARY.*got 'emperor'"),
        ({"words": "king"}, "words must be 2 to 8, got 1"),
        ({"words": "king " * 8 + "king"}, "words must be 2 to 8, got 9"),
        ({"sentences": ["the king", "the  king"]}, "words of sentences must be of .*, with single spaces, got ''"),
        ({"sentences": ["the king", "king"]}, "words of sentences must be 2 to 8, got 1"),
        ({"sentences": []}, "sentences"),
        ({"query": 8}, "query.*at most 7"),
        ({"off": ["3.1"]}, "off"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        Hero(**arguments)


def test_hero_has_the_traits_of_an_explorer():
    hero, again = Hero(off=["1.1"]), Hero(off=["1.1"])
    assert repr(eval(repr(hero), vars(widgets))) == repr(hero)
    assert hero.to_html() == again.to_html()
    data, _ = hero._repr_mimebundle_()
    assert data["text/html"] == hero.to_html()
    assert not re.search(r"<\w[^>]*\sid=", hero.to_html())
    assert "http" not in hero.to_html().replace("http://www.w3.org/2000/svg", "")
    assert len(gzip.compress(hero.to_html().encode())) < 33_000  # the weights of the model included
    with pytest.raises(traitlets.TraitError):
        hero.words = "the emperor waits"
    assert hero.words == SENTENCES[0]


# --- on a page --------------------------------------------------------------------------------------------------------

TOLD = ".h-told"
WITHOUT = {"reduced_motion": "reduce"}


def told(page):
    return page.locator(TOLD).inner_text().replace("\u00a0", " ")


def sentence(page):
    return " ".join(page.locator(".h-word").all_inner_texts())


def percent(p):
    return f"{100 * p:.{0 if 0.095 < p < 0.995 else 1}f} %"


def verdict(words, off, name, one):
    """The verdict by the library: who acts with which probability, and the most likely verb of that number."""
    p = Hero(words, LONGEST - 1, off).next_word()
    verb, share = max(((v, p[VOCABULARY.index(v)].item()) for v in VERBS if v.endswith("s") == one), key=lambda x: x[1])
    verbs_share = shares(words, off)[0 if one else 1]
    return f"{name}, {percent(verbs_share)}. Most likely verb: {verb}, {percent(share)}."


@pytest.mark.browser
def test_ablated_head_flips_the_answer(show):
    with show(Hero(), **WITHOUT) as page:
        assert told(page) == f"All heads on: {verdict(SENTENCES[0], [], 'the king acts', True)}"
        assert page.locator(".h-ghost").inner_text() == VOCABULARY[Hero().next_word().argmax()]
        page.get_by_role("button", name="Switch off head 1.1").click()
        assert told(page) == f"Without head 1.1: {verdict(SENTENCES[0], ['1.1'], 'the birds act', False)}"
        assert page.locator(".h-ghost").inner_text() == VOCABULARY[Hero(off=["1.1"]).next_word().argmax()]
        assert page.locator("[data-head='1.1']").count() == 0
        page.get_by_role("button", name="All heads on").press("Enter")
        assert told(page).startswith("All heads on: the king acts")
        page.get_by_role("button", name="head 1.2", exact=True).press("Space")
        assert told(page).startswith("Without head 1.2: ")


@pytest.mark.browser
def test_verdict_names_the_subject_only_if_it_is_the_only_noun_of_its_number(show):
    nouns = [("the king", "the birds"), ("the king", "the birds"), ("the woman", "the boys"), ("the queen", "the dogs")]
    with show(Hero(), **WITHOUT) as page:
        for words, (one, several) in zip(SENTENCES, nouns, strict=True):
            singular = shares(words)[0] > 0.5
            wanted = verdict(words, [], f"{one} acts" if singular else f"{several} act", singular)
            assert told(page) == f"All heads on: {wanted}"
            names = page.locator(".h-verb > span:first-child").all_inner_texts()
            assert names == [f"{one} acts", f"{several} act"]
            page.get_by_role("button", name="Another sentence").click()
    two = "the king near the queen"
    with show(Hero(two), **WITHOUT) as page:
        assert told(page) == f"All heads on: {verdict(two, [], 'a singular verb', True)}"
        assert page.locator(".h-verb > span:first-child").all_inner_texts() == ["a singular verb", "a plural verb"]


@pytest.mark.browser
def test_verb_bars_are_between_the_verdict_and_the_button_on_a_phone(show):
    with show(Hero(), width=390, **WITHOUT) as page:
        tops = [page.locator(part).bounding_box()["y"] for part in (".h-figure", ".h-told", ".h-verbs", ".h-cut")]
        assert tops == sorted(tops)
        assert page.locator(".h-cut").bounding_box()["y"] < page.locator(".h-side").bounding_box()["y"]


@pytest.mark.browser
def test_bars_and_paths_agree_with_the_model(show):
    with show(Hero(off=["1.3"]), **WITHOUT) as page:
        best = Hero(off=["1.3"]).next_word().topk(5)
        rows = [row.inner_text().replace("\u00a0", " ").split("\n") for row in page.locator("button.h-next").all()]
        assert [row[0] for row in rows] == [VOCABULARY[i] for i in best.indices.tolist()]
        assert [row[-1] for row in rows] == [percent(p) for p in best.values.tolist()]
        drawn = "all => all.map((i) => i.getBoundingClientRect().width / i.parentElement.clientWidth)"
        page.wait_for_function("document.getAnimations().length === 0")
        shares_drawn = [
            *page.locator(".h-side .h-track i").evaluate_all(drawn),
            *page.locator(".h-verbs .h-track i").evaluate_all(drawn),
        ]
        wanted = [*best.values.tolist(), *shares(SENTENCES[0], ["1.3"])]
        assert shares_drawn == pytest.approx(wanted, abs=0.01)  # words and verbs on one scale
        verbs = [row.inner_text().replace("\u00a0", " ").split("\n")[-1] for row in page.locator(".h-verb").all()]
        assert verbs == [percent(p) for p in shares(SENTENCES[0], ["1.3"])]
        way = r"(\w+) attends to (\w+) in layer 2 \(head (\S+), (\S+)\), "
        way += r"which attends to (\w+) in layer 1 \(head (\S+), (\S+)\)\."
        [(asks, relay, second, much, source, first, more)] = re.findall(way, page.locator(".h-way").inner_text())
        place, weights = SENTENCES[0].split().index, Hero(off=["1.3"]).weights()
        assert f"{weights[HEADS.index(second), place(asks), place(relay)]:.2f}" == much
        assert f"{weights[HEADS.index(first), place(relay), place(source)]:.2f}" == more
        widths = page.locator("path[data-head]").evaluate_all(
            "all => all.map(p => [p.dataset.head, p.getAttribute('stroke-width')])"
        )
        drawn = sorted((arc.head, f"{0.5 + 4.5 * arc.weight:.1f}") for arc in Hero(off=["1.3"]).arcs())
        assert sorted(map(tuple, widths)) == drawn


@pytest.mark.browser
def test_query_continuation_and_next_sentence_can_be_selected(show):
    with show(Hero(), **WITHOUT) as page:
        page.get_by_role("button", name="near", exact=True).click()
        assert page.locator(".h-side").inner_text().startswith("After near")
        assert told(page).startswith("All heads on: ")
        assert "acts" not in told(page)
        page.get_by_role("button", name="birds", exact=True).press("Enter")
        while page.locator("button.h-next").first.is_enabled():
            page.locator("button.h-next").first.click()
        assert sentence(page).split()[:5] == SENTENCES[0].split()
        assert len(sentence(page).split()) == LONGEST
        for wanted in (*SENTENCES, SENTENCES[0]):  # after a sentence of the reader's own, the first
            page.get_by_role("button", name="Another sentence").click()
            assert sentence(page) == wanted


@pytest.mark.browser
def test_letter_of_the_formula_highlights_its_meaning(show):
    opacity = "page => Number(getComputedStyle(document.querySelector('.h-arc')).opacity)"
    with show(Hero(), **WITHOUT) as page:
        said = page.locator(".h-said")
        before = said.inner_text()
        assert "Each arc is an attention weight" in before
        for name, words in (("Q, the query", "query"), ("K, the key", "compared"), ("V, the value", "passes on")):
            page.get_by_role("button", name=name).press("Enter")
            assert words in said.inner_text()
            assert (page.evaluate(opacity) < 1) == (name != "V, the value")
        page.get_by_role("button", name="V, the value").click()
        assert said.inner_text() == before
        colours = page.locator(".h-sign").evaluate_all("all => all.map(e => getComputedStyle(e).color)")
        wanted = (palette.OUTPUT, palette.QUERY, palette.KEY, palette.VALUE)
        assert colours == [f"rgb({', '.join(str(int(c[i : i + 2], 16)) for i in (1, 3, 5))})" for c in wanted]


ASKING = "document.querySelector('.h-word[aria-pressed=true]').textContent"
READ = f"""new Promise((done) => {{
  const seen = [];
  const look = () => {{
    const now = {ASKING};
    if (seen.at(-1) !== now) seen.push(now);
    if (now === "birds") done(seen);
    else setTimeout(look, 20);
  }};
  look();
}})"""
MOVING = "document.getAnimations().filter((a) => a.playState === 'running').length"
FLOWING = "document.getAnimations().filter((a) => a.playState === 'running' && a.animationName).length"


@pytest.mark.browser
def test_animation_plays_once(show):
    with show(Hero()) as page:
        asked = page.evaluate(READ)
        assert asked == ["king", "near", "the", "birds"]
        assert told(page).startswith("All heads on: the king acts")
        page.wait_for_function(f"{MOVING} === 0")
        before = page.locator(".h-body").inner_html()
        page.wait_for_timeout(900)  # longer than the pace
        assert page.locator(".h-body").inner_html() == before
        page.get_by_role("button", name="Play").click()
        assert page.evaluate(ASKING) == "king"
        assert page.evaluate(FLOWING) > 0
        page.mouse.move(5, 5)
        page.mouse.down()  # anywhere
        assert page.evaluate(ASKING) == "birds"
        assert page.evaluate(FLOWING) == 0  # bars still go to where they end


@pytest.mark.browser
def test_key_press_or_print_ends_the_animation(show):
    with show(Hero()) as page:
        page.keyboard.press("Tab")
        assert page.evaluate(ASKING) == "birds"
        page.get_by_role("button", name="Play").press("Enter")
        assert page.evaluate(ASKING) == "king"
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(ASKING) == "birds"


@pytest.mark.browser
def test_reduced_motion_disables_the_animation(show):
    with show(Hero(), **WITHOUT) as page:
        assert page.evaluate(ASKING) == "birds"
        page.get_by_role("button", name="Another sentence").click()
        page.get_by_role("button", name="Play").click()
        assert page.evaluate(ASKING) == "king"  # the last word of the next sentence
        assert page.evaluate(MOVING) == 0


@pytest.mark.browser
def test_axe_finds_no_violation_and_dark_mode_applies_at_once(show):
    colour = "e => getComputedStyle(e).getPropertyValue('--query')"
    with show(Hero(off=["1.1"]), **WITHOUT) as page:
        for theme, style in (
            ("light", ""),
            ("dark", "background: #121212; color: #ced6dd; --pst-color-background: #121212"),
        ):
            page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
            page.evaluate("style => { document.body.style = style; }", style)
            rules = {"page-has-heading-one": {"enabled": False}}
            only = {} if theme == "light" else {"runOnly": ["color-contrast"]}
            found = Axe().run(page, options={"rules": rules, **only}).response["violations"]
            assert not [(theme, v["id"], node["html"][:120]) for v in found for node in v["nodes"]]
        assert page.locator(".hero").evaluate(colour) == palette.DARK_QUERY


@pytest.mark.browser
def test_hero_fits_a_phone_and_accepts_taps(show):
    sizes = "all => all.map(c => [c.outerHTML, c.getBoundingClientRect().height])"
    long = "these young women that the horses love hear"
    with show(Hero(sentences=[long]), width=360, has_touch=True, is_mobile=True, **WITHOUT) as page:
        buttons = page.locator(".hero button:not(.h-sign)")
        assert not [(control, height) for control, height in buttons.evaluate_all(sizes) if height < 44]
        page.get_by_role("button", name="Switch off head").tap()
        assert told(page).startswith("Without head 1.1")
        page.locator(".h-sign.h-query").tap()
        assert page.locator(".h-sign.h-query").get_attribute("aria-pressed") == "true"
        page.get_by_role("button", name="Another sentence").tap()
        assert sentence(page) == long
        right = max(page.locator(".hero *").evaluate_all("all => all.map(e => e.getBoundingClientRect().right)"))
        assert right <= 360


@pytest.mark.browser
def test_without_scripts_picture_formula_and_predictions_remain(show):
    with show(Hero(), width=360, java_script_enabled=False) as page:
        assert page.locator("svg[role=img]").is_visible()
        said = page.locator(".hero").inner_text()
        assert "output = softmax(QKT / √dk) V" in said
        best = Hero().next_word().argmax()
        assert f"expects {VOCABULARY[best]}" in said
        assert page.locator("path.h-arc").count() == len(Hero().arcs())
        assert max(page.locator(".hero *").evaluate_all("all => all.map(e => e.getBoundingClientRect().right)")) <= 360


# How far the page and the formula's own letters reach, and the size of the letters.
REACHES = """document.fonts.ready.then(() => {
  const formula = document.querySelector(".h-formula"), range = document.createRange();
  range.selectNodeContents(formula);
  const own = [...formula.querySelectorAll("*"), range].map((part) => part.getBoundingClientRect().right);
  return [document.documentElement.scrollWidth, Math.max(...own), parseFloat(getComputedStyle(formula).fontSize)];
})"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 360, 390])
@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without"])
def test_the_whole_formula_fits_a_phone_in_the_widest_serif(width, scripts, show):
    serif = SimpleNamespace(to_html=lambda: f"<style>{wide_serif('STIX Two Text')}</style>")
    with show(serif, Hero(), width=width, java_script_enabled=scripts, **WITHOUT) as page:
        broad, right, letters = page.evaluate(REACHES)
        assert page.evaluate("[...document.fonts].some((face) => face.status === 'loaded')")
    assert broad == width
    assert right <= width
    assert letters > 16


@pytest.mark.browser
def test_on_a_wide_page_the_formula_has_its_full_size(show):
    with show(Hero(), width=1280, **WITHOUT) as page:
        assert page.evaluate(REACHES)[2] == 24


# --- in a live notebook -----------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_traits_change_the_hero_and_cleanup_removes_listeners(mount):
    page = mount(Hero())
    page.wait_for_function(f"{ASKING} === 'birds'")
    look = "document.querySelector('.h-stage').outerHTML"
    for trait, value in (("query", 2), ("off", ["1.1", "2.3"]), ("words", "two dogs near a young king")):
        before = page.evaluate(look)
        page.evaluate("([trait, value]) => model.set(trait, value)", [trait, value])
        assert page.evaluate(look) != before, trait
    assert page.evaluate("saved") == 0
    page.evaluate("window.late = heard(); document.addEventListener('keydown', () => { window.heardKey = true; })")
    page.get_by_role("button", name="head 1.1", exact=True).press("Enter")
    assert page.evaluate("[saved, model.get('off'), window.heardKey]") == [1, ["2.3"], None]
    page.get_by_role("button", name="Play").click()
    page.evaluate("leave(); late.forEach((f) => f())")
    assert page.evaluate("heard().length") == 0
    page.wait_for_timeout(900)  # a step of the play that was due
    page.mouse.click(5, 5)
    assert page.locator("main").inner_html() == ""
