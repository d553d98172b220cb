"""Tests of the tiles explorer: each step agrees with the library, bytes with a simulated machine; the figure.

Everything is float64 on both sides; the largest difference measured against the library is 3e-16.
"""

import pytest
import torch
import traitlets
from torch.testing import assert_close

from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention
from lessons_lib.attention.softmax import log_sum_exp, merge_attention, softmax
from lessons_lib.flash import flash_attention
from lessons_lib.page.widgets import TilesExplorer
from lessons_lib.page.widgets.tiles import ORDERS, schedule

SHAPES = [(2, 1, 1), (5, 2, 3), (7, 3, 2), (8, 4, 2), (11, 8, 3), (13, 5, 8), (16, 1, 7), (16, 8, 8)]


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


def close(ours, theirs):
    assert_close(ours, theirs, rtol=0, atol=1e-14)


# --- arithmetic -----------------------------------------------------------------------------------------------------


def rows_after(javascript, scores, steps, is_causal, rescale=True):
    """The running maxima, sums and outputs after the steps, which are not yet divided by their sums."""
    rows = javascript("tiles.math", "run", scores.tolist(), steps, is_causal, rescale)
    return [tensor([row[name] for row in rows]) for name in ("peak", "total", "out")]


def check_that_the_result_is_attention(javascript):
    for n, block_q, block_k in SHAPES:
        for order, is_causal in zip([*ORDERS, "drawn"], [False, True, False, True], strict=True):
            scores = tensor(javascript("tiles.math", "scores", n, 3, order))
            steps = javascript("tiles.math", "schedule", n, block_q, block_k, is_causal)
            peak, total, out = rows_after(javascript, scores, steps, is_causal)

            one = torch.eye(n)
            mask = masks.causal(n) if is_causal else None
            close(out, attention(scores, one, one, mask, scale=1.0))
            heads = (x[None, None] for x in (scores, one, one))
            flash, lse = flash_attention(*heads, is_causal=is_causal, scale=1.0, backend="tiled", return_lse=True)
            close(out, flash[0, 0])
            close(peak + total.log(), lse[0, 0])


@pytest.mark.browser
def test_final_outputs_agree_with_attention(javascript):
    check_that_the_result_is_attention(javascript)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Math.exp(row.peak - peak) : 1", "Math.exp(peak - row.peak) : 1"),
        ("row.out.map((o) => factor * o)", "row.out.map((o) => o)"),
        ("factor * row.total +", "row.total +"),
        ("Math.max(row.peak, ...tile)", "Math.max(...tile)"),
        ("causal && j > query", "causal && j >= query + 2"),
        ("k < (causal ? rows[rows.length - 1] + 1 : n)", "k < (causal ? rows[0] + 1 : n)"),
    ],
)
def test_wrong_merge_is_noticed(altered, right, wrong):
    with altered("tiles.math", right, wrong) as javascript, pytest.raises(AssertionError, match="not close"):
        check_that_the_result_is_attention(javascript)


@pytest.mark.browser
def test_every_merge_agrees_with_the_library(javascript):
    n, block_q, block_k = 11, 4, 3
    scores = tensor(javascript("tiles.math", "scores", n, 5, "drawn"))
    steps = javascript("tiles.math", "schedule", n, block_q, block_k, True)
    mask = masks.causal(n)
    out, lse = torch.zeros(n, n), torch.full((n,), -torch.inf)
    for at, step in enumerate(steps, start=1):
        rows, keys = step["rows"], step["keys"]
        if step["doing"] == "merge":
            tile, seen = scores[rows][:, keys], mask[rows][:, keys]
            part = softmax(tile, seen) @ torch.eye(n)[keys]
            out[rows], lse[rows] = merge_attention(out[rows], lse[rows], part, log_sum_exp(tile, seen))
        peak, total, running = rows_after(javascript, scores, steps[:at], True)
        close(peak + total.log(), lse)
        done = [i for before in steps[:at] if before["doing"] == "write" for i in before["rows"]]
        divided = running / total.masked_fill(total == 0, 1.0)[:, None]
        divided[done] = running[done]
        close(divided, out)


@pytest.mark.browser
def test_factor_is_exp_of_the_change_of_the_maximum(javascript):
    row = {"peak": 1.0, "factor": 1, "total": 2.0, "out": [1.5, 0.5, 0.0]}
    merged = javascript("tiles.math", "merge", row, [2], [3.0], True)
    assert merged["factor"] == pytest.approx(torch.e**-2)
    assert merged["out"] == pytest.approx([1.5 * torch.e**-2, 0.5 * torch.e**-2, 1.0])
    assert javascript("tiles.math", "merge", row, [2], [0.9], True)["factor"] == 1.0


