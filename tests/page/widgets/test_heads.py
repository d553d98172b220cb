"""Tests of the heads explorer: script and library agree; what the model has learned; the figure.

The script and Python compute in float64 on both sides, and so does the library here: its weights are the same rounded
numbers. Largest difference measured over these sentences: 4e-15.
"""

import pytest
import torch
import traitlets
from torch.testing import assert_close

from lessons_lib.page.widgets import HeadsExplorer
from lessons_lib.page.widgets.heads import HEADS, story_model
from lessons_lib.training.loop import evaluate
from lessons_lib.training.stories import PRONOUNS, VERBS, VOCABULARY, encode, sample_stories
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

SENTENCES = [
    ("the queen that these dogs follow", []),
    ("two birds", ["1.1"]),
    ("the king near two cats waits . then he sees himself and likes the young women", ["2.4", "1.3"]),
    ("a dog", list(HEADS)),
]


@pytest.fixture(scope="module")
def model():
    config = GPTConfig(len(VOCABULARY), 16, 32, 2, 4, feedforward="none", norm="rms", bias=False)
    gpt = GPT(config).double().eval()
    parameters = {name: torch.tensor(value) for name, value in story_model().items()}
    assert set(parameters) == {name for name, _ in gpt.named_parameters()}
    gpt.load_state_dict(parameters | {"head.weight": parameters["embedding.weight"]})
    return gpt.requires_grad_(False)


def library(model, words, off=()):
    """Weights over (8, n, n) and next-word probabilities over (n, vocabulary), by the library's layers."""
    weights, hooks, kept = [], [], {name: value.clone() for name, value in model.state_dict().items()}
    for layer, block in enumerate(model.blocks):
        attention = block.attention.sublayer
        for head in range(4):
            if f"{layer + 1}.{head + 1}" in off:
                attention.w_o.weight[:, 8 * head : 8 * (head + 1)] = 0.0
        look = lambda module, args, kwargs: weights.append(module.weights(*args, **kwargs)[0])  # noqa: E731
        hooks.append(attention.register_forward_pre_hook(look, with_kwargs=True))
    p = model(encode(words)[None]).softmax(-1)[0]
    for hook in hooks:
        hook.remove()
    model.load_state_dict(kept)
    return torch.cat(weights), p


# --- one model in two languages ---------------------------------------------------------------------------------------


def check_run(javascript, model, words, off):
    ours = javascript("heads.math", "run", words.split(), off)
    weights, p = library(model, words, off)
    assert_close(torch.tensor(ours["weights"], dtype=torch.float64), weights, rtol=0, atol=1e-12)
    assert_close(torch.tensor(ours["next"], dtype=torch.float64), p, rtol=0, atol=1e-12)


@pytest.mark.browser
@pytest.mark.parametrize(("words", "off"), SENTENCES)
def test_script_agrees_with_the_library(javascript, model, words, off):
    check_run(javascript, model, words, off)


@pytest.mark.parametrize(("words", "off"), SENTENCES)
def test_head_model_ablates_heads(model, words, off):
    explorer = HeadsExplorer(words, 1, off)
    assert_close(explorer.weights(), library(model, words, off)[0], rtol=0, atol=1e-12)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("i + 1).map((key)", "i + 2).map((key)"),  # one word of the future
        ("Math.sqrt(to - from)", "Math.sqrt(query.length * 4)"),  # the model's width, not the head's
        ("new Int8Array(bytes", "new Uint8Array(bytes"),  # no sign
        ("+ 1e-5", "+ 1e-2"),
        ("add(row, x[i])", "row"),  # no residual stream
        ("(head + 1) * width)", "width * head + width / 2)"),
        ("run(words, off) {", "run(words, on) { const off = [];"),
    ],
)
def test_wrong_model_is_noticed(altered, model, right, wrong):
    with altered("heads.math", right, wrong) as javascript, pytest.raises((AssertionError, ValueError)):
        check_run(javascript, model, *SENTENCES[2])


