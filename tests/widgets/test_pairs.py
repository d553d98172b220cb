"""The pairs explorer: its masks, weights and counts are the library's, and its guess holds for other stories.

From the same queries and keys both languages compute the weights in float64. Largest difference measured in the
cases below: 3.8e-15 (2e-14 in others). The queries, keys and values themselves differ by 1.2e-7, since the library
turns them by angles in float32.
"""

import json
import random

import pytest
import record_recall
import torch
from labels import collisions, smallest
from thorough import all_but
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from lessons_lib.attention import attention
from lessons_lib.efficient import performer
from lessons_lib.efficient.linear import linear_attention
from lessons_lib.efficient.linformer import LinformerAttention
from lessons_lib.efficient.skipping import skipping_attention, visited_blocks
from lessons_lib.rules import BigBird, Causal, Dilated, GlobalTokens, Table, Window, by_layout
from lessons_lib.stories import VOCABULARY, encode, first_error, tell
from lessons_lib.widgets import PairsExplorer
from lessons_lib.widgets.arithmetic import normal, uniform
from lessons_lib.widgets.assemble import read
from lessons_lib.widgets.pairs import FAR, FEATURES, MASKS, METHODS, TEXT, WIDTH, N, directions, draws, pooling, vectors
from lessons_lib.widgets.trained import HEADS

CLOSE = {"rtol": 0, "atol": 1e-12}
NOTHING = "\u2013"  # where no error is shown yet
TRAITS = ["way", "window", "step", "n_global", "n_random", "r", "causal", "seed"]


def explorers(n=42, seed=4, methods=tuple(METHODS)):
    """Any ways with any budgets, each as often as the others."""
    chance = random.Random(seed)
    return [
        PairsExplorer(
            methods[i % len(methods)],
            chance.randint(1, 9),
            chance.randint(1, 8),
            chance.randint(0, 8),
            chance.randint(0, 16),
            chance.choice(FEATURES),
            chance.choice(HEADS),
            chance.random() < 0.6,
            seed=chance.randint(0, 999),
        )
        for i in range(n)
    ]


def how(explorer):
    return {trait: getattr(explorer, trait) for trait in TRAITS}


def exactly(explorer):
    """Exact attention, of what may be seen."""
    return {**how(explorer), "way": "", "causal": explorer.is_causal}


# --- one attention in two languages -----------------------------------------------------------------------------------


@pytest.mark.browser
def test_both_languages_begin_alike(javascript):
    found = javascript.page.evaluate("async () => { const m = await import('./pairs.math.js'); return {...m}; }")
    assert (found["TEXT"], found["N"], found["WIDTH"], found["FAR"]) == (TEXT, N, WIDTH, FAR)
    assert (found["FEATURES"], found["MASKS"]) == (FEATURES, MASKS)


@pytest.mark.browser
def test_queries_keys_and_values_are_the_model_s(javascript):
    for head in HEADS:
        ours = javascript("pairs.math", "vectors", head)
        for name, wanted in vectors(head)._asdict().items():
            assert_close(torch.tensor(ours[name], dtype=torch.float64), wanted, rtol=0, atol=1e-6)


def check_ways(javascript, cases):
    heads = {head: {name: x.tolist() for name, x in vectors(head)._asdict().items()} for head in HEADS}
    found = javascript.each("pairs.math", "weights", [(how(e), heads[e.head]) for e in cases])
    errors = javascript.each("pairs.math", "error", [(how(e), e.head) for e in cases])
    for explorer, ours, error in zip(cases, found, errors, strict=True):
        wanted = explorer.weights()
        assert_close(torch.tensor(ours, dtype=torch.float64), wanted, **CLOSE)
        assert_close(wanted @ vectors(explorer.head).v, explorer.output(), **CLOSE)
        assert error == pytest.approx(explorer.error(), abs=1e-5)


