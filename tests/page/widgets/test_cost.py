"""Tests of the cost explorer: counts agree with the chapter and the library, and the figure follows."""

import json
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
        assert shown(page)["at least"] == "4.52 ms"
        page.get_by_label("Task").select_option("read")
        assert shown(page)["share of the peak, at most"] == "100%"
        assert shown(page)["at least"] == "14.7 ms"
        page.get_by_role("button", name="Reset").click()
        assert shown(page)["at least"] == "4.52 ms"


@pytest.mark.browser
def test_extreme_values_draw_without_nan(show):
    most = CostExplorer("Llama 3 70B", "A100", "read", 1_048_576, 1024)
    with show(CostExplorer("GPT-2 small", "H100", "write", 1, 1), most) as page:
        drawn = page.locator("body").inner_text() + "".join(
            page.locator("svg").evaluate_all("a => a.map(s => s.outerHTML)")
        )
        assert not {word for word in ("NaN", "Infinity", "undefined") if word in drawn}
