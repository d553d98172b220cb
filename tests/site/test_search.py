"""The search: 40 questions with the page that must come first, sections as results, snippets, keyboard, files."""

import json
import re

import pytest
from built_site import HTML

# What people type, and the page that must come first; with an anchor, the section.
QUESTIONS = {
    "why sqrt": "book/attention/scaling.html",
    "why sqrt d_k": "book/attention/scaling.html",
    "why divide by √d_k": "book/attention/scaling.html",
    "scaling": "book/attention/scaling.html",
    "what is attention": "book/attention/why-attention.html",
    "self-attention": "book/attention/why-attention.html#what-does-attention-compute",
    "query key value": "book/attention/why-attention.html#what-does-attention-compute",
    "attention is all you need": "book/attention/why-attention.html",
    "vanishing gradient": "book/attention/why-attention.html#how-far-back-does-a-gradient-reach",
    "entropy": "book/attention/information.html",
    "softmax temperature": "book/attention/information.html#what-does-the-softmax-temperature-do",
    "jacobian of softmax": "book/attention/information.html#what-is-the-derivative-of-a-softmax",
    "causal mask": "book/attention/masks.html",
    "padding mask": "book/attention/masks.html",
    "sliding window": "book/attention/masks.html#how-far-does-information-travel-through-a-sliding-window",
    "multi-head": "book/attention/multi-head.html",
    "cross attention": "book/attention/multi-head.html#what-is-the-difference-between-self-attention-and",
    "grouped query": "book/attention/multi-head.html#how-does-grouped-query-attention-make",
    "gqa": "book/attention/multi-head.html#how-does-grouped-query-attention-make",
    "rope": "book/attention/positions.html",
    "positional encoding": "book/attention/positions.html",
    "sinusoidal": "book/attention/positions.html",
    "yarn": "book/attention/positions.html#interpolation-ntk-aware-scaling-and-yarn",
    "Pre-LN or Post-LN": "book/training/dynamics.html#pre-ln-or-post-ln-where-does-the-norm-go",
    "rank collapse": "book/training/dynamics.html",
    "layer norm": "book/transformer/block.html#what-does-a-norm-do-to-the-stream",
    "feed forward": "book/transformer/block.html",
    "how many parameters does gpt-2 have": "book/transformer/block.html",
    "kv cache": "book/transformer/train-gpt.html#what-does-a-kv-cache-save",
    "top-p": "book/transformer/train-gpt.html#how-is-text-sampled-from-a-language-model",
    "tokenisation": "book/transformer/train-gpt.html",
    "induction head": "book/transformer/patterns.html#how-does-an-induction-head-work",
    "attention sink": "book/transformer/patterns.html#attention-sinks",
    "is attention an explanation": "book/transformer/patterns.html",
    "mixture of experts": "book/transformer/modern.html#how-does-a-mixture-of-experts-work",
    "mla": "book/transformer/modern.html#how-does-latent-attention-shrink-the-kv-cache",
    "speculative decoding": "book/transformer/modern.html#how-does-speculative-decoding-write-faster",
    "why does attention cost n squared": "book/efficient/complexity.html",
    "linear attention": "book/efficient/sparse-and-linear.html",
    "flash attention": "book/efficient/flash.html",
    "flsh attention": "book/efficient/flash.html",  # a wrong letter
    "induc": "book/transformer/patterns.html",  # a word that is being typed
    "lost in the middle": "book/efficient/long-context.html",
    "ViT": "book/applications/vision-and-language.html",
    "notation": "book/notation.html",
}
ADDRESSES = "(links) => links.map((link) => link.getAttribute('href').replace(/^\\.\\//, ''))"
TEX = re.compile(r"\\[a-z]+|\$|[_^]\{")


def entries() -> list[dict[str, str]]:
    text = (HTML / "_static/search-index.js").read_text(encoding="utf-8")
    return json.loads(text.removeprefix("window.SEARCH_INDEX = ").removesuffix(";\n"))


@pytest.mark.browser
def test_the_right_page_comes_first_for_what_people_type(visit):
    assert len(QUESTIONS) >= 40
    wrong = {}
    with visit("search.html", from_files=True) as page:
        field = page.locator(".bd-search-container input")
        results = page.locator("#search-results a")
        for question, wanted in QUESTIONS.items():
            field.fill("")
            page.wait_for_function("!document.querySelector('#search-results a')")
            field.fill(question)
            results.first.wait_for()
            if not (found := results.evaluate_all(ADDRESSES))[0].startswith(wanted):
                wrong[question] = found[:3]
    assert wrong == {}