def check_counts(javascript, cases):
    found = javascript.each("pairs.math", "multiplications", [[how(e)] for e in cases])
    assert found == [flops(e) / 2 for e in cases]
    last = javascript.each("pairs.math", "forTheLast", [[how(e)] for e in cases])
    assert last == [of_the_last(e) for e in cases]


@pytest.mark.browser
def test_weights_outputs_and_errors_are_the_library_s(javascript):
    cases = explorers()
    assert {e.is_causal for e in cases if e.way != "linformer"} == {True, False}
    check_ways(javascript, cases)


@pytest.mark.browser
def test_pairs_are_those_that_a_skipping_attention_computes(javascript):
    cases = explorers(24, methods=tuple(MASKS))
    masks = javascript.each("pairs.math", "mask", [[how(e)] for e in cases])
    counts = javascript.each("pairs.math", "pairs", [[how(e)] for e in cases])
    for explorer, ours, count in zip(cases, masks, counts, strict=True):
        assert ours == explorer.rule().tensor(N).tolist()
        assert count == visited_blocks(Table(explorer.rule().tensor(N)), N, block=1)
    for causal, count in ((True, N * (N + 1) // 2), (False, N * N)):
        assert javascript("pairs.math", "pairs", {**how(cases[0]), "way": "", "causal": causal}) == count


def flops(explorer):
    """What the library does for it: blocks of one pair for a mask; for features, sums over all words, none hidden."""
    q, k, v = vectors(explorer.head)
    with FlopCounterMode(display=False) as counted:
        if explorer.rule() is not None:
            skipping_attention(q, k, v, Table(explorer.rule().tensor(N)), block=1)
        elif explorer.way == "linformer":
            layer = LinformerAttention(N, min(explorer.r, N)).double()
            layer(q, k, v)
        elif explorer.way == "linear":
            linear_attention(q, k, v)
        else:
            omega = directions(explorer.r, explorer.seed)
            performer.performer_attention(q, k, v, projection=omega)
    return counted.get_total_flops()


def of_the_last(explorer):
    """The same for one word: of a mask, the last row of a long text; of the others, an equal share."""
    if explorer.rule() is None:
        return flops(explorer) / 2 / N
    rule = Dilated(explorer.window, explorer.step) if explorer.way == "dilated" else Window(explorer.window)
    if explorer.way in {"longformer", "bigbird"}:
        rule = rule | GlobalTokens(range(explorer.n_global))
    seen = rule.tile(range(FAR - 1, FAR), range(FAR)).sum().item()
    return 2 * WIDTH * (seen + (explorer.n_random if explorer.way == "bigbird" else 0))


@pytest.mark.browser
def test_multiplications_are_those_that_the_library_carries_out(javascript):
    check_counts(javascript, explorers(28, seed=6))
    q, k, v = vectors("1.1")
    with FlopCounterMode(display=False) as counted:
        attention(q, k, v)
    plain = {**how(PairsExplorer()), "way": "", "causal": False}
    assert 2 * javascript("pairs.math", "multiplications", plain) == counted.get_total_flops()
    assert javascript("pairs.math", "forTheLast", plain) == counted.get_total_flops() / 2 / N / N * FAR


@pytest.mark.browser
def test_the_plain_average_ignores_the_query(javascript):
    for causal in (True, False):
        q, k, v = vectors("2.1")
        mask = Causal().tensor(N) if causal else None
        exact, even = attention(q, k, v, mask), attention(0 * q, k, v, mask)
        found = javascript("pairs.math", "error", {**how(PairsExplorer()), "way": "", "causal": causal}, "2.1")
        assert found == pytest.approx(((even - exact).norm() / exact.norm()).item(), abs=1e-5)


@pytest.mark.browser
def test_the_spread_is_that_of_the_scores_in_training(javascript):
    for head in HEADS:
        q, k, _ = vectors(head)
        scores = (q @ k.mT / WIDTH**0.5)[Causal().tensor(N)]
        assert javascript("pairs.math", "spread", head) == pytest.approx(scores.std().item(), abs=1e-5)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("< window;", "<= window;"),
        ("< window * step", "<= window * step"),
        ("(i - j) % step === 0", "true"),
        ("isGlobal(i) || isGlobal(j)", "isGlobal(j)"),
        ("return seen ? -1 : draw;", "return draw;"),  # draws what it sees already
        ("(!causal || j <= i)))", "(!causal || j < i + 2)))"),
        ("Math.sqrt(WIDTH) : -Infinity", "WIDTH : -Infinity"),
        ("x > 0 ? x + 1 : Math.exp(x)", "Math.max(x, 0)"),
        ("1 / total", "1 / N"),  # no normaliser
        ("- dot(x, x) / 2", ""),  # not unbiased
        ("WIDTH ** -0.25", "WIDTH ** -0.5"),
        ("columns.slice(0, j)", "columns.slice(0, 0)"),  # not orthogonal
        ("const length = Math.hypot(...draw());", "const length = 4;"),
        ("1 / (edge(i + 1) - edge(i))", "1"),
        ('causal && way !== "linformer"', "causal"),
    ],
)
def test_a_wrong_way_is_noticed(altered, right, wrong):
    with altered("pairs.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_ways(javascript, explorers(21))


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("2 * WIDTH * pairs(how)", "WIDTH * pairs(how)"),
        ("linformer: 4 * WIDTH", "linformer: 2 * WIDTH"),
        ("linear: 2 * WIDTH + 1", "linear: 2 * WIDTH"),
        ("?? 4 * WIDTH + 1", "?? 2 * WIDTH + 1"),
        ("n_global + n_random", "n_global"),
    ],
)
def test_a_wrong_count_is_noticed(altered, right, wrong):
    with altered("pairs.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_counts(javascript, explorers(14, seed=6))


# --- the numbers that are drawn, as the library would use them --------------------------------------------------------


def test_random_words_are_drawn_as_the_library_draws_them(monkeypatch):
    monkeypatch.setattr(by_layout, "uniform", lambda n, generator: draws(37, n, n))
    wanted = BigBird(N, window=4, n_global=2, n_random=5, generator=torch.Generator())
    ours = PairsExplorer("bigbird", 4, n_global=2, n_random=5, causal=False, seed=37)
    assert torch.equal(ours.rule().tensor(N), wanted.tensor(N))


@pytest.mark.parametrize("r", [4, 16, 40])
def test_directions_are_drawn_as_the_library_draws_them(monkeypatch, r):
    random = uniform(8)

    def randn(*shape, dtype=torch.float64, **_):
        count = torch.Size(shape).numel()
        return torch.tensor([normal(random) for _ in range(count)], dtype=dtype or torch.float64).reshape(shape)

    monkeypatch.setattr(torch, "randn", randn)
    assert_close(directions(r, 8), performer.orthogonal_projection(r, WIDTH, torch.Generator()), **CLOSE)


def test_pooling_averages_neighbours_and_is_exact_where_each_word_is_its_own():
    assert torch.equal(pooling(N), torch.eye(N, dtype=torch.float64))
    for r in (1, 7, 12):
        assert_close(pooling(r).sum(-1), torch.ones(r, dtype=torch.float64), **CLOSE)
        assert (pooling(r) > 0).sum(0).eq(1).all()
    assert PairsExplorer("linformer", r=64).error() < 1e-12
    layer = LinformerAttention(N, 16).double()
    with torch.no_grad():
        layer.e.copy_(pooling(16))
        layer.f.copy_(pooling(16))
        assert_close(layer(*vectors("2.2")), PairsExplorer("linformer", r=16, head="2.2").output(), **CLOSE)


# --- what was recorded -----------------------------------------------------------------------------------------------


def test_the_recalled_shares_are_those_of_the_record():
    record = json.loads(record_recall.RECORD.read_text(encoding="utf-8"))
    assert record_recall.SCRIPT.read_text(encoding="utf-8") == record_recall.written(record)
    carried = json.loads(read("pairs_recall.js").removeprefix("export const RECALL = ").rstrip(";\n"))
    assert (carried["steps"], carried["pairs"]) == (record["steps"], record["pairs"])
    for kind, kept, shares in carried["kinds"]:
        rows = [row for row in record["table"] if row["method"] == kind]
        assert [row["pairs"] for row in rows] == carried["pairs"]
        assert kept == rows[-1]["state"]
        for share, row in zip(shares, rows, strict=True):
            assert share == pytest.approx(sum(row["accuracy"]) / len(record["seeds"]), abs=0.00501)
    assert len(carried["kinds"]) == len({row["method"] for row in record["table"]})


@pytest.mark.browser
def test_the_record_s_line_of_the_way_is_bold(show):
    with show(PairsExplorer("linear", guess="2.4")) as page:
        assert page.locator(".b-own th").all_inner_texts() == ["elu + 1"]
        page.get_by_role("combobox", name="Way").select_option("bigbird")
        assert page.locator(".b-own").count() == 0


# --- what is said -----------------------------------------------------------------------------------------------------


def test_the_text_is_a_story():
    assert N == 60
    assert set(TEXT.split()) <= set(VOCABULARY)
    assert first_error(encode(TEXT)) is None


def test_the_answer_to_the_guess_holds_for_other_stories_and_draws():
    """A window of 8 against 64 random features: nearer for head 2.4, farther for head 1.3."""
    stories = tell(torch.Generator().manual_seed(11), batch_size=6, n=N).inputs
    for tokens in stories:
        words = " ".join(VOCABULARY[token] for token in tokens.tolist())
        for head in ("1.3", "2.4"):
            q, k, v = vectors(head, words)
            exact = attention(q, k, v, Causal().tensor(N))

            def error(out, exact=exact):
                return ((out - exact).norm() / exact.norm()).item()

            near = error(attention(q, k, v, (Causal() & Window(8)).tensor(N)))
            even = error(attention(0 * q, k, v, Causal().tensor(N)))
            drawn = [
                error(performer.performer_attention(q, k, v, projection=directions(64, seed), causal=True))
                for seed in range(5)
            ]
            if head == "1.3":
                assert max(drawn) < near
                assert even < near
            else:
                assert near < min(drawn)
                assert sum(drawn) / 5 > 0.85 * even


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"way": "hash"}, "way.*expected any of"),
        ({"window": 0}, "window.*at least 1 and at most 60"),
        ({"step": 9}, "step.*at most 8"),
        ({"n_global": 9}, "n_global.*at most 8"),
        ({"n_random": -1}, "n_random.*at least 0"),
        ({"r": 48}, "r.*expected any of"),
        ({"head": "3.1"}, "head.*expected any of"),
        ({"layers": 0}, "layers.*at least 1"),
        ({"seed": 1000}, "seed.*at most 999"),
        ({"guess": "2.3"}, "guess.*expected any of"),
    ],
)
def test_nonsense_is_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        PairsExplorer(**arguments)


