"""Tests of the drawings: shapes and labels, alternative text, texts that do not overlap."""

import math
import re
import sys
from functools import cache
from importlib import import_module
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
from drawn import words
from thorough import all_but

from lessons_lib.attention import masks
from lessons_lib.attention.softmax import softmax
from lessons_lib.page import drawings, palette
from lessons_lib.page.sketch import Sketch

SCORES = torch.tensor([[2.0, 0.5, 1.0, -3.25], [1.5, -1.0, 0.0, 0.1], [0.2, 1.0, 0.7, -0.4]])
DRAWINGS = {
    "attention_steps": drawings.attention_steps(),
    "dot_product": drawings.dot_product((3, 1), (1.5, 2)),
    "dot_product negative": drawings.dot_product((2, 0.5), (-1, 1.5)),
    "dot_product zero": drawings.dot_product((0, 2), (1, 0)),
    "random_sums": drawings.random_sums(),
    "scores_to_weights": drawings.scores_to_weights([0.0, 1.0, 2.0], factor=4),
    "scores_to_weights of two": drawings.scores_to_weights([0, 2.25], factor=1.5),
    "masked_softmax": drawings.masked_softmax(SCORES, masks.causal(3, 4)),
    "masked_softmax labelled": drawings.masked_softmax(
        SCORES, masks.causal(3, 4), query_labels=["The", "cat", "slept"], key_labels=["<s>", "The", "cat", "slept"]
    ),
    "masks": drawings.masks(
        {"causal": masks.causal(8), "a window": masks.sliding_window(8, 3), "prefix": masks.prefix(8, 3)}
        | {"one global token": masks.global_tokens(8, [2]), "lower right": masks.causal(2, 7)}
    ),
    "masks of one": drawings.masks({"packed": masks.documents(torch.arange(12) // 5)}),
    "recurrence_and_lookup": drawings.recurrence_and_lookup(),
    "split_heads": drawings.split_heads(),
    "grouped_query_attention": drawings.grouped_query_attention(),
    "rotated_pair": drawings.rotated_pair(),
    "two_memories": drawings.two_memories(),
    "online_softmax": drawings.online_softmax(),
    "online_softmax of four tiles": drawings.online_softmax([-1.25, 2, 3, 1, 0, 0.5, 2, -12.5]),
    "tile_orders": drawings.tile_orders("forward, 2022", "forward, 2023"),
    "tile_orders backward": drawings.tile_orders("backward, 2023", "keys and values, here", "queries, here"),
    "gpu_levels": drawings.gpu_levels(),
    "ping_pong": drawings.ping_pong(),
    "ping_pong equal times": drawings.ping_pong(1.0),
    "residual_stream": drawings.residual_stream(),
    "encoder_and_decoder": drawings.encoder_and_decoder(),
    "induction_circuit": drawings.induction_circuit(),
    "mixture_of_experts": drawings.mixture_of_experts(),
    "speculative_decoding": drawings.speculative_decoding(),
    "linear_attention_orders": drawings.linear_attention_orders(),
    "block_flops": drawings.block_flops(),
    "block_flops of one length": drawings.block_flops([3]),
    "parallel_scan": drawings.parallel_scan(),
    "parallel_scan of two": drawings.parallel_scan(2),
    "ring_attention_steps": drawings.ring_attention_steps(),
    "two_towers": drawings.two_towers(),
    "spot_and_mark": drawings.spot_and_mark(),
    "spot_and_mark at the edge": drawings.spot_and_mark((8, 1.5)),
}


# Every file test_drawings_*.py has examples of its own.
EXAMPLES = [DRAWINGS, *(import_module(path.stem).DRAWINGS for path in Path(__file__).parent.glob("test_drawings_*.py"))]
EVERY = {name: drawing for examples in EXAMPLES for name, drawing in examples.items()}
every_drawing = pytest.mark.parametrize("name", EVERY)


def test_every_drawing_has_an_example_of_its_own():
    assert sum(map(len, EXAMPLES)) == len(EVERY)
    assert {name.split()[0] for name in EVERY} == set(drawings.__all__)


@every_drawing
def test_every_drawing_has_alternative_text(name):
    html = EVERY[name].to_html()
    [told] = re.findall(r'role="img" aria-label="([^"]*)"', html)
    assert len(told.split()) > 12
    assert EVERY[name]._repr_mimebundle_()["text/plain"].startswith("Drawing: ")


@every_drawing
def test_drawings_use_only_colours_of_the_palette_and_the_page(name):
    html = EVERY[name].to_html()
    assert set(re.findall(r"#\w{6}", html)) <= {*palette.COLOURS, palette.DARK_QUERY, palette.DARK_KEY}
    assert not re.search(r'(?:fill|stroke)="', html)


FONTS = ["DejaVu Sans", "Arimo", "Noto Sans"]  # Arimo has the widths of Liberation Sans and Arial
PLACES = """(fonts) => {
  const r = e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
  const inFonts = fonts.map((font) => {
    document.body.style.fontFamily = `"${font}"`;
    return [...document.querySelectorAll("article")].map((one) => {
      const texts = [...one.querySelectorAll("text")];
      return [r(one.querySelector("svg")), texts.map((t) => [t.textContent, r(t)]),
        parseFloat(getComputedStyle(texts[0]).fontSize)]; }); });
  return inFonts[0].map((_, i) => inFonts.map((all) => all[i])); }"""


@pytest.fixture(scope="module")
def places(browser):
    """The places of each drawing and its texts, in each font, all drawings being on one page of a width."""

    @cache
    def places(width: int) -> dict[str, list]:
        page = browser.new_page(viewport={"width": width, "height": 900})
        drawn = "".join(f"<article>{drawing.to_html()}</article>" for drawing in EVERY.values())
        page.set_content(f"<!doctype html><body style='margin:0'>{drawn}")
        found = page.evaluate(PLACES, FONTS)
        page.close()
        return dict(zip(EVERY, found, strict=True))

    return places


@pytest.mark.browser
@pytest.mark.parametrize("width", all_but([328, 736], lambda width: width == 328))
@every_drawing
def test_texts_do_not_overlap_and_stay_inside_in_every_font(places, name, width):
    for font, ((left, top, right, bottom), texts, letters) in zip(FONTS, places(width)[name], strict=True):
        assert right - left == pytest.approx(width, abs=1)
        assert 9 < letters * width / EVERY[name].width < 19
        for said, (x0, y0, x1, y1) in texts:
            assert left <= x0 < x1 <= right, (font, said)
            assert top - 3 <= y0 < y1 <= bottom + 3, (font, said)  # a line of text is higher than its letters
        for (one, (a, b, c, d)), (other, (e, f, g, h)) in combinations(texts, 2):
            lower = 0.25 * min(d - b, h - f)
            clear = e - c >= 2 or a - g >= 2
            assert clear or d - lower <= f or h - lower <= b, f"{font}: {one!r} and {other!r}"


@pytest.mark.browser
def test_browser_has_only_the_pinned_fonts(browser):
    """Text widths must not depend on the fonts that are installed. Only on Linux, where fontconfig chooses fonts."""
    widths = """(families) => families.map((family) => {
      const span = document.createElement("span");
      span.style.font = `100px ${family}`;
      span.textContent = "mmmmmmmmmm";
      document.body.append(span);
      return span.getBoundingClientRect().width; })"""
    page = browser.new_page()
    page.set_content("<!doctype html><body style='margin:0;white-space:nowrap'>")
    families = ["sans-serif", '"DejaVu Sans"', "serif", "Liberation Mono"]
    generic, named, serif, missing = page.evaluate(widths, families)
    page.close()
    if sys.platform != "linux":
        pytest.skip("fontconfig chooses fonts on Linux alone")
    assert generic == named == pytest.approx(974, abs=5)  # DejaVu Sans: an m is 1995 of 2048 units wide
    assert serif == pytest.approx(948, abs=5)  # DejaVu Serif: 1942 units
    assert missing in (generic, serif)


def test_line_joins_points_and_closes():
    sketch = Sketch(10, 10, alt="Lines.")
    sketch.line([(0, 0), (2.25, 1)], dashed=True)
    sketch.line(iter([(0, 0), (4, 0), (0, 3)]), closed=True, role="key")
    assert re.findall(r'<path d="([^"]*)"', sketch.to_html()) == ["M0 0L2.2 1", "M0 0L4 0L0 3Z"]


def test_attention_steps_names_every_matrix_and_shape():
    said = words(DRAWINGS["attention_steps"])
    assert [name for name in said if name in "XQKVSAO"] == list("XQKVSAO")
    assert sorted(side for side in said if side in {"n", "m", "dk", "dv", "dmodel"}) == sorted(
        ["n", "dmodel", "n", "dk", "m", "dk", "m", "dv", "n", "m", "m", "n", "dv"]
    )
    assert {"WQ", "WK", "WV", "softmax", "QK\u22a4/\u221adk", "AV"} <= set(said)


def test_dot_product_is_length_times_projection():
    said = " ".join(words(drawings.dot_product((3, 4), (2, 1))))
    assert "cos \u03b8 = 2" in said
    assert said.endswith("= 5 \u00b7 2 = 10")
    assert words(DRAWINGS["dot_product negative"])[-1].endswith("= 2.06 \u00b7 (\u22120.606) = \u22121.25")
    assert words(DRAWINGS["dot_product zero"])[-1].endswith("= 0")


def test_random_sums_counts_the_paths_within_one_standard_deviation():
    drawing = drawings.random_sums(100, 20, seed=3)
    rng = torch.Generator().manual_seed(3)
    sums = torch.randn(2, 20, 100, generator=rng, dtype=torch.float32).prod(0).sum(-1)
    assert f"after 100 terms {int((sums.abs() <= 10).sum())} of 20 lie within 10 of zero" in drawing.alt
    assert {"\u221ad = 10", "\u2212\u221ad = \u221210", "100", "number of terms added"} <= set(words(drawing))
    assert drawing.to_html().count('class="key fine"') == 20
    assert drawings.random_sums().alt == DRAWINGS["random_sums"].alt


@pytest.mark.parametrize(("scores", "factor"), [([0.0, 1.0, 2.0], 4), ([3.0, 0.5], 2.0)])
def test_scores_to_weights_shows_scores_leads_and_weights(scores, factor):
    drawing = drawings.scores_to_weights(scores, factor=factor)
    said = words(drawing)
    for times in (1, factor):
        row = times * torch.tensor(scores, dtype=torch.float64)
        best, second = row.sort(descending=True).values[:2].tolist()
        assert {f"{s:.3g}" for s in row.tolist()} | {f"lead {best - second:.3g}"} <= set(said)
        assert {f"{100 * p:.2g}%" for p in softmax(row).tolist()} <= set(said)
        assert f"ratio of the best two: {math.exp(best - second):.2g}" in said
        assert f"give weights {', '.join(f'{p:.3f}' for p in softmax(row).tolist())}" in drawing.alt


@pytest.mark.parametrize(("width", "n_sums"), [(1, 12), (256, 1)])
def test_random_sums_invalid_size_raises(width, n_sums):
    with pytest.raises(ValueError, match="width and n_sums must be at least 2"):
        drawings.random_sums(width, n_sums)


@pytest.mark.parametrize(
    ("scores", "factor"), [([1.0], 2), ([1.0] * 4, 2), ([-1.0, 1.0], 2), ([0.0, 0.0], 2), ([1.0, 2.0], 1)]
)
def test_scores_to_weights_invalid_arguments_raise(scores, factor):
    with pytest.raises(ValueError, match="scores must be 2 or 3"):
        drawings.scores_to_weights(scores, factor=factor)


def test_masked_softmax_hatches_masked_scores_and_shows_zero_weights():
    mask = masks.causal(3, 4)
    html, said = DRAWINGS["masked_softmax"].to_html(), words(DRAWINGS["masked_softmax"])
    seen = [f"{x:.3g}".replace("-", "\u2212") for x in SCORES[mask].tolist()]
    weights = [f"{p:.2f}" if p else "0" for p in softmax(SCORES, mask).flatten().tolist()]
    assert said[: len(seen) + 12] == [*seen, *weights]
    assert html.count('class="fine"') == 2 + int((~mask).sum())  # two grids, and the hidden squares
    assert "row 1 sees 2 of 4; row 2 sees 3 of 4; row 3 sees 4 of 4" in DRAWINGS["masked_softmax"].alt


def test_masked_softmax_fully_masked_row_shows_zeros():
    mask = torch.tensor([[True, False], [False, False]])
    assert words(drawings.masked_softmax(torch.ones(2, 2), mask))[1:5] == ["1.00", "0", "0", "0"]


def test_masks_fill_the_allowed_squares():
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 1, 1, 1]]).bool()
    drawing = drawings.masks({"first": mask, "second": masks.causal(2, 4)})
    shades = re.findall(r"--full:([\d.]+)", drawing.to_html())
    assert [float(shade) > 0 for shade in shades] == [*mask.flatten(), *masks.causal(2, 4).flatten()]
    assert words(drawing) == ["first", "second"]
    assert "first, query 0 sees 0 to 1, 3; query 1 sees none; query 2 sees 2 to 4." in drawing.alt
    assert "second, query 0 sees 0 to 2; query 1 sees 0 to 3." in drawing.alt