def test_every_result_leads_to_a_place_that_exists():
    ids = {}
    for entry in entries():
        path, _, anchor = entry["address"].partition("#")
        if path not in ids:
            ids[path] = set(re.findall(r'\bid="([^"]+)"', (HTML / path).read_text(encoding="utf-8")))
        assert not anchor or anchor in ids[path], entry["address"]


def test_entries_are_sections_with_readable_snippets():
    found = entries()
    chapters = [entry for entry in found if entry["kind"] == "chapter"]
    assert len(chapters) > 19 * 15
    assert sum("#" in entry["address"] for entry in chapters) > 0.9 * len(chapters)
    assert [entry["address"] for entry in found if TEX.search(entry["snippet"]) and entry["kind"] != "library"] == []
    assert {entry["heading"] for entry in chapters if not entry["snippet"]} <= {"Claims you will meet"}  # a table
    assert max(len(entry["snippet"]) for entry in found) <= 240


@pytest.mark.browser
def test_search_finds_a_section_from_a_page_by_keyboard(visit):
    with visit("book/notation.html") as page:
        page.keyboard.press("Control+k")
        page.keyboard.type("softmax temperature")
        page.locator("#pst-search-dialog [role=option]").first.wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        chosen = page.locator("#pst-search-dialog [aria-selected=true]")
        assert page.locator("#pst-search-dialog input").get_attribute("aria-activedescendant") == chosen.get_attribute(
            "id"
        )
        page.keyboard.press("Enter")
        page.wait_for_url("**/information.html#what-does-the-softmax-temperature-do")


@pytest.mark.browser
def test_search_says_when_nothing_is_found(visit):
    with visit("search.html?q=xylophone") as page:
        page.locator("#search-results [role=status]", has_text="Nothing was found").wait_for()
        page.locator(".bd-search-container input").fill("mask")
        page.locator("#search-results a").first.wait_for()
        assert page.url.endswith("?q=mask")


# Entries of a site in Chinese. Prose that names a term stands before the section whose heading has it.
CHINESE = {
    "prose.html": ("其他领域", "一个头的注意力权重和掩码，在位置编码之后。", "elsewhere"),
    "weights.html": ("注意力权重从哪里来？", "每个查询有一行权重。", "where do the weights come from"),
    "masks.html": ("掩码：每个查询可以关注哪些键", "因果掩码遮住之后的词元。", "causal mask"),
    "positions.html": ("位置编码与 RoPE", "旋转把距离放进分数。", "positional encoding and rope"),
    "entropy.html": ("熵", "一行权重有多平均。", "entropy"),
    "cache.html": ("KV 缓存省下什么？", "每一步只算一个词元。", "what does a kv cache save"),
    "english.html": ("Perplexity", "A page that is not translated.", ""),
}
ASKED = {
    "注意力权重": "weights.html",
    "掩码": "masks.html",
    "因果掩码": "masks.html",
    "位置编码": "positions.html",
    "KV缓存": "cache.html",
    "熵": "entropy.html",
    "距离": "positions.html",
    "causal mask": "masks.html",
    "rope": "positions.html",
    "perplexity": "english.html",
    "位置编码是什么": "positions.html",  # no entry has all pairs of characters
}


@pytest.mark.browser
def test_search_finds_chinese_and_english_words_in_a_chinese_index(browser, site):
    index = [
        dict(zip(("address", "heading", "body", "words"), (address, *words), strict=True))
        | {"page": "第 1 章", "snippet": words[1], "kind": "chapter", "place": "section", "phrases": ""}
        for address, words in CHINESE.items()
    ]
    page = browser.new_page()
    page.add_init_script(
        f"window.bookWords = {json.dumps({'Nothing was found. Try another word, or fewer words.': '没有找到。'})}"
    )
    page.route("**/search-index.js", lambda route: route.fulfill(body=f"window.SEARCH_INDEX = {json.dumps(index)};"))
    page.goto(f"{site}/search.html")
    field, results = page.locator(".bd-search-container input"), page.locator("#search-results a")
    found = {}
    for asked in ASKED:
        field.fill("")
        page.wait_for_function("!document.querySelector('#search-results a')")
        field.fill(asked)
        results.first.wait_for()
        found[asked] = results.evaluate_all(ADDRESSES)[0]
    assert found == ASKED
    field.fill("注意力权重")
    page.locator("#search-results mark", has_text="注意力权重").first.wait_for()
    field.fill("量子力学")
    page.locator("#search-results [role=status]", has_text="没有找到。").wait_for()
    page.close()