@pytest.mark.browser
def test_agreement_counts_each_verb_once(javascript):
    p = torch.rand(len(VOCABULARY), dtype=torch.float64)
    of = [sum(p[VOCABULARY.index(verb)].item() for verb in VERBS if verb.endswith("s") == one) for one in (True, False)]
    assert javascript("heads.math", "agreement", p.tolist()) == pytest.approx(of, abs=1e-12)


@pytest.mark.browser
def test_typed_sentences_are_parsed_as_by_the_library(javascript):
    parsed = javascript("heads.math", "parse", " The queen  waits. She sings.")
    assert parsed == {"words": ["the", "queen", "waits", ".", "she", "sings", "."], "unknown": []}
    assert javascript("heads.math", "parse", "The emperor waits")["unknown"] == ["emperor"]


# --- what it has learned ----------------------------------------------------------------------------------------------


def test_model_knows_the_grammar(model):
    """Its loss on new stories is within 0.02 nats of the grammar's own: 0.009 measured over 32,000 words."""
    batch = sample_stories(torch.Generator().manual_seed(7), batch_size=500, n=16)
    assert 0 < evaluate(model, [batch]) - batch.surprisals.mean().item() < 0.02


def test_verbs_and_pronouns_agree(model):
    """In all 500 rows verbs agree with a subject three or more words back, and pronouns with their antecedent."""
    batch = sample_stories(torch.Generator().manual_seed(7), batch_size=500, n=16)
    p = model(batch.inputs).softmax(-1)
    one = torch.tensor([word in VERBS and word.endswith("s") for word in VOCABULARY])
    several = torch.tensor([word in VERBS and not word.endswith("s") for word in VOCABULARY])
    row, place = ((batch.subjects >= 0) & (torch.arange(16) - batch.subjects >= 3)).nonzero(as_tuple=True)
    before = p[row, place - 1]
    says_one = before[:, one].sum(-1) > before[:, several].sum(-1)
    assert len(row) > 400
    assert torch.equal(says_one, one[batch.inputs[row, place]])
    personal = torch.tensor([VOCABULARY.index(word) for word in sorted(PRONOUNS) if "sel" not in word])
    row, place = torch.isin(batch.inputs[:, 1:], personal).nonzero(as_tuple=True)
    best = personal[p[row, place][:, personal].argmax(-1)]
    assert torch.equal(best, batch.inputs[row, place + 1])


