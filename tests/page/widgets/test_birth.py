"""Tests of the birth explorer: script and library agree at every step and switch; cost of rounding; the figure.

The script and Python compute in float64 on both sides, the weights being the same whole numbers times the same steps.
Largest difference measured over the twenty steps, with and without switches: 5e-15 of a probability or a weight.
"""

import json
from contextlib import ExitStack

import pytest
import torch
import train_birth
import traitlets
from frames import fill
from labels import collisions, smallest
from thorough import all_but
from torch.testing import assert_close

from lessons_lib.analysis import patterns
from lessons_lib.analysis.diagnostics import observe
from lessons_lib.attention.attention import attention
from lessons_lib.page.widgets import BirthExplorer
from lessons_lib.page.widgets.birth import (
    CONFIG,
    HIDEABLE,
    LONGEST,
    STEPS,
    SYMBOLS,
    birth_record,
    checkpoint,
    encode_symbols,
    forward_with_switches,
    pack_checkpoint,
    unpack_checkpoint,
)
from lessons_lib.training.loop import evaluate
from lessons_lib.training.tasks import repetition
from lessons_lib.transformer.gpt import GPT

NEAR = 1e-12
WAYS = list(train_birth.settings())
LABEL = "Steps of training"


def rows():
    """Passages as in training, and symbols in any order, of many lengths."""
    passages = repetition(torch.Generator().manual_seed(3), batch_size=5, n=LONGEST).inputs.tolist()
    found = [row[:n] for row, n in zip(passages, (48, 33, 19, 7, 2), strict=True)]
    found.append(torch.randint(32, (29,), generator=torch.Generator().manual_seed(4)).tolist())
    return ["".join(SYMBOLS[symbol] for symbol in row) for row in found]


# --- one model in two languages ---------------------------------------------------------------------------------------


def check_run(javascript, cases):
    """Cases of symbols, step, hidden inputs and forced pattern."""
    calls = [(symbols, step, {"hide": hide, "forced": forced}) for symbols, step, hide, forced in cases]
    for (symbols, step, hide, forced), ours in zip(cases, javascript.each("birth.math", "run", calls), strict=True):
        with torch.no_grad():
            weights, logits = forward_with_switches(
                checkpoint(step).double(), encode_symbols(symbols)[None], hide, forced
            )
        assert_close(torch.tensor(ours["next"], dtype=torch.float64), logits[0].softmax(-1), rtol=0, atol=NEAR)
        for layer, table in zip(ours["weights"], weights[:, 0], strict=True):
            for i, row in enumerate(layer):
                assert_close(torch.tensor(row, dtype=torch.float64), table[i, : i + 1], rtol=0, atol=NEAR)


@pytest.mark.browser
@pytest.mark.parametrize("step", all_but(STEPS, lambda step: step in STEPS[::6]))
def test_script_agrees_with_the_library_at_every_step_and_switch(javascript, step):
    check_run(javascript, [(rows()[2], step, hide, forced) for hide, forced in WAYS])