def test_the_still_picture_says_pairs_and_error():
    assert "window: 452 of 3600 pairs are computed; error of head 2.4: 0.46" in PairsExplorer().still()
    assert "Performer: no pair is computed; 16 numbers for each of 60 words" in PairsExplorer("performer").still()


# --- what a reader does -----------------------------------------------------------------------------------------------


def figure(page, name):
    return page.get_by_role("row", name=name).locator("td").inner_text()


def state(page, trait):
    return page.locator("div.explorer").evaluate("(e, trait) => e.explorer.model.get(trait)", trait)


@pytest.mark.browser
def test_a_guess_comes_before_the_errors(show):
    with show(PairsExplorer()) as page:
        errors = page.locator(".b-board .x-value")
        assert set(errors.all_inner_texts()[::2]) == {NOTHING}
        assert page.locator("svg .x-dot").count() == 0
        assert figure(page, "pairs computed") == "452 of 3,600"
        page.get_by_role("button", name="both").press("Enter")
        assert page.evaluate("document.activeElement.textContent").startswith("You said both; it is 2.4 only.")
        assert errors.first.inner_text() == f"{PairsExplorer().error():.2f}"
        assert page.locator("svg .x-dot").count() == 1
        page.get_by_role("button", name="Reset").click()
        assert page.get_by_role("group", name="your guess").is_visible()


