"""Tests of the graph explorer: weights and labels agree with the library, the club with networkx; reproducible heads.

Both languages compute in float64 from the same whole numbers times the same steps. Largest difference measured: 3e-15.
"""

import gzip
import json
import math
import random

import networkx as nx
import pytest
import torch
import train_graph
from labels import collisions, smallest
from thorough import all_but
from torch.testing import assert_close

from lessons_lib.applications.graphs import SCORE_KINDS, normalised_adjacency
from lessons_lib.page.widgets import GraphExplorer
from lessons_lib.page.widgets.assemble import read
from lessons_lib.page.widgets.graph import DEALS, MEMBERS, WORDS, graph_record
from lessons_lib.page.widgets.trained import script_data

CARRIED = script_data("graph_heads.js")
CLOSE = {"rtol": 0, "atol": 1e-12}


def explorers(n):
    """Random settings on both graphs, some with removed or added edges."""
    chance = random.Random(6)
    pairs = [[u, v] for v in range(MEMBERS) for u in range(v)]
    return [
        GraphExplorer(
            ["club", "dictionary"][i % 2],
            SCORE_KINDS[i % 3],
            chance.choice([1, 2]),
            edits=chance.sample(pairs, 40 * (i % 4)),
            labels=[[u, chance.randrange(2)] for u in chance.sample(range(MEMBERS), 1 + i % 5)],
            alpha=round(chance.uniform(0, 0.99), 2),
            deal=chance.randrange(DEALS),
        )
        for i in range(n)
    ]


def call(explorer):
    return {name: getattr(explorer, name) for name in ("graph", "score", "head", "deal", "edits")}


# --- one graph in two languages ---------------------------------------------------------------------------------------


def check_weights(javascript, cases):
    masks = javascript.each("graph.math", "neighbours", [(e.graph, e.edits) for e in cases])
    scored = javascript.each("graph.math", "scores", [[call(e)] for e in cases])
    weighed = javascript.each("graph.math", "weights", [[call(e)] for e in cases])
    for explorer, mask, scores, weights in zip(cases, masks, scored, weighed, strict=True):
        assert mask == explorer.mask().tolist()
        assert_close(torch.tensor(scores, dtype=torch.float64), explorer.scores(), **CLOSE)
        assert_close(torch.tensor(weights, dtype=torch.float64), explorer.weights(), **CLOSE)


def check_labels(javascript, cases):
    calls = [(e.mask().tolist(), e.labels, e.alpha) for e in cases]
    for explorer, found in zip(cases, javascript.each("graph.math", "propagate", calls), strict=True):
        assert_close(torch.tensor(found, dtype=torch.float64), explorer.propagated(), **CLOSE)


@pytest.mark.browser
def test_attention_weights_agree_with_the_library(javascript):
    check_weights(javascript, explorers(36))