def test_recurrence_and_lookup_draws_one_arrow_for_each_other_word():
    drawing = drawings.recurrence_and_lookup(["a", "b", "c"])
    assert words(drawing)[0] == "recurrence: 2 steps from the first word to the last"
    assert drawing.to_html().count('class="query tip"') == 2
    assert [said for said in words(drawing) if said.startswith("h")] == ["h1", "h2", "h3"]


@pytest.mark.parametrize("n_heads", [2, 3, 6])
def test_split_heads_draws_a_slice_for_each_head(n_heads):
    drawing = drawings.split_heads(n_heads)
    said = words(drawing)
    assert [name for name in said if name.startswith("head")] == [f"head {i + 1}" for i in range(n_heads)]
    assert {"n", "h \u00b7 dk", "h \u00b7 dv", "dmodel", "WO"} <= set(said)
    assert drawing.to_html().count('class="query tip"') == n_heads


def test_grouped_query_attention_draws_shared_keys_and_values():
    html = drawings.grouped_query_attention(6, (6, 3, 1)).to_html()
    boxes = {role: html.count(f'class="{role} filled"') for role in ("query", "key", "value")}
    assert boxes == {"query": 18, "key": 10, "value": 10}
    assert words(drawings.grouped_query_attention(6, (3,))) == ["grouped", "g = 3"]


