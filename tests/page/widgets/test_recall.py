"""Tests of the recall explorer: it shows what was recorded, and the exact share of the commonest value."""

import json
from itertools import product

import pytest
import record_recall
from labels import collisions, smallest
from thorough import all_but

from lessons_lib.page.widgets import RecallExplorer
from lessons_lib.page.widgets.recall import RECALL_KINDS
from lessons_lib.page.widgets.trained import script_data

RECORD = json.loads(record_recall.RECORD.read_text(encoding="utf-8"))
CARRIED = script_data("recall_record.js")


def test_script_is_what_the_tool_writes():
    assert record_recall.SCRIPT.read_text(encoding="utf-8") == record_recall.script(RECORD)


@pytest.mark.parametrize(("steps", "part"), [(800, "table"), (3200, "longer")])
def test_shares_agree_with_the_record(steps, part):
    rows = {(row["method"], row["pairs"]): row["accuracy"] for row in RECORD[part]}
    assert list(dict.fromkeys(row["method"] for row in RECORD["table"])) == RECALL_KINDS
    for kind, pairs in product(RECALL_KINDS, RECORD["pairs"]):
        assert RecallExplorer(pairs, kind, steps).shares(kind) == rows.get((kind, pairs), [])
    states = {(row["method"], row["pairs"]): row["state"] for row in RECORD["table"]}
    assert {
        (one["kind"], p): s for one in CARRIED["kinds"] for p, s in zip(CARRIED["pairs"], one["state"], strict=True)
    } == states


@pytest.mark.parametrize(("n_pairs", "n_values"), [(1, 5), (2, 3), (3, 2), (4, 3)])
def test_commonest_agrees_with_all_texts(n_pairs, n_values):
    texts = list(product(range(n_values), repeat=n_pairs))
    mean = sum(max(map(text.count, text)) for text in texts) / len(texts) / n_pairs
    assert record_recall.commonest(n_pairs, n_values) == pytest.approx(mean, abs=1e-12)


def test_gru_is_no_better_than_the_commonest_value():
    """What the explorer's text asks the reader to see; the other states are better."""
    for pairs, least in zip(CARRIED["pairs"], CARRIED["commonest"], strict=True):
        means = {kind: sum(RecallExplorer(pairs).shares(kind)) / 3 for kind in RECALL_KINDS}
        assert abs(means["GRU"] - least) < 0.02
        assert min(means[kind] for kind in ("elu + 1", "sum", "Performer")) > least + 0.1


@pytest.mark.rejects
@pytest.mark.parametrize("arguments", [{"pairs": 5}, {"kind": "LSTM"}, {"steps": 1600}])
def test_invalid_arguments_raise(arguments):
    with pytest.raises(ValueError, match=r"expected any of"):
        RecallExplorer(**arguments)


def test_still_contains_the_shares():
    assert "share of 16 pairs recalled after 800 steps: attention 1.00, window 0.08" in RecallExplorer().still()
    assert "GRU" not in RecallExplorer(steps=3200).still()


def headline(page):
    return page.locator(".c-headline").inner_text()


@pytest.mark.browser
def test_slider_and_kinds_change_the_headline(show):
    with show(RecallExplorer()) as page:
        assert headline(page) == (
            "0.54 of 16 pairs: linear, elu + 1, which stores 264 numbers. Always answering the commonest value of the "
            "text would score 0.19."
        )
        page.get_by_role("button", name="attention").press("Enter")
        assert headline(page).startswith("1.00 of 16 pairs: attention, which stores 2,048 numbers.")
        page.get_by_role("slider", name="Pairs in the text").press("End")
        assert headline(page).startswith("1.00 of 32 pairs: attention, which stores 4,096 numbers.")
        assert headline(page).endswith("0.15.")
        page.get_by_role("combobox", name="Training").select_option("3200 steps")
        assert headline(page).startswith("Not recorded of 32 pairs after 3200 steps: attention")


@pytest.mark.browser
def test_rows_have_the_mean_and_each_seed(show):
    explorer = RecallExplorer(8, "delta")
    with show(explorer) as page:
        track = page.locator(".c-kinds .x-track").nth(RECALL_KINDS.index("delta"))
        shares = explorer.shares("delta")
        lefts = track.locator(".c-seed").evaluate_all("all => all.map((dot) => parseFloat(dot.style.left))")
        assert lefts == pytest.approx([100 * share for share in shares])
        width = track.locator(".x-bar").evaluate("bar => parseFloat(bar.style.width)")
        assert width == pytest.approx(100 * sum(shares) / 3, abs=1e-3)
        assert page.locator(".c-kinds .x-whole").count() == 1
        page.get_by_role("combobox", name="Training").select_option("3200 steps")
        dots = page.locator(".c-kinds .c-seed:visible").count()
        assert dots == 3 * sum(len(one["shares"][1]) > 0 for one in CARRIED["kinds"]) == 15


@pytest.mark.browser
@pytest.mark.parametrize("width", all_but([360, 900], lambda width: width == 360))
def test_labels_are_legible_and_do_not_overlap(show, width):
    with show(RecallExplorer(32, "gated delta"), width=width, has_touch=True) as page:
        for tab in ("Kinds", "Pairs"):
            if width == 360:
                page.get_by_role("button", name=tab, exact=True).tap()
            if page.locator("svg:visible").count():
                assert smallest(page) >= 11
            assert not collisions(page)