@pytest.mark.browser
def test_script_agrees_with_the_library_for_any_symbols(javascript):
    check_run(javascript, [(row, step, ["values"], False) for row in rows() for step in (50, 120, 300)])


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("{ length: i + 1 }", "{ length: i ? i : 1 }"),
        ("plus(forKeys, own.places)", "forKeys"),
        ("plus(forQueries, own.places)", "plus(forQueries, forKeys)"),
        ("const v = project(values", "const v = project(plus(values, own.places)"),
        ("new Int8Array(bytes", "new Uint8Array(bytes"),
        ("half << 16", "half << 15"),
        ("Math.sqrt(WIDTH)", "WIDTH"),
        ("Math.max(0, i - 1)", "Math.max(0, i - 2)"),
        ("? before : after", "? after : before"),
        ("plus(after, second.written)", "plus(before, second.written)"),
        ('[mark("queries"), mark("keys")', '[mark("keys"), mark("queries")'),
        ("(b - mean) ** 2", "b ** 2"),
        ("found[name] = gain.subarray(i", "found[name] = gain.subarray((2 - i)"),
    ],
)
def test_wrong_model_is_noticed(altered, right, wrong):
    with altered("birth.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_run(javascript, [(rows()[3], 120, ["queries"], False), (rows()[3], 200, [], True)])


@pytest.fixture(scope="module")
def tokens():
    return repetition(torch.Generator().manual_seed(9), batch_size=3, n=31).inputs


@pytest.mark.parametrize("step", [0, 110, 300])
def test_forward_with_switches_defaults_equal_the_model(step, tokens):
    model = checkpoint(step).double()
    with torch.no_grad(), observe(model) as seen:
        logits = model(tokens)
        ours = forward_with_switches(model, tokens)
    assert_close(ours.logits, logits)
    assert_close(ours.weights, torch.stack([weights[:, 0] for weights in seen.weights.values()]))


@pytest.mark.parametrize(("hide", "forced"), WAYS[1:], ids=str)
def test_forward_with_switches_agrees_with_hooks(hide, forced, tokens):
    """Hooks remove layer 1's output from the inputs of layer 2's projections; layer 1's attention is replaced."""
    model, before = checkpoint(150).double(), []
    first, second = (block.attention for block in model.blocks)

    def previous(q, k, v, mask, **others):
        return torch.cat([v[..., :1, :], v[..., :-1, :]], dim=-2)

    if forced:
        first.sublayer.implementation = previous
    with ExitStack() as undo, torch.no_grad():
        undo.callback(first.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0])).remove)
        for part in hide:
            matrix = second.sublayer.get_submodule(f"w_{part[0]}")
            undo.callback(matrix.register_forward_pre_hook(lambda _, __: (second.norm(before[-1]),)).remove)
        logits = model(tokens)
    with torch.no_grad():
        assert_close(forward_with_switches(model, tokens, hide, forced).logits, logits)
        assert not torch.allclose(forward_with_switches(model, tokens).logits, logits, atol=1e-3)


# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize("step", [0, 115, 300])
def test_pattern_scores_agree_with_the_library(javascript, step):
    for symbols in rows():
        weights = BirthExplorer(step, symbols).weights()
        lists = [[row[: i + 1] for i, row in enumerate(layer)] for layer in weights.tolist()]
        before = javascript("patterns.math", "previous", symbols)
        after = javascript("birth.math", "followers", symbols)
        wanted = (
            patterns.previous_token_score(weights[0]),
            patterns.induction_score(weights[1], encode_symbols(symbols)),
        )
        for layer, targets, share in zip(lists, (before, after), wanted, strict=True):
            ours = javascript("patterns.math", "score", layer, targets)
            assert ours is None if share.isnan() else ours == pytest.approx(share.item(), abs=1e-12)


@pytest.mark.browser
def test_predicted_symbol_follows_the_last_occurrence(javascript):
    assert javascript("birth.math", "answers", "ABACAB") == ["", "", "B", "", "C", "A"]
    assert javascript("birth.math", "followers", "ABACAB") == [[], [], [1], [], [1, 3], [2]]
    passage = repetition(torch.Generator().manual_seed(5), batch_size=1, n=40)
    symbols = "".join(SYMBOLS[symbol] for symbol in passage.inputs[0])
    wanted = [SYMBOLS[t] if known else "" for t, known in zip(passage.targets[0], passage.loss_mask[0], strict=True)]
    assert javascript("birth.math", "answers", symbols) == wanted


@pytest.mark.browser
@pytest.mark.parametrize(
    ("symbols", "is_like"),
    [
        ("BIRTHDAYBIRTHDAYBIR", True),
        ("ABCDEFGH", True),
        ("ABCDEFGABCDEFG", False),  # a passage of seven
        ("ATTENTIONATTENTION", False),  # the same symbol twice in it
        ("BIRTHDAYBIRTHDAYBIT", False),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", False),
        (SYMBOLS[:24] * 2, True),
    ],
)
def test_passages_unlike_training_are_detected(javascript, symbols, is_like):
    assert javascript("birth.math", "isLikeTraining", symbols) == is_like