# --- traits -----------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"words": "the emperor"}, "words must be of stories.VOCABULARY.*got 'emperor'"),
        ({"words": "The king"}, "got 'The'"),
        ({"words": "the  king"}, "with single spaces, got ''"),
        ({"words": "king"}, "words must be 2 to 16, got 1"),
        ({"words": "king " * 16 + "king"}, "words must be 2 to 16, got 17"),
        ({"query": 16}, "query.*at most 15"),
        ({"query": -1}, "query.*at least 0"),
        ({"off": ["3.1"]}, "off"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        HeadsExplorer(**arguments)


def test_invalid_words_keep_the_old_ones():
    explorer = HeadsExplorer("the king waits")
    with pytest.raises(traitlets.TraitError):
        explorer.words = "the emperor waits"
    assert explorer.words == "the king waits"


def test_still_contains_the_largest_weight_of_each_head():
    explorer = HeadsExplorer("the king near two cats", 9)
    for head, row in zip(HEADS, explorer.weights()[:, 4], strict=True):
        assert f"{head} to {explorer.words.split()[row.argmax()]}" in explorer.still()


# --- what a reader does -----------------------------------------------------------------------------------------------


def verbs(page):
    """The probabilities of a singular and of a plural verb, with all heads and with the selected ones."""
    return [float(text) for text in page.locator("td").all_inner_texts()]


@pytest.mark.browser
def test_typed_sentence_updates_the_figure(model, show):
    with show(HeadsExplorer()) as page:
        line = page.get_by_label("Sentence")
        line.fill("The kings near a dog")
        line.press("Enter")
        _, p = library(model, "the kings near a dog")
        best = p[-1].argmax().item()
        assert page.get_by_role("button").first.inner_text() == VOCABULARY[best]
        assert page.locator(".x-value").filter(has_text=f"{p[-1, best].item():.2f}").count() >= 1
        assert verbs(page)[0] < 0.05 < 0.8 < verbs(page)[2]
        line.fill("the emperor")
        line.press("Enter")
        assert page.get_by_text("does not know “emperor”").is_visible()
        assert verbs(page)[2] > 0.8  # the figure keeps what it had


@pytest.mark.browser
def test_ablated_head_changes_the_prediction_and_the_next_layer(model, show):
    with show(HeadsExplorer()) as page:
        before = verbs(page)
        assert before[0] == before[1]
        page.get_by_label("1.1", exact=True).uncheck()
        _, p = library(model, "the queen that these dogs follow", ["1.1"])
        one = sum(p[-1, VOCABULARY.index(verb)].item() for verb in VERBS if verb.endswith("s"))
        assert verbs(page)[:2] == pytest.approx([before[0], one], abs=6e-3)
        page.get_by_label("1.1", exact=True).check()
        assert verbs(page) == before


@pytest.mark.browser
def test_buttons_append_words_to_the_story(show):
    with show(HeadsExplorer("the king", 1)) as page:
        for n in range(3, 17):
            page.get_by_role("button").first.press("Enter")
            assert len(page.get_by_label("Sentence").input_value().split(" ")) == n
        assert page.get_by_role("button").first.is_disabled()
        page.get_by_role("slider").press("Home")
        page.get_by_role("button").first.click()  # goes on from the first word: the rest is dropped
        assert len(page.get_by_label("Sentence").input_value().split(" ")) == 2


@pytest.mark.browser
def test_query_word_can_be_replaced(show):
    with show(HeadsExplorer("the king near two cats", 1)) as page:
        page.get_by_label("Replace it by").select_option("kings")
        assert page.get_by_label("Sentence").input_value() == "the kings near two cats"
        page.get_by_role("slider").press("End")
        assert verbs(page)[2] > 0.9
        assert not {word for word in ("NaN", "undefined") if word in page.locator(".x-body").inner_html()}


@pytest.mark.browser
def test_long_sentence_is_fully_visible(show):
    cut = "t => [t.scrollHeight - t.clientHeight, t.scrollWidth - t.clientWidth]"
    with show(HeadsExplorer("the king", 1), width=360) as page:
        line = page.get_by_label("Sentence")
        low = line.bounding_box()["height"]
        line.fill("a tired king near the two small cats that these happy dogs follow waits and he sleeps .")
        assert line.evaluate(cut) == [0, 0]
        line.press("Enter")
        assert page.get_by_text("The model takes 2 to 16 words.").is_visible()
        line.fill("a tired king near the two small cats that these happy dogs follow waits .")
        line.press("Enter")
        assert "\n" not in line.input_value()
        assert line.evaluate(cut) == [0, 0]
        assert line.bounding_box()["height"] > low + 10


@pytest.mark.browser
def test_phone_shows_switches_beside_their_figure(show):
    with show(HeadsExplorer(), width=360) as page:
        switches = page.get_by_role("group", name="heads that are switched on").bounding_box()
        table = page.locator("table").bounding_box()
        controls = page.locator(".x-controls").bounding_box()
        assert 0 < table["y"] + table["height"] - switches["y"] < 740 - 56 - controls["height"]


@pytest.mark.browser
def test_focus_is_kept_at_the_last_word(show):
    with show(HeadsExplorer("the king", 1)) as page:
        for _ in range(14):
            page.get_by_role("button").first.press("Enter")
        assert page.evaluate("document.activeElement.type") == "range"