def test_rotated_pair_turns_by_the_angle_for_each_position():
    html = drawings.rotated_pair((0, 1, 3), angle=90, start=0).to_html()
    tips = re.findall(r'd="M([\d.]+) ([\d.]+)L[^"]*" class="query tip"', html)
    assert [(float(x), float(y)) for x, y in tips] == [(285, 118), (201, 34), (201, 202)]


def test_two_memories_shows_both_descriptions_and_all_matrices():
    said = words(drawings.two_memories("200 kB", "80 GB"))
    assert {"on the chip: 200 kB", "main memory: 80 GB", "Qi", "Kj", "Vj", "Q", "K", "V", "O"} <= set(said)


@pytest.mark.parametrize(("scores", "tile"), [([1.0, 2.0, 0.5, 1.5, 3.0, 0.0], 2), ([2.0, -1.0, 4.0, 4.0], 1)])
def test_online_softmax_shows_running_maximum_sum_and_factors(scores, tile):
    row, said = torch.tensor(scores), words(drawings.online_softmax(scores, tile))
    for stop in range(tile, len(row) + 1, tile):
        mu = row[:stop].max()
        i = said.index(f"tile {stop // tile}")
        assert f"\u03bc = {mu:.3g}" in said[i:]
        assert f"z = {(row[:stop] - mu).exp().sum():.2f}" in said[i:]
    peaks = row.cummax(0).values[tile - 1 :: tile]
    factors = [f"\u00d7{(a - b).exp():.2f}" for a, b in pairwise(peaks)]
    assert [x for x in said if x.startswith("\u00d7")] == factors