@pytest.mark.browser
def test_next_passages_are_like_training_and_do_not_repeat_soon(javascript):
    seen = ["BIRTHDAYBIRTHDAYBIR"]
    for _ in range(30):
        seen.append(javascript("birth.math", "another", seen[-1]))
        assert javascript("birth.math", "isLikeTraining", seen[-1])
        assert 19 <= len(seen[-1]) <= 27
    assert len(set(seen)) == 31


# --- how it was made, and what it shows -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record():
    return birth_record()


def test_record_describes_the_models(record):
    assert record["command"] == "python tools/train_birth.py --seeds 0 1 2"
    assert record["steps"] == STEPS[-1] == 300
    batch = train_birth.held_out()
    assert len(batch.inputs) == record["held_out"]["rows"] == 256
    for step in (0, 120, 300):
        model, place = checkpoint(step), STEPS.index(step)
        assert sum(p.numel() for p in model.parameters()) == CONFIG.n_parameters() + LONGEST * 32 == 11_872
        assert record["rounding"][place]["loss_rounded"] == pytest.approx(evaluate(model, [batch]), abs=2e-5)
        for way in (0, 2, 13):
            assert record["switched"][place][way] == pytest.approx(
                train_birth.accuracy(model, batch, *WAYS[way]), abs=0.003
            )
    lengths = {len(curve) for curves in record["curves"].values() for curve in curves.values()}
    assert lengths == {300 // record["every"] + 1}


def test_rounding_changes_the_loss_little(record):
    """KL divergence at most 0.001 nats, change of the loss at most 0.0027; 97 % of the predictions stay the same."""
    assert len(record["rounding"]) == len(STEPS)
    for cost in record["rounding"]:
        assert cost["kl"] < 1.2e-3
        assert abs(cost["loss"] - cost["loss_rounded"]) < 3e-3
        assert cost["kept"] > 0.97


@pytest.mark.browser
def test_recorded_accuracies_agree_with_the_switches(javascript, record):
    cases = [(step, {"hide": hide, "forced": forced}) for step in STEPS for hide, forced in WAYS]
    assert javascript.each("birth.math", "recorded", cases) == [share for row in record["switched"] for share in row]


def test_recorded_run_shows_the_described_effects(record):
    """The effects that the explorer's texts ask the reader to look for."""
    switched = {
        step: dict(zip(map(str, WAYS), row, strict=True)) for step, row in zip(STEPS, record["switched"], strict=True)
    }

    def right(step, *hide, forced=False):
        return switched[step][str((list(hide), forced))]

    # at the end the second layer needs the first in its keys alone
    assert right(300) > 0.99
    assert right(300, "keys") < 0.1
    assert min(right(300, "queries"), right(300, "values"), right(300, "queries", "values")) > 0.98
    # before the rise it is in the values too that it is needed
    assert right(100) > 5 * right(100, "values")
    assert right(150, "values") > 0.9
    # an exact pattern breaks the model in the middle of the rise, and helps it when the keys alone hear of it
    assert right(125, forced=True) < 0.1
    assert right(125, "queries", "values", forced=True) > right(125) + 0.1
    assert right(120, "queries", "values", forced=True) < right(120)  # not yet
    # a soft pattern is enough
    for curves in record["curves"].values():
        assert curves["accuracy"][-1] > 0.98
        assert curves["previous_token"][-1] < 0.21


@pytest.mark.browser
def test_emergence_step_has_accuracy_one_half(javascript, record):
    for curves in record["curves"].values():
        step = javascript("birth.math", "born", curves["accuracy"])
        assert curves["accuracy"][step // 5] >= 0.5 > curves["accuracy"][step // 5 - 1]
        assert 100 < step <= 120


@pytest.mark.thorough
def test_training_is_reproducible(monkeypatch, tmp_path):
    """Run the whole command with ten steps, two seeds and seven held-out passages."""
    few = repetition(torch.Generator().manual_seed(1), batch_size=7)
    monkeypatch.setattr(train_birth, "STEPS", [0, 5, 10])
    monkeypatch.setattr(train_birth, "SETTINGS", {**train_birth.SETTINGS, "n_warmup": 5})
    monkeypatch.setattr(train_birth, "held_out", lambda: few)
    threads, made = torch.get_num_threads(), []
    for name in ("once.js", "again.js"):
        monkeypatch.setattr("sys.argv", ["train_birth.py", "--seeds", "6", "4", "--out", str(tmp_path / name)])
        train_birth.main()
        made.append((tmp_path / name).read_text())
    torch.set_num_threads(threads)
    assert made[0] == made[1]
    head, text = made[0].split("export const MODEL = ")
    found = json.loads(text.removesuffix(";\n"))
    assert head.startswith("/** ")
    assert [len(curve["induction"]) for curve in found["record"]["curves"].values()] == [3, 3]
    assert len(found["checkpoints"]) == len(found["record"]["switched"]) == 3
    assert found["record"]["rounding"][0]["loss"] == pytest.approx(3.47, abs=0.03)  # ln 32


def test_a_matrix_is_rounded_to_half_a_step_of_its_row():
    generator = torch.Generator().manual_seed(0)
    shapes = {name: weight.shape for name, weight in checkpoint(0).state_dict().items()}
    state = {name: torch.randn(shape, generator=generator).float() for name, shape in shapes.items()}
    state["head.weight"][3] = 0.0
    near = unpack_checkpoint(pack_checkpoint(state))
    assert near.keys() == state.keys()
    for name, weight in state.items():
        if weight.ndim == 2:
            step = weight.abs().amax(-1, keepdim=True) / 127
            assert ((near[name] - weight).abs() <= 0.76 * step).all()  # the step itself has three digits: 0.2 per cent
        else:
            assert_close(near[name], weight, rtol=2**-8, atol=0)
    assert all(torch.equal(again, near[name]) for name, again in unpack_checkpoint(pack_checkpoint(near)).items())


# --- traits -----------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"step": 1}, "step.*expected any of"),
        ({"symbols": "BIRD1"}, "symbols must be letters from A to Z or digits from 2 to 7, got '1'"),
        ({"symbols": "bird"}, "got 'b'"),
        ({"symbols": "A"}, "symbols must be 2 to 48, got 1"),
        ({"symbols": "AB" * 25}, "symbols must be 2 to 48, got 50"),
        ({"query": 48}, "query.*at most 47"),
        ({"query": -1}, "query.*at least 0"),
        ({"hide": ["outputs"]}, "hide"),
        ({"forced": "yes"}, "forced"),
        ({"guess": 301}, "guess.*at most 300"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        BirthExplorer(**arguments)


@pytest.mark.rejects
def test_checkpoint_unknown_step_raises():
    with pytest.raises(ValueError, match=r"step must be one of 0, 25, .*, 300, got 7"):
        checkpoint(7)


def test_invalid_symbols_keep_the_old_ones():
    explorer = BirthExplorer()
    with pytest.raises(traitlets.TraitError):
        explorer.symbols = "no"
    assert explorer.symbols == "BIRTHDAYBIRTHDAYBIR"


def test_checkpoint_leaves_the_random_state():
    before = torch.get_rng_state()
    model = checkpoint(300)
    assert isinstance(model, GPT)
    assert not model.training
    assert torch.equal(torch.get_rng_state(), before)
    assert model.blocks[0].attention.sublayer.implementation is not attention


def test_still_contains_the_prediction():
    p = BirthExplorer(step=300).next_symbol()
    assert p.sum() == pytest.approx(1)
    assert f"after the query R the model expects T with probability {p.max():.2f}" in BirthExplorer(300).still()
    assert "after the query B the" in BirthExplorer(300, query=0).still()


# --- what a reader does -----------------------------------------------------------------------------------------------


def open_tab(page, name):
    page.locator(".x-tabs button:visible", has_text=name).click()


def figures(page):
    cells = page.locator(".x-numbers tr")
    return {row.locator("th").text_content(): row.locator("td").text_content() for row in cells.all()}


def bars(page):
    grid = page.locator(".b-next")
    names, values = grid.locator("button").all_text_contents(), grid.locator(".x-value").all_text_contents()
    return list(zip(names, values, strict=True))


def opacities(page, layer):
    cells = page.locator(".x-panels figure").nth(layer).locator("rect.x-solid")
    return [float(o) for o in cells.evaluate_all("all => all.map((e) => e.getAttribute('fill-opacity'))")]


@pytest.mark.browser
def test_maps_and_bars_agree_with_the_model(show):
    explorer = BirthExplorer(140, "LUMBERJACKLUMBERJ", 12, ["queries"], True)
    with show(explorer) as page:
        for layer, table in enumerate(explorer.weights()):
            wanted = [weight for i, row in enumerate(table.tolist()) for weight in row[: i + 1]]
            assert opacities(page, layer) == pytest.approx(wanted, abs=6e-4)
        p = explorer.next_symbol()
        order = p.argsort(descending=True, stable=True)[:6].tolist()
        assert bars(page) == [(SYMBOLS[i], f"{p[i]:.3f}") for i in order]
        marked = page.locator(".b-next .x-facts").all_text_contents()
        assert [name for (name, _), mark in zip(bars(page), marked, strict=True) if mark] == ["B"]


@pytest.mark.browser
def test_play_advances_steps_and_curves(show):
    with show(BirthExplorer(260, guess=90)) as page:
        slider = page.get_by_role("slider", name=LABEL)
        end = "all => Math.max(...all.map((e) => Number(e.getAttribute('d').split('L').pop().split(' ')[0])))"
        curves = page.locator("path.x-line")
        assert curves.count() == 9
        page.clock.install(time=0)
        page.clock.pause_at(1000)
        reached = curves.evaluate_all(end)
        page.get_by_role("button", name="Play").press("Enter")
        assert slider.get_attribute("aria-valuetext") == "300"
        assert curves.evaluate_all(end) > reached
        page.get_by_role("button", name="Play").press("Enter")
        assert slider.get_attribute("aria-valuetext") == "0"
        page.clock.run_for(1210)
        assert slider.get_attribute("aria-valuetext") == "50"
        assert curves.evaluate_all(end) == pytest.approx(30 + 282 * 50 / 300, abs=0.1)
        page.get_by_role("button", name="Pause").press("Enter")


@pytest.mark.browser
def test_guess_is_marked_and_answered_at_its_step(show):
    with show(BirthExplorer(115)) as page:
        open_tab(page, "Training")
        slider = page.get_by_role("slider", name="Your guess")
        assert slider.get_attribute("aria-valuetext") == "none"
        assert page.locator(".b-guess").get_attribute("d") == ""
        assert page.locator("path.x-line:visible").count() == 0
        assert page.get_by_text("Guess first: the curves wait for it.").is_visible()
        assert figures(page)["the run: half right by step"] == "guess first"
        slider.fill("200")
        assert page.locator("path.x-line:visible").count() == 9
        assert page.locator(".b-guess").get_attribute("d").startswith("M218 ")
        assert figures(page)["the run: half right by step"] == "later"
        page.get_by_role("slider", name=LABEL).press("ArrowRight")
        assert figures(page)["the run: half right by step"] == "120"


@pytest.mark.browser
def test_switch_changes_figure_and_recorded_accuracy(show, record):
    with show(BirthExplorer(300)) as page:
        row = record["switched"][STEPS.index(300)]
        right = page.locator(".x-headline b")
        assert right.text_content() == f"{row[0]:.3f}"
        assert figures(page)["right in yours"] == "11 of 11"
        for i, part in enumerate(HIDEABLE):
            page.get_by_label(part, exact=True).check()
            explorer = BirthExplorer(300, hide=[part])
            assert right.text_content() == f"{row[2**i]:.3f}"
            assert bars(page)[0] == (SYMBOLS[explorer.next_symbol().argmax()], f"{explorer.next_symbol().max():.3f}")
            page.get_by_label(part, exact=True).uncheck()
        page.get_by_label("force layer 1").check()
        assert figures(page)["layer 1, previous symbol"] == "1.00"
        assert right.text_content() == f"{row[8]:.3f}"


@pytest.mark.browser
def test_symbols_can_be_typed_and_errors_are_shown(show):
    with show(BirthExplorer(300)) as page:
        open_tab(page, "Next symbol")
        field = page.get_by_label("Symbols")
        fill(field, "blacksmith bla")
        assert page.locator("div.explorer").evaluate("e => e.explorer.model.get('symbols')") == "BLACKSMITHBLA"
        assert field.input_value() == "blacksmith bla"
        assert bars(page)[0][0] == "C"
        before = bars(page)
        fill(field, "blacksmith bla9")
        assert page.get_by_text("and not “9”").is_visible()
        assert bars(page) == before
        fill(field, "b")
        assert page.get_by_text("The model takes 2 to 48 symbols.").is_visible()
        fill(field, "attention att")
        assert page.get_by_text("not such a passage").is_visible()
        page.get_by_role("button", name="Another passage").click()
        assert page.get_by_text("not such a passage").count() == 0
        assert len(field.input_value()) >= 19


@pytest.mark.browser
def test_tapped_row_is_the_query_and_tapped_symbol_is_appended(show):
    with show(BirthExplorer(300), has_touch=True) as page:
        drawing = page.locator(".x-panels svg").first
        box = drawing.bounding_box()
        scale = box["width"] / 320
        page.touchscreen.tap(box["x"] + 100 * scale, box["y"] + (34 + 288 * 9.5 / 19) * scale)
        open_tab(page, "Next symbol")
        query = page.get_by_role("slider", name="Query symbol")
        assert query.get_attribute("aria-valuetext") == "9: I"
        page.get_by_role("button", name="R", exact=True).tap()
        assert page.get_by_label("Symbols").input_value() == "BIRTHDAYBIR"
        assert query.get_attribute("aria-valuetext") == "10: R"


@pytest.mark.browser
@pytest.mark.parametrize("theme", all_but(["light", "dark"], lambda theme: theme == "light"))
def test_every_panel_fits_a_phone(show, theme):
    edge = "e => Math.max(...[...e.querySelectorAll('*')].map((one) => one.getBoundingClientRect().right))"
    for symbols in ("BIRTHDAYBIRTHDAYBIRTHDAY", SYMBOLS[:24] * 2):
        with show(BirthExplorer(150, symbols, 30, guess=5), width=360, theme=theme) as page:
            for tab in page.locator(".x-tabs button:visible").all():
                tab.click()
                assert page.locator("div.explorer").evaluate(edge) <= 352
                assert tab.inner_text() == "Next" or smallest(page) >= 11
                assert not collisions(page)


@pytest.mark.browser
def test_phone_shows_a_figure_beside_every_control(show):
    """The bar of the page takes 56 of the 740 pixels, and the playing slider stays below it."""
    box = "e => { const b = e.getBoundingClientRect(); return [b.top, b.bottom]; }"
    with show(BirthExplorer(), width=360) as page:
        page.set_viewport_size({"width": 360, "height": 740})
        top, bottom = page.locator(".x-controls").evaluate(box)
        room = 740 - 56 - (bottom - top)
        above, below = page.locator(".x-panels svg:visible").first.evaluate(box)
        assert below - above <= room
        for control in page.locator("input:visible, .x-panels button:visible").all():
            highest, lowest = control.evaluate(box)
            assert highest < below or lowest - above <= room


@pytest.mark.browser
def test_card_starts_after_training_and_each_tab_fits_one_screen(show):
    with show(BirthExplorer(), width=736) as page:
        assert page.get_by_role("slider", name=LABEL).get_attribute("aria-valuetext") == "300"
        assert max(opacities(page, 1)) > 0.5
        shown = {"Attention maps": "svg rect.x-solid", "Next symbol": ".b-next", "Training": ".b-training svg"}
        for tab, figure in shown.items():
            open_tab(page, tab)
            for other in shown.values():
                assert page.locator(other).first.is_visible() == (other == figure)
            assert page.locator("div.explorer").bounding_box()["height"] <= 800