@pytest.mark.browser
def test_without_rescaling_only_falling_scores_are_correct(javascript):
    n, steps = 8, javascript("tiles.math", "schedule", 8, 4, 2, False)
    for order in ORDERS:
        scores = tensor(javascript("tiles.math", "scores", n, 3, order))
        *_, out = rows_after(javascript, scores, steps, False, rescale=False)
        assert torch.allclose(out, softmax(scores)) == (order == "falling")


@pytest.mark.browser
def test_scores_have_one_decimal_and_orders_sort_them(javascript):
    drawn, rising, falling = (tensor(javascript("tiles.math", "scores", 9, 3, order)) for order in ORDERS)
    assert torch.equal(rising, drawn.sort(-1).values)
    assert torch.equal(falling, rising.flip(-1))
    assert torch.equal(drawn, (10 * drawn).round() / 10)
    assert torch.equal(tensor(javascript("tiles.math", "scores", 5, 3, "drawn")), drawn[:5, :5])
    assert not torch.equal(tensor(javascript("tiles.math", "scores", 9, 4, "drawn")), drawn)


# --- what is moved --------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize("is_causal", [False, True])
def test_tiles_agree_in_python_and_javascript_and_cover_visible_pairs_once(javascript, is_causal):
    for n, block_q, block_k in SHAPES:
        steps = schedule(n, block_q, block_k, is_causal)
        ours = javascript("tiles.math", "schedule", n, block_q, block_k, is_causal)
        assert [(s["doing"], s["rows"], s["keys"]) for s in ours] == [(d, list(r), list(k)) for d, r, k in steps]
        visits = torch.zeros(n, n)
        for doing, rows, keys in steps:
            if doing == "merge":
                visits[rows.start : rows.stop, keys.start : keys.stop] += 1
                assert not is_causal or keys.start < rows.stop, "a tile that is hidden as a whole is skipped"
        assert visits.max() == 1
        assert (visits.bool() | ~masks.causal(n) if is_causal else visits.bool()).all()


class TwoMemories:
    """A slow memory that counts transfers, and a fast memory that records its largest use."""

    def __init__(self):
        self.moved = self.most = 0
        self.fast = {}

    def read(self, name, *shape):
        self.moved += torch.Size(shape).numel()
        self.make(name, *shape)

    def make(self, name, *shape):
        self.fast[name] = torch.Size(shape).numel()
        self.most = max(self.most, sum(self.fast.values()))

    def write(self, name):
        self.moved += self.fast.pop(name)


@pytest.mark.browser
@pytest.mark.parametrize("is_causal", [False, True])
def test_bytes_agree_with_a_simulated_machine(javascript, is_causal):
    d = 3
    for n, block_q, block_k in SHAPES:
        machine = TwoMemories()
        for q in range(0, n, block_q):
            rows = min(block_q, n - q)
            machine.read("Q", rows, d)
            for name, width in (("O", d), ("max", 1), ("sum", 1)):
                machine.make(name, rows, width)
            for k in range(0, q + rows if is_causal else n, block_k):
                machine.read("K", min(block_k, n - k), d)
                machine.read("V", min(block_k, n - k), d)
                machine.make("scores", rows, min(block_k, n - k))
            machine.write("O")
            machine.write("sum")  # in its place the log-sum-exp
            machine.fast.clear()
        steps = javascript("tiles.math", "schedule", n, block_q, block_k, is_causal)
        assert javascript("tiles.math", "moved", steps, d) == machine.moved
        assert javascript("tiles.math", "traffic", n, d, block_q, block_k, is_causal) == machine.moved
        assert javascript("tiles.math", "held", d, min(n, block_q), min(n, block_k)) == machine.most


@pytest.mark.browser
def test_naive_algorithm_moves_the_scores_four_times(javascript):
    n, d, machine = 7, 3, TwoMemories()
    for reads, (made, *shape) in [("QK", "Snn"), ("S", "Pnn"), ("PV", "Ond")]:
        for name in reads:
            machine.read(name, n, n if name in "SP" else d)
        machine.make(made, *({"n": n, "d": d}[axis] for axis in shape))
        machine.write(made)
    assert javascript("tiles.math", "naiveTraffic", n, d) == machine.moved == 4 * n * d + 4 * n * n