def test_tile_orders_arrows_follow_the_side_that_is_loaded():
    for name, role in (("forward, 2022", "key"), ("forward, 2023", "query"), ("queries, here", "query")):
        tips = re.findall(r'd="M([\d.]+) ([\d.]+)L[^"]*" class="(\w+) tip"', drawings.tile_orders(name).to_html())
        assert {of for _, _, of in tips} == {role}
        across, down = (len({tip[axis] for tip in tips}) for axis in (0, 1))
        assert (across, down) == ((4, 1) if role == "key" else (1, 4))
    shades = re.findall(r"--full:([\d.]+)", drawings.tile_orders("forward, 2022", "backward, 2023").to_html())
    assert [len(set(shades[:16])), len(set(shades[16:]))] == [1, 2], "one program has one shade"


def test_gpu_levels_shows_the_given_sizes():
    said = " ".join(words(drawings.gpu_levels(registers="1 KiB", shared="2 KiB", cache="3 KiB", memory="4 KiB")))
    assert said.count("1 KiB: scores, sums") == said.count("shared, 2 KiB") == 2
    assert "cache of all, 3 KiB" in said
    assert "main memory, 4 KiB" in said


@pytest.mark.parametrize(("share", "in_turns"), [(0.25, 3), (0.5, 3), (1.0, 2)])
def test_ping_pong_products_of_two_groups_do_not_overlap(share, in_turns):
    html = drawings.ping_pong(share).to_html()
    bars = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"[^>]* class="(\w+) filled"', html)
    rows = sorted({float(y) for _, y, _, _ in bars})
    products = [[float(x) for x, y, _, of in bars if float(y) == row and of == "query"] for row in rows]
    assert [len(starts) for starts in products] == [in_turns, 2, 2]
    unit = float(next(width for *_, width, of in bars if of == "query"))
    starts = sorted(products[1] + products[2])
    assert [b - a for a, b in pairwise(starts)] == pytest.approx([unit] * 3, abs=0.2)
    assert float(next(width for *_, width, of in bars if of == "value")) == pytest.approx(share * unit, abs=0.2)