@pytest.mark.browser
def test_each_way_has_its_budgets_and_a_picture(show):
    with show(PairsExplorer(guess="2.4")) as page:
        seen = set()
        for way in METHODS:
            page.get_by_role("combobox", name="Way").select_option(way)
            sliders = [
                s.evaluate("s => s.parentElement.innerText.split('\\n')[0]") for s in page.get_by_role("slider").all()
            ]
            seen.add((way in MASKS, "Layers L" in sliders))
            counted = figure(page, "pairs computed")
            assert counted.startswith("none") == (way not in MASKS)
            error = PairsExplorer(way, guess="2.4").error()
            assert f"{error:.2f}" in page.locator(".b-board .x-value").all_inner_texts()
        assert seen == {(True, True), (False, False)}


@pytest.mark.browser
def test_a_wider_window_costs_more_and_errs_less(show):
    with show(PairsExplorer(guess="2.4")) as page:
        page.get_by_role("slider", name="Window").press("End")
        assert figure(page, "pairs computed") == "1,830 of 3,600"
        assert figure(page, "multiplications") == figure(page, "exact attention") == "58,560"
        assert page.locator(".b-board .x-value").first.inner_text() == "0.00"
        page.get_by_role("slider", name="Window").press("Home")
        assert figure(page, "pairs computed") == "60 of 3,600"
        assert figure(page, "the last word hears of") == "1 of 60 words"


