"""Tests of the routing explorer: routing agrees with the library; reproducible routers.

Both compute in float64 from the same whole numbers times the same steps. Largest difference measured: 5e-16.
"""

import gzip
import json
import random

import pytest
import torch
import train_routing
from labels import collisions, smallest
from thorough import all_but
from torch.testing import assert_close

from lessons_lib.page.widgets import RoutingExplorer
from lessons_lib.page.widgets.assemble import read
from lessons_lib.page.widgets.routing import BALANCES, CAPACITIES, EXPERTS, LENGTH, RATE, TEXTS, counts, routing_record
from lessons_lib.page.widgets.trained import script_data
from lessons_lib.training.stories import VOCABULARY, encode, first_error
from lessons_lib.transformer.feedforward import Router

RECORDED = script_data("routing_scores.js")
CLOSE = {"rtol": 0, "atol": 1e-12}


def explorers(n, capacities=tuple(CAPACITIES)):
    """Random routers and stories, half of them with biases."""
    chance = random.Random(4)
    return [
        RoutingExplorer(
            chance.choice(BALANCES),
            1 + i % 2,
            chance.choice([1, 2]),
            chance.randrange(TEXTS),
            chance.randint(2, LENGTH),
            capacity=chance.choice(capacities),
            bias=[round(chance.uniform(-0.4, 0.4), 2) for _ in range(EXPERTS if i % 4 > 1 else 0)],
        )
        for i in range(n)
    ]


def added(explorer):
    return explorer.bias or [0.0] * EXPERTS


def how(explorer):
    """The settings of the script besides the scores."""
    bias = [a + b for a, b in zip(added(explorer), explorer._router()["bias"], strict=True)]
    return {"topK": explorer.top_k, "capacity": explorer.capacity, "bias": bias}


# --- one router in two languages --------------------------------------------------------------------------------------


def check_routes(javascript, cases):
    states = [(e.balance, e.top_k, e.layer, e.story, e.words) for e in cases]
    rows = javascript.each("routing.math", "scores", states)
    found = javascript.each("routing.math", "route", list(zip(rows, map(how, cases), strict=True)))
    for explorer, scores, ours in zip(cases, rows, found, strict=True):
        theirs = explorer.routing()
        assert scores == explorer.scores().tolist()
        assert (ours["experts"], ours["dropped"]) == (theirs.experts.tolist(), theirs.dropped.tolist())
        assert (ours["load"], ours["capacity"]) == (theirs.load.tolist(), theirs.capacity)
        assert ours["asked"] == counts(theirs).tolist()
        for name, wanted in (("probabilities", theirs.probabilities), ("weights", theirs.weights)):
            assert_close(torch.tensor(ours[name], dtype=torch.float64), wanted, **CLOSE)
        assert ours["balanceLoss"] == pytest.approx(theirs.balance_loss.item(), abs=1e-12)