@pytest.mark.parametrize("lengths", [(1, 2, 6), (3,)])
def test_block_flops_areas_are_proportional_to_flops(lengths):
    html = drawings.block_flops(lengths).to_html()
    sizes = re.findall(r'<rect [^>]*width="([\d.]+)" height="([\d.]+)" rx="5" class="(\w+) filled"', html)
    areas = {role: [float(w) * float(h) for w, h, of in sizes if of == role] for role in ("query", "value", "key")}
    unit = areas["query"][0] / (2 * lengths[0])
    for i, n in enumerate(lengths):
        assert [areas[of][i] / unit for of in areas] == pytest.approx([2 * n, 4 * n, n**2], rel=0.01)


@pytest.mark.parametrize(("n", "rounds"), [(2, 1), (4, 2), (16, 4)])
def test_parallel_scan_doubles_the_distance_in_each_round(n, rounds):
    drawing = drawings.parallel_scan(n)
    assert [said for said in words(drawing) if said.startswith("round")] == [f"round {r + 1}" for r in range(rounds)]
    html = drawing.to_html()
    assert html.count('class="query tip"') == sum(n - 2**r for r in range(rounds))
    assert html.count('class="output filled"') == sum(2**r for r in range(rounds + 1))


def test_ring_attention_each_device_receives_every_block_once():
    said = words(DRAWINGS["ring_attention_steps"])
    turns = [[said for said in said if said.startswith("K, V")][3 * turn : 3 * turn + 3] for turn in range(3)]
    assert turns[0] == ["K, V 1", "K, V 2", "K, V 3"]
    assert all(sorted(met) == turns[0] for met in zip(*turns, strict=True))
    assert all(after == [before[-1], *before[:-1]] for before, after in pairwise(turns))


