"""Tests of the cost explorer: counts agree with the chapter and the library, and the figure follows."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lessons_lib.attention.attention import attention
from lessons_lib.page.widgets import CostExplorer
from lessons_lib.page.widgets.budget import PRESETS
from lessons_lib.page.widgets.cost import DEVICES, Cost, cost
from lessons_lib.transformer.gpt import GPT
from tests.page.widgets.test_budget import SMALL, as_library, shown

CHAPTER = Path(__file__).parents[3] / "book" / "efficient" / "complexity.ipynb"
CASES = [(1, 1), (7, 1), (1024, 64), (131_072, 3)]


@pytest.fixture(scope="module")
def chapter():
    """The functions for FLOPs and bytes that the chapter defines."""
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]}
    code = {}
    for name in ("work-weights", "decode"):
        exec(cells[name], code)
    return code


@pytest.mark.parametrize("config", [*SMALL, *PRESETS.values()], ids=str)
@pytest.mark.parametrize(("tokens", "texts"), CASES)
def test_prefill_and_decoding_cost_agree_with_the_chapter(chapter, config, tokens, texts):
    model = as_library(config, n_context=max(tokens, 1024))
    written = cost(config, "write", tokens, texts)
    assert chapter["decoding"](model, tokens, texts) == (sum(written[:2]), sum(written[2:]))
    read = cost(config, "read", tokens, 1)
    assert chapter["reading"](model, tokens) == (sum(read[:2]), sum(read[2:]))
    assert cost(config, "read", tokens, texts)._replace(weights=0) == Cost(*(texts * part for part in read))._replace(
        weights=0
    )


@pytest.mark.parametrize("config", SMALL, ids=str)
def test_flops_agree_with_the_library_s_model(config):
    """Prefill without a mask computes all pairs; the difference is the output matrix."""
    n, head = 7, 2 * config.vocab * config.heads * config.head_width
    model = GPT(replace(as_library(config, n_context=9), tied=False), implementation=attention)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(torch.randint(config.vocab, (1, n)))
    read = cost(config, "read", n, 1)
    assert read.matrices + 2 * read.pairs + n * head == counted.get_total_flops()
    caches = model.new_caches()
    with torch.no_grad():
        model(torch.randint(config.vocab, (1, n - 1)), caches=caches)
        with FlopCounterMode(display=False) as counted:
            model(torch.randint(config.vocab, (1, 1)), caches=caches)
    written = cost(config, "write", n, 1)
    assert written.matrices + written.pairs == counted.get_total_flops()
    caches = model.bfloat16().new_caches()
    with torch.no_grad():
        model(torch.randint(config.vocab, (1, n)), caches=caches)
    assert written.caches == sum(cache.n_bytes for cache in caches)


@pytest.mark.browser
def test_python_and_javascript_counts_agree(javascript):
    cases = [(c, mode, *case) for c in [*SMALL, *PRESETS.values()] for mode in ("read", "write") for case in CASES]
    found = javascript.each("cost.math", "cost", [[c._asdict(), *rest] for c, *rest in cases])
    assert found == [pytest.approx(cost(*case)._asdict(), rel=1e-14) for case in cases]
    module = javascript.page.evaluate("async () => { const m = await import('./cost.math.js'); return {...m}; }")
    assert module["DEVICES"] == {name: device._asdict() for name, device in DEVICES.items()}
    assert module["MODELS"] == list(PRESETS)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("texts * 2 * n * n", "texts * 4 * n * n"),
        ("texts * 4 * n *", "texts * 2 * n *"),
        ("texts * cacheBytes", "cacheBytes"),
        ("weights: 2 * multiplied", "weights: 2 * inBlocks"),
        ("texts * 2 * n * inBlocks", "texts * 2 * n * multiplied"),
    ],
)
def test_wrong_count_is_noticed(altered, right, wrong):
    with altered("cost.math", right, wrong) as javascript, pytest.raises(AssertionError):
        test_python_and_javascript_counts_agree(javascript)


@pytest.mark.browser
def test_times_and_roofline_use_peak_rates(javascript):
    explorer = CostExplorer("Llama 3 8B", "A100", "write", 8192, 12)
    of, device = cost(PRESETS["Llama 3 8B"], "write", 8192, 12)._asdict(), DEVICES["A100"]
    took = javascript("cost.math", "seconds", of, device._asdict())
    assert took == pytest.approx(explorer.seconds(), rel=1e-14)
    assert took["matrices"] == pytest.approx(of["matrices"] / 312e12)
    assert took["caches"] == pytest.approx(of["caches"] / 2e12)
    assert javascript("cost.math", "least", took) == pytest.approx(took["weights"] + took["caches"])
    assert javascript("cost.math", "least", {**took, "pairs": 1.0}) == pytest.approx(took["matrices"] + 1.0)
    flops, moved = of["matrices"] + of["pairs"], of["weights"] + of["caches"]
    assert javascript("cost.math", "intensity", of) == pytest.approx(flops / moved)


def test_still_contains_the_times():
    assert "Llama 3 8B on H100, decoding: matrices 0.0152 ms, " in CostExplorer().still()


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"model": "BERT"}, "model.*expected any of .*GPT-2 small.* not the str 'BERT'"),
        ({"device": "TPU"}, "device.*expected any of"),
        ({"mode": "sing"}, "mode.*expected any of"),
        ({"tokens": 0}, "tokens.*at least 1 and at most"),
        ({"texts": 1025}, "texts.*at most 1024"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        CostExplorer(**arguments)


@pytest.mark.browser
def test_decoding_is_limited_by_memory_and_prefill_by_arithmetic(show):
    with show(CostExplorer()) as page:
        assert shown(page)["share of the peak, at most"] == "0.3%"
        headline = page.locator(".x-headline")
        assert headline.inner_text() == "4.52 ms\nat least; waits for memory"
        page.get_by_label("Task").select_option("read")
        assert shown(page)["share of the peak, at most"] == "100%"
        assert headline.inner_text() == "14.7 ms\nat least; waits for arithmetic"
        page.get_by_role("button", name="Reset").click()
        assert headline.inner_text().startswith("4.52 ms")


# --- the roofline -----------------------------------------------------------------------------------------------------

STATE = "e => ['mode', 'tokens', 'texts'].map((name) => e.explorer.model.get(name))"
WIDTHS = "all => all.map((e) => Number(e.getAttribute('width')))"


@pytest.mark.browser
@pytest.mark.parametrize("mode", ["read", "write"])
def test_at_intensity_inverts_flops_per_byte(javascript, mode):
    """FLOPs per byte rise with the lever, so the nearest whole number is the one that gave them, or the end."""
    lever = {"read": 20, "write": 10}[mode]
    for name, config in PRESETS.items():
        for tokens, texts in ((300, 7), (50_000, 1)):
            values = [2**k + k for k in range(lever)]
            found = [cost(config, mode, *((value, texts) if mode == "read" else (tokens, value))) for value in values]
            wanted = [(of.matrices + of.pairs) / (of.weights + of.caches) for of in found]
            assert wanted == sorted(wanted), name
            calls = [[config._asdict(), mode, tokens, texts, one] for one in [0.0, *wanted, 1e9]]
            assert javascript.each("cost.math", "atIntensity", calls) == [1, *values, 2**lever]


def middle(grip):
    box = grip.locator("circle").last.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.browser
def test_point_of_the_roofline_is_dragged_and_the_task_follows(show):
    with show(CostExplorer()) as page:
        card, grip = page.locator("div.explorer"), page.get_by_role("slider", name="point on the roofline")
        before, flops = middle(grip), shown(page)["FLOPs per byte"]
        page.mouse.move(*before)
        page.mouse.down()
        page.mouse.move(before[0] + 60, before[1])
        page.mouse.up()
        mode, tokens, texts = card.evaluate(STATE)
        assert (mode, tokens) == ("write", 1024)
        assert texts > 1
        assert middle(grip)[0] == pytest.approx(before[0] + 60, abs=2)
        assert float(shown(page)["FLOPs per byte"]) > float(flops)
        page.mouse.move(*before)  # released: nothing is dragged
        assert card.evaluate(STATE) == [mode, tokens, texts]


@pytest.mark.browser
def test_point_of_the_roofline_moves_by_keyboard_within_its_bounds(show):
    with show(CostExplorer(texts=300)) as page:
        card, grip = page.locator("div.explorer"), page.get_by_role("slider", name="point on the roofline")
        grip.press("ArrowRight")
        assert card.evaluate(STATE) == ["write", 1024, 600]
        assert grip.get_attribute("aria-valuetext") == f"{shown(page)['FLOPs per byte']} FLOPs per byte, batch size 600"
        grip.press("ArrowUp")
        assert card.evaluate(STATE)[2] == 1024
        page.get_by_label("Task").select_option("read")
        grip.press("ArrowLeft")
        assert card.evaluate(STATE) == ["read", 512, 1024]


@pytest.mark.browser
def test_try_links_set_common_tasks(show):
    with show(CostExplorer()) as page:
        card = page.locator("div.explorer")
        for name, state, waits in (
            ("256 chats of 1024 tokens", ["write", 1024, 256], "memory"),
            ("Prefill of 131,072 tokens", ["read", 131_072, 1], "arithmetic"),
        ):
            page.get_by_role("link", name=name).click()
            assert card.evaluate(STATE) == state
            assert page.locator(".x-headline").inner_text().endswith(f"; waits for {waits}")


@pytest.mark.browser
def test_no_bar_is_invisible_and_the_longer_one_is_the_least_time(show):
    for explorer in (CostExplorer(), CostExplorer("GPT-2 small", "H100", "write", 1, 1), CostExplorer(mode="read")):
        with show(explorer) as page:
            assert min(page.locator("svg rect").evaluate_all(WIDTHS)) >= 2
            arithmetic, memory = page.locator("svg rect.c-total").evaluate_all(WIDTHS)
            took = explorer.seconds()
            assert (arithmetic > memory) == (took["matrices"] + took["pairs"] > took["weights"] + took["caches"])
            still = [float(width) for width in re.findall(r'class="x-of-\w+"[^>]* width="([\d.]+)"', explorer.still())]
            live = page.locator("svg rect[class^='x-of-']").evaluate_all(WIDTHS)
            assert live == pytest.approx([max(2, width) for width in still], abs=0.1)


@pytest.mark.browser
def test_extreme_values_draw_without_nan(show):
    most = CostExplorer("Llama 3 70B", "A100", "read", 1_048_576, 1024)
    with show(CostExplorer("GPT-2 small", "H100", "write", 1, 1), most) as page:
        drawn = page.locator("body").inner_text() + "".join(
            page.locator("svg").evaluate_all("a => a.map(s => s.outerHTML)")
        )
        assert not {word for word in ("NaN", "Infinity", "undefined") if word in drawn}