@pytest.mark.browser
def test_routing_agrees_with_the_library(javascript):
    cases = explorers(60)
    assert {e.routing().dropped.any().item() for e in cases} == {True, False}
    check_routes(javascript, cases)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("chance + bias[i]", "chance"),
        ("[expert]);", "[expert] + bias[expert]);"),  # a bias that changes what a choice weighs
        ("new Int8Array(bytes", "new Uint8Array(bytes"),  # no sign
        ("asked[own[choice]] > capacity", "asked[own[choice]] >= capacity"),
        ("Math.ceil((factor", "Math.floor((factor"),
        ("topK === 1 ? chances", "topK ? chances"),  # not made to sum to one
        ("let choice = 0; choice < topK; choice++", "let choice = topK - 1; choice >= 0; choice--"),  # second first
        ("many / choices", "many / rows.length"),
        ("text * LENGTH, text * LENGTH + n", "text * LENGTH, text * LENGTH + n - 1"),
    ],
)
def test_wrong_router_is_noticed(altered, right, wrong):
    with altered("routing.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_routes(javascript, explorers(24, (0.5, 1.0)))


@pytest.mark.browser
def test_python_and_javascript_offer_the_same_values(javascript):
    found = javascript.page.evaluate("async () => { const m = await import('./routing.math.js'); return {...m}; }")
    assert (found["CAPACITIES"], found["RATE"], found["EXPERTS"]) == (CAPACITIES, RATE, EXPERTS)
    assert [" ".join(words) for words in found["TEXTS"]] == RECORDED["texts"]


@pytest.mark.browser
def test_no_expert_is_full_at_the_largest_capacity(javascript):
    for explorer in explorers(20, (8.0,)):
        bounded, free = explorer.routing(), Router(EXPERTS, explorer.top_k, capacity_factor=None, renormalise=False)
        assert not bounded.dropped.any()
        assert bounded.capacity >= explorer.words == len(free(explorer.scores()).dropped)


@pytest.mark.browser
def test_bias_update_agrees_with_the_library(javascript):
    for explorer in explorers(20):
        asked = counts(explorer.routing())
        router = Router(EXPERTS, 1, capacity_factor=None, renormalise=False, biased=True)
        router.bias = torch.tensor(added(explorer), dtype=torch.float64)
        router.rebalance(asked, rate=RATE)
        moved = javascript("routing.math", "rebalanced", added(explorer), asked.tolist(), RATE)
        assert moved == pytest.approx(router.bias.tolist(), abs=1e-6)
    assert javascript("routing.math", "rebalanced", [1.0, -1.0], [0, 2], 0.5) == [1.0, -1.0]  # the sliders' ends


@pytest.mark.browser
def test_effective_experts_are_exp_of_the_entropy(javascript):
    for asked in ([3, 3, 3, 3, 3, 3, 3, 3], [24, 0, 0, 0, 0, 0, 0, 0], [12, 0, 6, 0, 3, 0, 1, 2]):
        share = torch.tensor(asked).double() / sum(asked)
        wanted = torch.special.entr(share).sum().exp().item()
        assert javascript("routing.math", "inEffect", asked) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.browser
def test_effect_of_the_last_word_on_earlier_words(javascript):
    """With top-1 routing it displaces no word; with top-2 its first choice comes before second choices."""
    pushed = {1: 0, 2: 0}
    for explorer in explorers(80, (0.5, 1.0, 1.5)):
        if explorer.words == 2:
            continue
        after = explorer.routing()
        told = javascript("routing.math", "lastWord", explorer.scores().tolist(), how(explorer))
        explorer.words -= 1
        before = explorer.routing()
        was, now = before.dropped, after.dropped[:-1]
        for name, where in (("out", now & ~was), ("back", was & ~now)):
            wanted = [[w, c, before.experts[w, c].item()] for w, c in where.nonzero().tolist()]
            assert [[one["word"], one["choice"], one["expert"]] for one in told[name]] == wanted
        assert told["places"] == (after.capacity or 0) - (before.capacity or 0)
        assert all(one["choice"] == 1 for one in told["out"])
        pushed[explorer.top_k] += len(told["out"])
    assert pushed[1] == 0 < pushed[2]


@pytest.mark.browser
def test_words_of_an_expert_in_order_of_arrival(javascript):
    for explorer in explorers(10, (1.0,)):
        routing = explorer.routing()
        ours = {"experts": routing.experts.tolist(), "dropped": routing.dropped.tolist()}
        for expert in range(EXPERTS):
            there = [
                {"word": word, "choice": choice}
                for choice in range(explorer.top_k)
                for word in range(explorer.words)
                if routing.experts[word, choice] == expert and not routing.dropped[word, choice]
            ]
            assert javascript("routing.math", "inside", ours, expert) == there
            assert len(there) == routing.load[expert]


# --- how the routers were made ----------------------------------------------------------------------------------------


def test_record_describes_the_stored_data():
    record = routing_record()
    seeds = " ".join(map(str, record["seeds"]))
    assert record["command"] == f"python tools/train_routing.py --seeds {seeds} --steps {record['steps']}"
    assert record["floor"] == pytest.approx(train_routing.held_out().surprisals.mean().item(), abs=1e-6)
    assert record["held_out"]["words"] == train_routing.held_out().inputs.numel()
    assert list(RECORDED["routers"]) == [f"{balance} {top_k}" for top_k in (1, 2) for balance in BALANCES]
    for name, router in RECORDED["routers"].items():
        assert len(router["above"]) == len(record["seeds"])
        assert all(0 < above < 0.3 for above in router["above"])
        for layer in router["layers"]:
            assert [sum(asked) for asked in layer["asked"]] == [int(name[-1]) * record["held_out"]["words"]] * 3
            assert any(layer["bias"]) == name.startswith("bias")


def test_training_with_balance_is_balanced():
    """With one expert for each word. The losses do not differ by more than between seeds."""
    used = {}
    for balance in BALANCES:
        asked = torch.tensor([layer["asked"] for layer in RECORDED["routers"][f"{balance} 1"]["layers"]]).double()
        used[balance] = torch.special.entr(asked / asked.sum(-1, keepdim=True)).sum(-1).exp()
    assert used["none"][0].max() < 6.7
    assert used["none"].max() < 7.1
    assert min(used["0.1"].min(), used["bias"].min()) > 7.8
    assert (used["none"] < used["0.01"]).all()


def test_texts_are_beginnings_of_stories():
    assert len(RECORDED["texts"]) == TEXTS
    for text in RECORDED["texts"]:
        tokens = encode(text)
        assert len(tokens) == LENGTH
        assert first_error(tokens) is None


def test_rounding_changes_few_selections():
    """Five of 4032 selections change, and no probability changes by more than 0.0065."""
    assert routing_record()["rounding"]["choices"] <= 8
    assert routing_record()["rounding"]["probability"] < 0.01


def test_rounded_scores_of_a_word_are_distinct():
    scores = torch.randn(13, 8, generator=torch.Generator().manual_seed(2)).double()
    scores[3] = torch.tensor([1.0, 1.0001, 1.0002, 1, -1, 0, 0, 0.5])
    step, numbers = train_routing.rounded(scores)
    assert all(len(set(row)) == 8 for row in numbers.tolist())
    assert numbers.abs().max() <= 127
    moved = (step * numbers).softmax(-1) - scores.softmax(-1)
    assert moved.abs().max() < 0.03
    assert (numbers.gather(-1, scores.argsort(-1)).diff(dim=-1) > 0).all()


@pytest.mark.thorough
def test_model_is_reproducible(monkeypatch, tmp_path):
    """Run the whole command with two steps and few held-out words."""
    few = train_routing.sample_stories(torch.Generator().manual_seed(1), batch_size=4, n=11)
    monkeypatch.setattr(train_routing, "held_out", lambda: few)
    monkeypatch.setattr(
        "sys.argv", ["train_routing.py", "--steps", "2", "--seeds", "5", "--out", str(tmp_path / "made.js")]
    )
    threads = torch.get_num_threads()
    train_routing.main()
    torch.set_num_threads(threads)
    head, text = (tmp_path / "made.js").read_text().split("export const MODEL = ")
    made = json.loads(text.removesuffix(";\n"))
    assert head.startswith("/** ")
    assert made["record"]["seeds"] == [5]
    assert made["routers"].keys() == RECORDED["routers"].keys()
    assert made["texts"] == RECORDED["texts"]
    assert all(set(text.split()) <= set(VOCABULARY) for text in made["texts"])
    bias = made["routers"]["bias 1"]["layers"][0]["bias"]
    assert {abs(round(100 * one)) for one in bias} <= {0, 1, 2}  # two steps of a hundredth, up or down
    assert any(bias)


def test_data_script_is_small_when_compressed():
    assert len(gzip.compress(read("routing_scores.js").encode())) < 27_000


# --- traits -----------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"balance": "0.5"}, "balance.*expected any of"),
        ({"top_k": 3}, "top_k.*expected any of"),
        ({"layer": 0}, "layer.*expected any of"),
        ({"story": 6}, "story.*at most 5"),
        ({"words": 1}, "words.*at least 2"),
        ({"words": 29}, "words.*at most 28"),
        ({"query": 28}, "query.*at most 27"),
        ({"capacity": 1.1}, "capacity.*expected any of"),
        ({"bias": [0.0] * 7}, "bias must be 8 numbers or none, got 7"),
        ({"bias": [0.0] * 7 + [1.5]}, "at most 1"),
        ({"guess": 9}, "guess.*at most 8"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        RoutingExplorer(**arguments)


def test_still_contains_the_load_of_each_expert():
    explorer = RoutingExplorer("none", 2, 1, 3, 17, capacity=1.0)
    asked = ", ".join(map(str, counts(explorer.routing()).tolist()))
    lost = int(explorer.routing().dropped.sum())
    assert f"17 words, choices of the eight experts: {asked}; {lost} choices dropped" in explorer.still()


# --- what a reader does -----------------------------------------------------------------------------------------------


def figure(page, name):
    return page.get_by_role("row", name=name).locator("td").inner_text()


def tab(page, name):
    page.get_by_role("button", name=name, exact=True).locator("visible=true").click()


def headline(page):
    return page.locator(".x-headline:visible b").inner_text()


def state(page, trait):
    return page.locator("div.explorer").evaluate("(e, trait) => e.explorer.model.get(trait)", trait)


@pytest.mark.browser
def test_guess_precedes_routers_without_balance(show):
    with show(RoutingExplorer("0.1")) as page:
        assert not page.get_by_role("group", name="guess").is_visible()
        page.get_by_label("Trained with").select_option(label="no balance")
        assert page.get_by_role("group", name="guess").is_visible()
        assert not page.locator("svg").first.is_visible()
        assert page.locator("path").count() == 0
        page.get_by_role("button", name="5 experts").press("Enter")
        assert not page.get_by_role("group", name="guess").is_visible()
        assert page.locator("svg path").count() == LENGTH
        assert page.evaluate("document.activeElement.textContent").startswith("You said 5.")
        told = "You said 5. In this layer 12,288 new words are spread over the eight as over 4.6"
        assert page.get_by_text(told).is_visible()
        tab(page, "Experts")
        assert figure(page, "you said, without balance") == "5"
        assert figure(page, "in effect, new words").count(",") == 2
        page.get_by_role("button", name="Reset").click()
        page.get_by_label("Trained with").select_option(label="no balance")
        assert page.get_by_role("group", name="guess").is_visible()


@pytest.mark.browser
def test_popular_expert_loses_words_with_a_lower_bias(show):
    explorer = RoutingExplorer("none", guess=4)
    asked = counts(explorer.routing())
    favourite = int(asked.argmax()) + 1
    with show(explorer) as page:
        tab(page, "Experts")
        load = page.locator(".r-experts .x-value").nth(2 * favourite - 1)
        assert load.inner_text() == str(asked.max().item())
        page.get_by_role("slider", name=f"bias of expert {favourite}").press("Home")
        assert load.inner_text() == "0"
        page.get_by_role("button", name="All to 0").click()
        assert load.inner_text() == str(asked.max().item())
        before = float(headline(page).removesuffix(" of 8"))
        for _ in range(20):
            page.get_by_role("button", name="Move biases").press("Enter")
        assert float(headline(page).removesuffix(" of 8")) > before + 0.5
        assert state(page, "bias")[favourite - 1] < 0


@pytest.mark.browser
def test_capacity_strikes_words_and_names_earlier_ones(show):
    explorer = RoutingExplorer("0.01", 1, 1, 0, LENGTH, capacity=0.5)
    routing = explorer.routing()
    lost = routing.dropped.flatten().nonzero().flatten().tolist()
    words = RECORDED["texts"][0].split()
    with show(explorer) as page:
        assert page.locator("svg .r-out").all_text_contents() == [words[i] for i in lost]
        assert page.locator("path.r-late").count() == len(lost)
        assert headline(page) == f"{len(lost)} of {LENGTH}"
        page.locator("svg .r-out").last.click()
        assert state(page, "query") == lost[-1]
        expert = routing.experts[lost[-1], 0].item()
        first = next(i for i in range(LENGTH) if routing.experts[i, 0] == expert)
        assert f"goes to expert {expert + 1}, which is full of {words[first]}" in page.locator(".r-own").inner_text()
        page.get_by_label("Capacity c").press("End")
        assert page.locator("svg .r-out").count() == 0
        assert page.locator(".r-last").inner_text() == "Without a limit no choice is dropped."


@pytest.mark.browser
def test_later_word_displaces_a_second_choice(show):
    explorer = RoutingExplorer("none", 2, 1, 0, 2, capacity=1.0, guess=1)
    with show(explorer) as page:
        slider, said = page.get_by_label("Words in the call"), set()
        for _ in range(LENGTH - 2):
            slider.press("ArrowRight")
            said.add("pushes out" in page.locator(".r-last").inner_text())
        assert said == {True, False}


@pytest.mark.browser
def test_phone_shows_words_or_experts_and_accepts_taps(show):
    with show(RoutingExplorer("0.01", 1, 1, 2, query=3), width=360, has_touch=True) as page:
        page.locator("svg text", has_text=RECORDED["texts"][2].split()[8]).first.tap()
        assert RECORDED["texts"][2].split()[state(page, "query")] == RECORDED["texts"][2].split()[8]
        assert not page.locator(".r-experts").is_visible()
        page.get_by_role("button", name="Experts").tap()
        assert page.locator(".r-experts").is_visible()
        page.get_by_role("button", name="Move biases").tap()
        assert sorted(set(state(page, "bias")))[0] == -RATE


@pytest.mark.browser
@pytest.mark.parametrize("width", all_but([360, 900], lambda width: width == 360))
def test_labels_are_legible_and_do_not_overlap(show, width):
    with show(RoutingExplorer("bias", 2, 2, 4, capacity=0.5, query=20), width=width) as page:
        assert smallest(page) >= 11
        assert not collisions(page)


@pytest.mark.browser
def test_both_tabs_fit_one_screen_of_a_laptop(show):
    with show(RoutingExplorer("none", 2, 2, 4, capacity=1.0, guess=3), width=1280) as page:
        for name in ("Words", "Experts"):
            tab(page, name)
            assert page.locator("div.explorer").bounding_box()["height"] < 800