def test_residual_stream_only_attention_reads_other_words_and_both_layers_add():
    drawing = DRAWINGS["residual_stream"]
    said, html = words(drawing), drawing.to_html()
    assert [said.count(name) for name in ("attention", "feed-forward", "norm", "+", "adds")] == [1, 1, 2, 2, 2]
    left, right = 38, 38 + 132  # of the box that attention is
    tips = re.findall(r'd="M([\d.]+) [\d.]+L[^"]*" class="key tip"', html)
    assert len(tips) == 3
    assert all(left < float(x) < right for x in tips)


def test_encoder_and_decoder_cross_attention_takes_keys_from_the_encoder():
    drawing = DRAWINGS["encoder_and_decoder"]
    said, html = words(drawing), drawing.to_html()
    assert [said.count(name) for name in ("self-attention", "self-attention, causal", "feed-forward")] == [1, 1, 2]
    assert {"cross-attention", "queries", "keys, values", "source", "target"} <= set(said)
    assert html.count('class="key tip"') == html.count('class="query tip"') == 1


def test_induction_circuit_last_word_attends_after_its_earlier_occurrence():
    drawing = DRAWINGS["induction_circuit"]
    said, html = words(drawing), drawing.to_html()
    assert said.count("after cat") == 1
    assert said.count("sat") == 2  # as a word, and as what comes next
    assert "which word follows cat?" in said
    assert html.count('class="query tip"') == html.count('class="value tip"') == 1
    with pytest.raises(ValueError, match="words must be five, the last one the second again"):
        drawings.induction_circuit(["a", "b", "c", "a", "d"])


def test_mixture_of_experts_two_of_four_experts_have_a_weight():
    drawing = DRAWINGS["mixture_of_experts"]
    said, html = words(drawing), drawing.to_html()
    assert [f"expert {i}" for i in (1, 2, 3, 4)] == [text for text in said if text.startswith("expert")]
    assert {"w2", "w4"} <= set(said)
    assert html.count('class="dashed"') == 2


@pytest.mark.parametrize(("kept", "left"), [((True, False, True, True), 1), ((True,) * 4, 4), ((False,) * 4, 0)])
def test_speculative_decoding_keeps_words_up_to_the_first_rejection(kept, left):
    said = words(drawings.speculative_decoding(kept, ("a", "b", "c", "d")))
    assert said.count("accepted") == left
    assert said.count("rejected") == said.count("the") == (left < 4)
    assert [said.count(word) for word in "abcd"] == [2] * left + [1] * (4 - left)


def test_sketch_text_between_dollars_is_mathematics():
    d = Sketch(100, 50, alt="words")
    d.text((50, 20), r"a & $d_{model} \times W_Q$ b")
    html = d.to_html()
    assert words(d) == ["a &amp; dmodel \u00d7 WQ b"]
    assert '<tspan font-style="italic">d</tspan><tspan dy="0.36em" font-size="70%">model</tspan>' in html
    assert '<tspan dy="-0.25em"> \u00d7 </tspan>' in html


