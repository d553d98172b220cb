"""Tests of the budget explorer: counts agree with the library, areas are shares, the figure follows."""

from itertools import combinations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lessons_lib.attention.attention import attention
from lessons_lib.page.widgets import BudgetExplorer
from lessons_lib.page.widgets.budget import GROUPS, HEAD_WIDTHS, HEADS, PRESETS, Config, key_value_heads, parts
from lessons_lib.transformer.configuration import GPTConfig, gpt2_medium, gpt2_small, llama3_8b
from lessons_lib.transformer.gpt import GPT

SMALL = [
    Config("gpt2", 3, 4, 16, 1, 11, 97, True),
    Config("gpt2", 2, 12, 16, 8, 32, 53, False),  # of 12 heads not 8 but 4 share
    Config("llama", 2, 8, 32, 4, 21, 61, False),
    Config("llama", 5, 2, 16, 2, 4, 7, True),
    Config("qwen3", 3, 4, 48, 2, 24, 89, False),
]


def as_library(config, n_context=1024):
    """The configuration of the same model in the library."""
    ours = {
        "gpt2": {},
        "llama": {"feedforward": "swiglu", "norm": "rms", "position": "rotary", "bias": False},
        "qwen3": {"feedforward": "swiglu", "norm": "rms", "position": "rotary", "bias": False, "qk_norm": True},
    }[config.kind]
    d = config.heads * config.head_width
    return GPTConfig(
        config.vocab,
        n_context,
        d,
        config.layers,
        config.heads,
        n_kv_heads=key_value_heads(config),
        d_ff=config.eighths * d // 8,
        tied=config.tied,
        **ours,
    )


# --- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [*SMALL, *PRESETS.values()], ids=str)
def test_parts_sum_to_the_parameters_of_the_library_s_model(config):
    assert sum(parts(config).values()) == as_library(config).n_parameters()


def test_published_models_have_the_published_parameters():
    counts = {name: sum(parts(config).values()) for name, config in PRESETS.items()}
    assert counts["GPT-2 small"] == 124_439_808 == gpt2_small().n_parameters()
    assert counts["GPT-2 medium"] == gpt2_medium().n_parameters()
    assert counts["Llama 3 8B"] == llama3_8b().n_parameters()
    millions = {name: round(count / 1e6) for name, count in counts.items()}
    assert [millions[f"GPT-2 {size}"] for size in ("small", "medium", "large", "XL")] == [124, 355, 774, 1558]
    assert [round(millions[name] / 1e3, 1) for name in ("Llama 3 70B", "Qwen3 8B")] == [70.6, 8.2]


@pytest.mark.browser
def test_python_and_javascript_counts_agree(javascript):
    configs = [*SMALL, *PRESETS.values()]
    assert javascript.each("budget.math", "parts", [[c._asdict()] for c in configs]) == list(map(parts, configs))
    found = javascript.page.evaluate("async () => { const m = await import('./budget.math.js'); return {...m}; }")
    assert found["PRESETS"] == {name: config._asdict() for name, config in PRESETS.items()}
    assert (found["HEADS"], found["HEAD_WIDTHS"], found["GROUPS"]) == (HEADS, HEAD_WIDTHS, GROUPS)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("layers * 2 * d * d", "layers * d * d"),
        ('kind === "gpt2" ? 2 : 3', "2"),
        ("tied ? 0 : vocab * d", "vocab * d"),
        ("heads % g === 0", "true"),
        ("+ 4 * d;", "+ 2 * d;"),
    ],
)
def test_wrong_count_is_noticed(altered, right, wrong):
    with altered("budget.math", right, wrong) as javascript, pytest.raises(AssertionError):
        test_python_and_javascript_counts_agree(javascript)


@pytest.mark.browser
@pytest.mark.parametrize("config", SMALL, ids=str)
def test_flops_agree_with_the_library_s_model(javascript, config):
    """Attention without a mask: each of n tokens attends to n."""
    n = 7
    model = GPT(as_library(config, n_context=9), implementation=attention)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(torch.randint(config.vocab, (1, n)))
    assert n * javascript("budget.math", "flops", config._asdict(), n) == counted.get_total_flops()


@pytest.mark.browser
@pytest.mark.parametrize("config", SMALL, ids=str)
def test_bytes_agree_with_the_kv_cache(javascript, config):
    model = GPT(as_library(config, n_context=9)).bfloat16()
    caches = model.new_caches()
    with torch.no_grad():
        model(torch.randint(config.vocab, (1, 5)), caches=caches)
    held = sum(cache.n_bytes for cache in caches)
    assert javascript("budget.math", "cacheBytes", config._asdict(), 5) == held > 0