@pytest.mark.browser
def test_larger_block_q_moves_fewer_bytes_and_larger_block_k_does_not(javascript):
    """2 d n m / block_q is what counts: less than the naive 4 n m from about block_q = d / 2 on."""
    n, d = 4096, 64
    by_queries = [javascript("tiles.math", "traffic", n, d, block, 32, False) for block in (16, 32, 64, 128)]
    assert by_queries == sorted(by_queries, reverse=True)
    assert len({javascript("tiles.math", "traffic", n, d, 32, block, False) for block in (16, 32, 64, 128)}) == 1
    naive = javascript("tiles.math", "naiveTraffic", n, d)
    assert by_queries[0] > naive > by_queries[1]


@pytest.mark.browser
def test_largest_block_fits_into_memory(javascript):
    for numbers in (4096, 8192, 16384, 32768, 65536):
        side = javascript("tiles.math", "largestBlock", numbers, 64)
        assert javascript("tiles.math", "held", 64, side, side) <= numbers
        assert javascript("tiles.math", "held", 64, 2 * side, 2 * side) > numbers


# --- traits ---------------------------------------------------------------------------------------------------------


def test_repr_lists_the_traits():
    assert repr(TilesExplorer(n=5, order="rising")) == (
        "TilesExplorer(n=5, block_q=4, block_k=2, is_causal=False, order='rising', rescale=True, memory=128, step=0, "
        "seed=8)"
    )


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"n": 17}, "n.*at least 2 and at most 16, not the int 17"),
        ({"block_q": 0}, "block_q.*at least 1 and at most 8, not the int 0"),
        ({"block_k": 2.0}, "block_k.*a whole number"),
        ({"is_causal": "yes"}, "is_causal.*expected a boolean, not the str 'yes'"),
        ({"order": "sorted"}, "order.*expected any of .*rising.*not the str 'sorted'"),
        ({"memory": 100}, "memory.*expected any of .*128.*not the int 100"),
        ({"step": -1}, "step.*at least 0, not the int -1"),
        ({"seed": True}, "seed.*not the bool True"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        TilesExplorer(**arguments)


def test_invalid_assignment_keeps_the_old_value():
    explorer = TilesExplorer(n=5)
    with pytest.raises(traitlets.TraitError, match="n"):
        explorer.n = 17
    assert explorer.n == 5


# --- what a reader sees and does ------------------------------------------------------------------------------------


def numbers(page):
    """The table as text: a row of maximum, largest in the tile, factor and sum for each query."""
    rows = page.locator("table tbody tr").all()
    return {
        int(row.locator("th").inner_text()): [
            text.replace("\N{MINUS SIGN}", "-") for text in row.locator("td").all_inner_texts()
        ]
        for row in rows
    }


def step(page):
    page.get_by_role("button", name="Step", exact=True).press("Enter")


@pytest.mark.browser
def test_factor_is_shown_after_its_step(javascript, show):
    explorer = TilesExplorer(n=5, block_q=3, block_k=2)
    scores = tensor(javascript("tiles.math", "scores", 5, explorer.seed, "drawn"))
    with show(explorer) as page:
        for _ in range(3):  # load and merge the first tile, load the second
            step(page)
        old, new = scores[:3, :2].amax(-1), scores[:3, :4].amax(-1)
        before = numbers(page)
        assert [row[2] for row in before.values()] == ["?"] * 3
        assert [float(row[0]) for row in before.values()] == old.tolist()
        step(page)
        after = numbers(page)
        assert [float(row[0]) for row in after.values()] == new.tolist()
        assert [row[2] for row in after.values()] == [f"{factor:.2f}" for factor in (old - new).exp()]
        assert [row[3] for row in after.values()] == [
            f"{total:.2f}" for total in (scores[:3, :4] - new[:, None]).exp().sum(-1)
        ]


@pytest.mark.browser
def test_sentence_mentions_rescaling(show):
    for rescale, said in ((True, "Sum and output shrink"), (False, "nothing is rescaled")):
        with show(TilesExplorer(n=5, block_q=3, block_k=2, order="rising", step=4, rescale=rescale)) as page:
            words = page.locator(".x-words").inner_text()
            assert said in words
            assert ("shrink" in words) == rescale


@pytest.mark.browser
def test_buttons_step_and_stop_at_both_ends(show):
    with show(TilesExplorer(n=4, block_q=2, block_k=2, step=9)) as page:
        slider = page.get_by_label("Step, of 10")
        for _ in range(3):
            step(page)
        assert slider.get_attribute("aria-valuetext") == "10"
        page.get_by_role("button", name="Back").click()
        assert slider.get_attribute("aria-valuetext") == "9"
        page.get_by_role("button", name="Start again").click()
        page.get_by_role("button", name="Back").click()
        assert slider.get_attribute("aria-valuetext") == "0"
        assert "Fast memory is empty" in page.locator(".x-body").inner_text()
        assert page.get_by_role("button", name="Step", exact=True).is_enabled()


@pytest.mark.browser
def test_a_step_beyond_the_last_is_the_last(show):
    with show(TilesExplorer(n=16, block_q=1, block_k=1, step=500)) as page:
        page.get_by_label("Queries in a tile").press("End")
        page.get_by_label("Keys in a tile").press("End")
        slider = page.get_by_label("Step, of 10")
        assert slider.get_attribute("aria-valuetext") == "10"
        page.get_by_role("button", name="Back").click()
        assert slider.get_attribute("aria-valuetext") == "9"


@pytest.mark.browser
def test_last_line_says_whether_the_output_is_the_softmax(show):
    def difference(**traits):
        with show(TilesExplorer(step=100, **traits)) as page:
            return page.get_by_text("Largest difference from the softmax").inner_text()

    for traits in ({"is_causal": True}, {"order": "falling", "rescale": False}):
        words = difference(**traits)
        assert "Written: 8 of 8 rows" in words
        assert "⁻¹" in words or words.endswith("0.000")
    assert float(difference(order="rising", rescale=False).split()[-1]) > 0.05


@pytest.mark.browser
def test_bytes_are_shown(show):
    def amounts(page):
        return page.locator(".x-grid .x-value").all_inner_texts()

    with show(TilesExplorer(n=8, block_q=4, block_k=2, step=1)) as page:
        assert amounts(page) == ["128 B", "800 B", "1536 B"]
        page.get_by_label("Keys in a tile").press("End")
        assert amounts(page) == ["320 B", "800 B", "1536 B"]
        page.get_by_label("Queries in a tile").press("Home")
        assert amounts(page)[1] == "2336 B"
        page.get_by_role("combobox", name="Fast memory").select_option("32 KiB")
        assert "tiles of 16 \N{MULTIPLICATION SIGN} 16 fit" in page.locator(".x-facts").last.inner_text()


@pytest.mark.browser
@pytest.mark.parametrize("shape", [(2, 1, 1), (7, 3, 2), (16, 8, 7)], ids=str)
def test_every_step_draws_without_nan(shape, show):
    n, block_q, block_k = shape
    with show(TilesExplorer(n, block_q, block_k, is_causal=True)) as page:
        for _ in schedule(n, block_q, block_k, True):
            step(page)
            drawn = page.locator(".x-body").inner_html()
            assert not {word for word in ("NaN", "Infinity", "undefined") if word in drawn}


def test_still_shows_visited_tiles_and_omits_skipped_ones():
    still = TilesExplorer(n=9, block_q=4, block_k=2, is_causal=True, step=7).still()
    looks = [still.count(f'class="{look}"') for look in ("x-ground", "x-fill", "x-line x-second")]
    assert looks == [2 + 4 + 5, 3, 1]
    assert "11 tiles of 4 queries and 2 keys over 9 positions" in still


@pytest.mark.browser
def test_merged_tile_is_plain_and_later_tile_shows_scores(show):
    n = 6
    with show(TilesExplorer(n=n, block_q=3, block_k=2)) as page:
        matrix = page.locator("svg[aria-label^='scores, and which tile']")

        def scores_and_fields():
            cells = matrix.locator("rect[fill-opacity]").count()
            return cells, matrix.locator("path.x-fill").count()

        assert scores_and_fields() == (n * n, 0)
        for fields in (0, 0, 1, 1, 2, 2, 3, 3):  # loaded, merged, ...; the last is merged when the block is written
            step(page)
            assert scores_and_fields() == (n * n - fields * 3 * 2, fields)
        assert "merged" in page.locator(".x-legend").inner_text()


@pytest.mark.browser
def test_the_largest_matrix_fits_a_phone(show):
    with show(TilesExplorer(n=16, block_q=8, block_k=8, step=5), width=360) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.browser
def test_caption_says_whether_outputs_are_normalised(show):
    with show(TilesExplorer(n=4, block_q=2, block_k=4, step=2)) as page:
        assert "not yet divided" in page.locator("figcaption").inner_text()
        step(page)
        assert "divided by the sums and written" in page.locator("figcaption").inner_text()