def test_sketch_matrix_has_its_shape_at_its_sides():
    d = Sketch(100, 90, alt="words")
    box = d.matrix(20, 30, 40, 50, "$K$", rows="$m$", columns="$d_k$", role="key", grid=(5, 2))
    assert words(d) == ["K", "m", "dk"]
    assert (box.left, box.right, box.top, box.bottom) == ((20, 55), (60, 55), (40, 30), (40, 80))
    [lines] = re.findall(r'd="([^"]*)" class="fine"', d.to_html())
    assert (lines.count("h"), lines.count("v")) == (4, 1)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Sketch(10, 10, alt=" "), "alt must say in words"),
        (lambda: Sketch(10, 0, alt="a"), "must be positive, got 10 and 0"),
        (lambda: Sketch(10, 10, alt="a").box(1, 1, 2, 2, role="red"), "role must be one of query, .*, got 'red'"),
        (lambda: Sketch(10, 10, alt="a").text((1, 1), "$n"), "even number of dollar signs"),
        (lambda: Sketch(10, 10, alt="a").arrow((1, 1), (2, 1)), "longer than its two gaps"),
        (lambda: drawings.dot_product((0, 0), (1, 2)), "query must have two entries"),
        (lambda: drawings.dot_product((1, 1), (1, 2, 3)), "key must have two entries"),
        (lambda: drawings.masked_softmax(torch.ones(2, 7), masks.causal(2, 7)), "from 1 to 6 rows and columns"),
        (lambda: drawings.masked_softmax(SCORES, masks.causal(3, 5)), "mask must have the shape of scores"),
        (lambda: drawings.masked_softmax(SCORES, masks.causal(3, 4), key_labels="abc"), "key_labels must name all 4"),
        (lambda: drawings.masks({}), "masks must be between 1 and 6, got 0"),
        (lambda: drawings.masks({"a": torch.ones(2, 3)}), r"mask 'a' must be a Boolean table .* \(2, 3\)"),
        (lambda: drawings.masks({"a": masks.causal(13)}), r"1 to 12 rows and columns, got torch.bool of .*13"),
        (lambda: drawings.recurrence_and_lookup(["a"]), "words must be between 2 and 6, got 1"),
        (lambda: drawings.split_heads(7), "n_heads must be between 2 and 6, got 7"),
        (lambda: drawings.grouped_query_attention(8, (3,)), "n_kv_heads must divide n_heads 8, got 3"),
        (lambda: drawings.grouped_query_attention(8, ()), "one to three panels"),
        (lambda: drawings.block_flops(()), "one at least, got \\[\\]"),
        (lambda: drawings.block_flops((1, 13)), "at most 12"),
        (lambda: drawings.parallel_scan(6), "n must be 2, 4, 8 or 16, got 6"),
        (
            lambda: drawings.online_softmax([1, 2, 3], 2),
            "scores must be at most 8, in two to four whole tiles, got 3 in tiles of 2",
        ),
        (lambda: drawings.online_softmax([1, 2], 2), "got 2 in tiles of 2"),
        (lambda: drawings.online_softmax([1, 2], 0), "got 2 in tiles of 0"),
        (lambda: drawings.online_softmax(range(9), 3), "got 9 in tiles of 3"),
        (lambda: drawings.tile_orders(), "names must be one to four of 'forward, 2022'"),
        (lambda: drawings.tile_orders("sideways"), "got \\('sideways',\\)"),
        (lambda: drawings.ping_pong(1.5), "share must be between 0.2 and 1, got 1.5"),
        (lambda: drawings.rotated_pair(()), "positions must be between 1 and 4, got 0"),
    ],
)
def test_invalid_arguments_raise(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_two_towers_draws_no_arrow_between_the_towers():
    html = DRAWINGS["two_towers"].to_html()
    tips = [float(x) for x in re.findall(r'd="M([\d.]+) [\d.]+L[^"]*" class="(?:query|key) tip"', html)]
    assert len(tips) == 2
    assert tips[0] < 201 < tips[1]
    assert html.count(' tip"') + html.count('"tip"') == 4


@pytest.mark.parametrize("spot", [(-0.5, 3), (3, 8.5)])
def test_spot_outside_the_image_raises(spot):
    with pytest.raises(ValueError, match="spot must be within"):
        drawings.spot_and_mark(spot)