@pytest.mark.browser
@pytest.mark.parametrize("config", [*SMALL, PRESETS["Llama 3 70B"]], ids=str)
def test_areas_are_shares_side_by_side(javascript, config):
    of, boxes = parts(config), javascript("budget.math", "boxes", config._asdict())
    assert [box["name"] for box in boxes] == list(of)
    for box in boxes:
        assert box["width"] * box["height"] == pytest.approx(of[box["name"]] / sum(of.values()), abs=1e-12)
        assert box["share"] == pytest.approx(box["width"] * box["height"], abs=1e-12)
        assert min(box["x"], box["y"]) >= 0
        assert max(box["x"] + box["width"], box["y"] + box["height"]) <= 1 + 1e-12
    for a, b in combinations(boxes, 2):
        beside = min(a["x"] + a["width"], b["x"] + b["width"]) - max(a["x"], b["x"])
        below = min(a["y"] + a["height"], b["y"] + b["height"]) - max(a["y"], b["y"])
        assert min(beside, below) < 1e-12


# --- traits ---------------------------------------------------------------------------------------------------------


def test_a_published_model_by_its_name():
    explorer = BudgetExplorer.of("Qwen3 8B", tokens=40_000)
    assert explorer.config() == PRESETS["Qwen3 8B"]
    assert explorer.tokens == 40_000
    with pytest.raises(ValueError, match=r"name must be one of GPT-2 small, .*, got 'GPT-5'"):
        BudgetExplorer.of("GPT-5")


def test_still_contains_the_shares():
    assert "124,439,808 weights: embedding 31%, " in BudgetExplorer().still()
    assert "output matrix" not in BudgetExplorer().still()
    assert "feed-forward 70%" in BudgetExplorer.of("Llama 3 8B").still()


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"kind": "bert"}, "kind.*expected any of .*gpt2.* not the str 'bert'"),
        ({"heads": 3}, "heads.*expected any of"),
        ({"head_width": 100}, "head_width.*expected any of"),
        ({"group": 3}, "group.*expected any of"),
        ({"layers": 0}, "layers.*at least 1 and at most 128"),
        ({"eighths": 3}, "eighths.*at least 4 and at most 64"),
        ({"vocab": 999}, "vocab.*at least 1000"),
        ({"tokens": 200_000}, "tokens.*at most 131072"),
        ({"layers": 2.5}, "layers.*a whole number"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        BudgetExplorer(**arguments)


# --- what a reader sees ---------------------------------------------------------------------------------------------


def shown(page):
    """The numbers of the figure by their names."""
    rows = page.locator(".x-numbers tr")
    return {rows.nth(i).locator("th").inner_text(): rows.nth(i).locator("td").inner_text() for i in range(rows.count())}


@pytest.mark.browser
def test_published_model_can_be_selected_and_changed(show):
    with show(BudgetExplorer()) as page:
        model = page.get_by_label("Model")
        assert model.input_value() == "GPT-2 small"
        assert shown(page)["weights N"] == "124,439,808"
        model.select_option("Llama 3 8B")
        assert shown(page)["weights N"] == "8,030,261,248"
        assert shown(page)["key/value heads"] == "8 of 32"
        assert shown(page)["KV cache"] == "134 MB"
        assert "feed-forward 70%" in page.locator(".x-legend").inner_text()
        page.get_by_label("Blocks").press("ArrowRight")
        assert model.input_value() == "sizes of your own"
        page.get_by_role("button", name="Reset").click()
        assert model.input_value() == "GPT-2 small"
        assert shown(page)["weights N"] == "124,439,808"


@pytest.mark.browser
def test_twice_the_tokens_take_twice_the_bytes(show):
    with show(BudgetExplorer.of("Llama 3 70B", tokens=4096), BudgetExplorer.of("Llama 3 70B", tokens=8192)) as page:
        cells = page.get_by_role("row", name="KV cache").locator("td")
        assert cells.all_inner_texts() == ["1.34 GB", "2.68 GB"]


@pytest.mark.browser
def test_extreme_values_draw_without_nan(show):
    least = BudgetExplorer("llama", 1, 1, 16, 1, 4, 1000, False, 1)
    most = BudgetExplorer("qwen3", 128, 128, 256, 128, 64, 300_000, False, 131_072)
    with show(least, most) as page:
        drawn = page.locator("body").inner_text() + "".join(
            page.locator("rect").evaluate_all("all => all.map(r => r.outerHTML)")
        )
        assert not {word for word in ("NaN", "Infinity", "undefined") if word in drawn}