@pytest.mark.browser
def test_label_propagation_agrees_with_the_library(javascript):
    alone = GraphExplorer(edits=[[0, 11]], labels=[[11, 1], [2, 0]])
    assert (normalised_adjacency(alone.mask().fill_diagonal_(False))[11] == 0).all()
    cases = [alone, *(e for e in explorers(30) if e.graph == "club")]
    check_labels(javascript, cases)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("0.2 * x", "0.1 * x"),
        ("(x > 0 ? x : 0.2 * x)", "x"),
        ("/ Math.sqrt(WIDTH)", ""),
        ("i % 2 === head - 1", "i % 2 === 2 - head"),
        ("new Int8Array(bytes", "new Uint8Array(bytes"),
        ("new Int16Array(bytes", "new Int8Array(bytes"),
        ("[word, WORDS + says[i]]", "[word]"),
        ("club ? u === v", "club ? false"),  # nobody is a neighbour of itself
        ("if (club) mask[v][u] = mask[u][v];", ""),  # one direction alone
        ("filter((v) => mask[u][v])", "filter((v) => mask[u][v] || u === v)"),
        ("softmax(own.map((v) => row[v]))", "softmax(row)"),  # over all, edge or not
        ("u < WORDS && v >= WORDS && v < 2", "v >= WORDS && v < 2"),
    ],
)
def test_wrong_score_or_mask_is_noticed(altered, right, wrong):
    with altered("graph.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_weights(javascript, explorers(12))


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("= 1 - alpha", "= 1"),
        ("Math.sqrt(degree[u] * degree[v])", "degree[u]"),  # averages in place of the symmetric table
        ("has && u !== v", "has"),  # with loops
        ("row[n + 1] / row[i]", "row[n + 1]"),
        ("n + side", "n + 1 - side"),
    ],
)
def test_wrong_label_propagation_is_noticed(altered, right, wrong):
    with altered("graph.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_labels(javascript, [e for e in explorers(10) if e.graph == "club"])


@pytest.mark.browser
def test_ranks_first_choices_and_reversed_pairs_agree_with_direct_counts(javascript):
    for explorer in explorers(12):
        weights, mask = explorer.weights(), explorer.mask()
        found = javascript("graph.math", "reversed", weights.tolist(), mask.tolist())
        pairs = opposite = 0
        for j in range(len(mask)):
            for k in range(j):
                both = mask[:, j] & mask[:, k]
                apart = (weights[both, j] - weights[both, k]).sign().tolist()
                pairs += len(apart) > 1
                opposite += {-1.0, 1.0} <= set(apart)
        assert found == {"pairs": pairs, "opposite": opposite}
        firsts = [row.argmax().item() if row.any() else -1 for row in weights]
        assert javascript("graph.math", "firstChoices", weights.tolist()) == firsts
        explorer.score = "gat"
        order = explorer.scores()[0].argsort(descending=True).tolist()
        assert javascript("graph.math", "ranked", {**call(explorer), "score": "dot"}) == order


# --- what is claimed --------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_gat_ranks_pairs_in_one_order_and_other_scores_do_not(javascript):
    opposite = dict.fromkeys(SCORE_KINDS, 0)
    for explorer in explorers(18):
        for score in SCORE_KINDS:
            explorer.score = score
            found = javascript("graph.math", "reversed", explorer.weights().tolist(), explorer.mask().tolist())
            opposite[score] += found["opposite"]
    assert opposite["gat"] == 0
    assert min(opposite["gatv2"], opposite["dot"]) > 0


@pytest.mark.parametrize("head", [1, 2])
@pytest.mark.parametrize("deal", range(DEALS))
def test_gat_has_one_first_choice_and_other_scores_find_the_matching_key(deal, head):
    words = [int(word) for word in CARRIED["deals"][deal][0]]
    for score in SCORE_KINDS:
        explorer = GraphExplorer("dictionary", score, head, deal=deal)
        firsts = explorer.weights()[:WORDS, WORDS:].argmax(-1).tolist()
        if score == "gat":
            assert len(set(firsts)) == 1
        else:
            assert [words[entry] for entry in firsts] == list(range(WORDS))


def test_gat_query_without_an_edge_takes_the_next_key_in_order():
    explorer = GraphExplorer("dictionary", "gat")
    row = explorer.weights()[3]
    best, second = row.argsort(descending=True)[:2].tolist()
    explorer.edits = [[3, best]]
    assert explorer.weights()[3].argmax() == second
    assert_close(explorer.weights()[3].sum(), torch.tensor(1.0))
    explorer.edits = [[3, entry] for entry in range(WORDS, 2 * WORDS)]
    assert not explorer.weights()[3].any()


def test_two_labels_classify_all_members_but_one():
    explorer = GraphExplorer(labels=[[0, 0], [33, 1]])
    sides = [int(side) for side in CARRIED["sides"]]
    wrong = (explorer.propagated().argmax(-1) != torch.tensor(sides)).nonzero().flatten().tolist()
    assert wrong == [8]
    assert graph_record()["propagated"] == pytest.approx(31 / 32, abs=1e-4)


# --- how it was made --------------------------------------------------------------------------------------------------


def test_club_agrees_with_networkx():
    club = nx.karate_club_graph()
    mask = GraphExplorer().mask()
    assert mask.sum() == MEMBERS + 2 * club.number_of_edges()
    assert all(mask[u, v] for u, v in club.edges)
    assert [club.nodes[u]["club"] == "Officer" for u in club] == [side == "1" for side in CARRIED["sides"]]


def test_nodes_are_far_enough_apart_for_touch():
    places = CARRIED["places"]
    assert min(math.dist(a, b) for i, a in enumerate(places) for b in places[:i]) >= 28
    assert all(15 <= x <= 325 and 15 <= y <= 305 for x, y in places)


def test_record_describes_the_stored_data():
    record = graph_record()
    steps, seeds = (" ".join(map(str, record[name])) for name in ("steps", "seeds"))
    assert record["command"] == f"python tools/train_graph.py --steps {steps} --seeds {seeds}"
    for graph, heads in CARRIED["heads"].items():
        assert list(heads) == list(record["right"][graph]) == list(SCORE_KINDS)
        assert all(len(shares) == len(record["seeds"]) for shares in record["right"][graph].values())
    for score, shares in record["right"]["dictionary"].items():
        assert max(shares) < 0.5 if score == "gat" else min(shares) > 0.99
    assert min(min(shares) for shares in record["right"]["club"].values()) > 0.8


def test_rounding_changes_no_weight_by_much():
    """Of a head of GAT in the dictionary, after five steps of training."""
    torch.set_default_dtype(torch.float32)
    layer, _ = train_graph.on_dictionary("gat", 0, 5)
    parts = train_graph.pack_layer(layer)
    assert set(parts) == {"q", "k"}
    for score, names in (("gatv2", {"q", "k", "a"}), ("dot", {"q", "k"})):
        assert set(train_graph.pack_layer(train_graph.on_dictionary(score, 0, 1)[0])) == names
    explorer = GraphExplorer("dictionary", "gat")
    words, says = (torch.tensor([int(digit) for digit in part]) for part in CARRIED["deals"][0])
    x = train_graph.features(words, says)
    assert_close(x.double(), explorer.features())
    exact = layer.weights(x, train_graph.linked())[0].double()
    heads = {"dictionary": {"gat": parts}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lessons_lib.page.widgets.graph.script_data", lambda _: {**CARRIED, "heads": heads})
        assert_close(explorer.weights(), exact, rtol=0, atol=0.005)


@pytest.mark.thorough
def test_model_is_reproducible(monkeypatch, tmp_path):
    """Run the whole command with two steps."""
    torch.set_default_dtype(torch.float32)
    out = tmp_path / "made.js"
    monkeypatch.setattr("sys.argv", ["train_graph.py", "--steps", "2", "3", "--seeds", "5", "--out", str(out)])
    threads = torch.get_num_threads()
    train_graph.main()
    torch.set_num_threads(threads)
    head, text = out.read_text().split("export const MODEL = ")
    made = json.loads(text.removesuffix(";\n"))
    assert head.startswith("/** ")
    assert {name: made[name] for name in ("edges", "sides", "deals")} == {
        name: CARRIED[name] for name in ("edges", "sides", "deals")
    }
    assert made["heads"].keys() == CARRIED["heads"].keys()
    assert made["record"]["seeds"] == [5]


def test_data_script_is_small_when_compressed():
    assert len(gzip.compress(read("graph_heads.js").encode())) < 6_200


# --- traits -----------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"graph": "ring"}, "graph.*expected any of"),
        ({"score": "cosine"}, "score.*expected any of"),
        ({"head": 3}, "head.*expected any of"),
        ({"node": 34}, "node.*at most 33"),
        ({"hand": "cut"}, "hand.*expected any of"),
        ({"edits": [[3, 2]]}, "edits must be pairs"),
        ({"edits": [[2, 3], [2, 3]]}, "each once"),
        ({"edits": [[2, 34]]}, "at most 33"),
        ({"edits": [[2, 3, 4]]}, "edits"),
        ({"labels": [[2, 2]]}, "0 or 1"),
        ({"labels": [[2, 0], [2, 1]]}, "each member once"),
        ({"alpha": 1.0}, "alpha.*at most 0.99"),
        ({"deal": 6}, "deal.*at most 5"),
        ({"guess": 9}, "guess.*at most 8"),
        ({"places": [[1, 2, 3], [1, 4, 5]]}, "each node once"),
        ({"places": [[34, 2, 3]]}, "places must be"),
        ({"places": [[1, 2, 321]]}, "y <= 320"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        GraphExplorer(**arguments)


def test_still_contains_the_attention_weights_of_a_member():
    explorer = GraphExplorer(node=11)
    weights = explorer.weights()[11]
    assert f"member 12 of the karate club attends to 1 ({weights[0]:.2f}), 12 ({weights[11]:.2f})" in explorer.still()
    assert "eight queries" in GraphExplorer("dictionary").still()


# --- what a reader does -----------------------------------------------------------------------------------------------


def figure(page, name):
    return page.get_by_role("row", name=name).locator("td").inner_text()


def state(page, trait):
    return page.locator("div.explorer").evaluate("(e, trait) => e.explorer.model.get(trait)", trait)


def knot(page, name):
    return page.locator(".k-knot", has=page.locator(f"text='{name}'"))


def hand(page, does):
    page.get_by_label("A click").select_option(label=does)


@pytest.mark.browser
def test_member_is_selected_by_click_and_by_keyboard(show):
    with show(GraphExplorer(node=0)) as page:
        knot(page, "12").click()
        assert state(page, "node") == 11
        row = GraphExplorer(node=11).weights()[11]
        assert f"1 ({row[0]:.2f})" in page.locator(".k-told").inner_text()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert state(page, "node") != 11
        before = page.locator(".k-told").inner_text()
        page.get_by_role("combobox", name="Score").select_option(label="GATv2")
        assert page.locator(".k-told").inner_text() != before


PLACE = "knot => knot.getAttribute('transform').match(/[\\d.]+/g).map(Number)"


def middle(locator):
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.browser
def test_node_is_dragged_with_its_edges_and_remains_selectable(show):
    with show(GraphExplorer(node=0)) as page:
        scale = page.locator("svg[role=group]").evaluate("svg => svg.getScreenCTM().a")
        (x, y), edges = middle(knot(page, "12")), page.locator(".k-own").inner_html()
        page.mouse.move(x + 3, y - 2)  # not at its centre: the node must not jump
        page.mouse.down()
        page.mouse.move(x + 30, y + 20, steps=3)
        page.mouse.move(x + 3 + 60 * scale, y - 2 + 40 * scale, steps=5)
        page.mouse.up()
        page.wait_for_function(f"knot => ({PLACE})(knot)[0] > 100", arg=knot(page, "12").element_handle())
        home = CARRIED["places"][11]
        assert knot(page, "12").evaluate(PLACE) == pytest.approx([home[0] + 60, home[1] + 40], abs=2)
        assert [u for u, _, _ in state(page, "places")] == [11]
        assert state(page, "node") == 0  # a drag selects nothing
        assert page.locator(".k-own").inner_html() != edges  # the edge from 1 to 12 follows
        knot(page, "12").click()
        assert state(page, "node") == 11
        page.get_by_role("button", name="Reset").click()
        assert knot(page, "12").evaluate(PLACE) == home


@pytest.mark.browser
def test_node_is_moved_by_keyboard_and_by_touch_and_stays_inside(show):
    with show(GraphExplorer(node=11), width=360, has_touch=True) as page:
        page.locator(".k-knot[tabindex='0']").focus()
        home = CARRIED["places"][11]
        page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("Shift+ArrowDown")
        assert knot(page, "12").evaluate(PLACE) == [home[0] + 8, home[1] + 8]
        for _ in range(50):
            page.keyboard.press("Shift+ArrowLeft")
        assert knot(page, "12").evaluate(PLACE) == [15, home[1] + 8]
        assert state(page, "node") == 11
        knot(page, "17").tap()
        assert state(page, "node") == 16


@pytest.mark.browser
def test_places_are_taken_from_the_traits_and_forgotten_with_the_graph(show):
    with show(GraphExplorer(places=[[3, 100, 300]])) as page:
        assert knot(page, "4").evaluate(PLACE) == [100, 300]
        assert "M" in GraphExplorer(places=[[3, 100, 300]]).still()
        assert GraphExplorer(places=[[3, 100, 300]]).still() != GraphExplorer().still()
        page.get_by_label("Graph").select_option(label="a dictionary")
        assert state(page, "places") == []


@pytest.mark.browser
def test_two_clicks_remove_an_edge_and_two_more_add_it(show):
    with show(GraphExplorer()) as page:
        hand(page, "removes or adds an edge")
        knot(page, "9").click()
        assert "9 is one end" in page.locator("figcaption").first.inner_text()
        knot(page, "34").click()
        assert (state(page, "edits"), state(page, "node")) == ([[8, 33]], 8)
        assert page.locator(".k-cut").get_attribute("d")
        cut = GraphExplorer(edits=[[8, 33]]).weights()[8]
        assert f"({cut.max():.2f})" in page.locator(".k-told").inner_text()
        knot(page, "34").click()
        knot(page, "9").click()
        assert (state(page, "edits"), state(page, "node")) == ([], 33)
        knot(page, "12").click()
        knot(page, "17").click()
        assert state(page, "edits") == [[11, 16]]
        assert page.locator(".k-laid").get_attribute("d")
        knot(page, "5").click()
        knot(page, "5").click()  # and let go
        assert "Click two nodes" in page.locator("figcaption").first.inner_text()


@pytest.mark.browser
def test_clicks_cycle_through_labels_and_labels_propagate(show):
    with show(GraphExplorer()) as page:
        hand(page, "labels a member")
        assert figure(page, "others that labels put") == "no labels yet"
        knot(page, "1").click()
        knot(page, "34").click()
        assert state(page, "labels") == [[0, 0], [33, 0]]
        knot(page, "34").click()
        assert state(page, "labels") == [[0, 0], [33, 1]]
        assert figure(page, "others that labels put") == "31 of 32"
        assert page.locator(".k-other").count() == 1
        assert "put with the officers" in knot(page, "9").get_attribute("aria-label")
        page.get_by_label("Reach").press("Home")
        assert figure(page, "others that labels put") == "0 of 32"  # labels stay where they are
        knot(page, "34").click()
        assert state(page, "labels") == [[0, 0]]


@pytest.mark.browser
def test_guess_precedes_gat_weights_and_dictionary_edges_can_be_removed(show):
    with show(GraphExplorer()) as page:
        assert not page.get_by_role("group", name="guess").is_visible()
        page.get_by_label("Graph").select_option(label="a dictionary")
        assert page.get_by_role("group", name="guess").is_visible()
        assert page.locator(".k-knot").count() == 16  # the graph is there, without its weights
        assert page.locator(".k-own path").count() == 0
        assert page.locator("rect.k-cell").count() == 64
        assert page.locator("rect.k-cell:not([fill-opacity='0.000'])").count() == 0
        assert "weight" not in page.locator(".k-knot").nth(8).get_attribute("aria-label")
        assert not figure(page, "different keys with").startswith("1")
        page.get_by_role("button", name="5 different keys").press("Enter")
        assert page.evaluate("document.activeElement.textContent").startswith(
            "You said 5. With every edge in place it is 1"
        )
        assert figure(page, "different keys with") == "1 · 8 · 8"
        assert page.locator(".k-own path").count() == 8
        assert figure(page, "queries with most") == "1 · 8 · 8"
        best = GraphExplorer("dictionary").weights()[3].argmax().item()
        hand(page, "removes or adds an edge")
        page.locator(".k-knot").nth(best).click()
        page.locator(".k-knot").nth(3).click()
        assert (state(page, "edits"), state(page, "node")) == ([[3, best]], 3)
        assert figure(page, "different keys with").startswith("2")
        page.get_by_label("Graph").select_option(label="the karate club")
        assert state(page, "edits") == []
        page.get_by_role("button", name="Reset").click()
        page.get_by_label("Graph").select_option(label="a dictionary")
        assert page.get_by_role("group", name="guess").is_visible()


@pytest.mark.browser
def test_phone_shows_graph_or_weights_and_nodes_accept_taps(show):
    with show(GraphExplorer(), width=360, has_touch=True) as page:
        knot(page, "17").tap()
        assert state(page, "node") == 16
        assert page.get_by_text("attends to").count() == 1
        assert not page.get_by_text("attends to").is_visible()
        page.get_by_role("button", name="Weights").tap()
        assert page.get_by_text("attends to").is_visible()


@pytest.mark.browser
@pytest.mark.parametrize("width", all_but([360, 900], lambda width: width == 360))
@pytest.mark.parametrize("traits", [{"node": 33}, {"graph": "dictionary", "guess": 1}], ids=["club", "dictionary"])
def test_labels_are_legible_and_do_not_overlap(show, width, traits):
    with show(GraphExplorer(**traits), width=width) as page:
        for name in ("Graph", "Weights") if width == 360 else ("",):
            if name:
                page.get_by_role("button", name=name).click()
            assert smallest(page) >= 11
            assert not collisions(page)