@pytest.mark.browser
@pytest.mark.parametrize("explorer", [e for e in explorers(12, seed=9) if e.way in MASKS], ids=repr)
def test_the_reach_of_layers_is_a_power_of_the_mask(show, explorer):
    explorer.layers = 3
    steps = explorer.rule().tensor(N).double()
    heard = (torch.linalg.matrix_power(steps, 3)[-1] > 0).sum().item()
    with show(explorer) as page:
        assert figure(page, "the last word hears of") == f"{heard} of 60 words"


@pytest.mark.browser
def test_linformer_cannot_hide_later_words(show):
    with show(PairsExplorer("linformer", guess="2.4")) as page:
        tick = page.get_by_label("later words hidden")
        assert not tick.is_checked()
        assert tick.is_disabled()
        assert figure(page, "exact attention") == "115,200"
        page.locator(".b-board").get_by_role("button", name="window", exact=True).click()
        assert tick.is_checked()
        assert state(page, "causal")


@pytest.mark.browser
def test_another_draw_is_another_error(show):
    with show(PairsExplorer("performer", guess="2.4")) as page:
        shown = [page.locator("svg .x-dot").get_attribute("cy")]
        for _ in range(3):
            page.get_by_role("button", name="Draw again").press("Enter")
            shown.append(page.locator("svg .x-dot").get_attribute("cy"))
        assert len(set(shown)) == 4
        assert state(page, "seed") == 3


@pytest.mark.browser
@pytest.mark.parametrize("width", all_but([360, 900], lambda width: width == 360))
@pytest.mark.parametrize("way", ["bigbird", "performer"])
def test_letters_can_be_read_and_hide_no_other(show, width, way):
    with show(PairsExplorer(way, guess="2.4"), width=width, has_touch=True) as page:
        for tab in ("Pairs", "Weights", "Budget", "Errors", "Recall"):
            if width == 360:
                page.get_by_role("button", name=tab, exact=True).tap()
            if page.locator("svg:visible").count():
                assert smallest(page) >= 11
            assert not collisions(page)
