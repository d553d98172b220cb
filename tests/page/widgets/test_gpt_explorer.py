"""Tests of the GPT explorer: script and library agree on models and grammar; cost of rounding; the figure.

The script and Python compute in float64 on both sides, the weights being the same whole numbers times the same steps;
angles of rotation are made in float32 by the library. Largest difference of a logit measured over these texts: 2e-7
for stories, 4e-7 for English.
"""

import json
import math
import random
from itertools import islice

import pytest
import torch
import train_gpt
import traitlets
from frames import fill, next_frame
from labels import collisions, smallest
from playwright.sync_api import Error
from thorough import all_but
from torch.testing import assert_close

from lessons_lib.analysis.diagnostics import observe
from lessons_lib.analysis.information import kl_divergence
from lessons_lib.attention.softmax import softmax
from lessons_lib.generation.next_token import top_k_top_p_mask
from lessons_lib.generation.sampling import generate
from lessons_lib.page.widgets import GPTExplorer
from lessons_lib.page.widgets.arithmetic import uniform
from lessons_lib.page.widgets.gpt import CHARACTERS, HEADS, LONGEST, LONGEST_TEXT, SCRIPTS, language_model, model_record
from lessons_lib.page.widgets.trained import script_data
from lessons_lib.training.loop import evaluate
from lessons_lib.training.stories import (
    VOCABULARY,
    decode,
    encode,
    first_error,
    first_word_probs,
    next_word_probs,
    sample_stories,
)

VIEW = 63
NOTHING = "\u2013"  # where the grammar has no number
LOGITS = 1e-5


def texts():
    """Stories of many lengths, some longer than the context; and words in any order."""
    rows = sample_stories(torch.Generator().manual_seed(5), batch_size=24, n=LONGEST).inputs.tolist()
    lengths = [1, 2, 3, 5, 8, 13, 21, 34, 55, 62, 63, 64, 65, 80, 95, 96]
    stories = [[VOCABULARY[word] for word in row[:n]] for row, n in zip(rows, lengths, strict=False)]
    chance = random.Random(3)
    return stories + [chance.choices(VOCABULARY, k=n) for n in (1, 4, 17, 40, 70)]


ENGLISH = (
    "The islands became a territory of the kingdom in 1834. If the council did not hold elections, the assembly would "
    "keep 85% of its seats; see section 3.4. (It's the coup of 1963-64 - once.) Otherwise: the president is Jacques."
)


def stretches():
    """English texts of many lengths, some longer than the context; and characters in any order."""
    chance = random.Random(4)
    return [list(ENGLISH[:n]) for n in (1, 2, 7, 30, 62, 63, 64, 100, 200)] + [chance.choices(CHARACTERS, k=50)]


@pytest.fixture(scope="module")
def model():
    return language_model().double().requires_grad_(False)


def by_script(javascript, name, calls, which="stories"):
    return javascript.of_model(SCRIPTS[which], name, calls)


def numbered(tokens, which):
    return encode(" ".join(tokens)) if which == "stories" else torch.tensor([CHARACTERS.index(one) for one in tokens])


def library(words, off=(), which="stories"):
    """Weights over (8, n, n) and, after each sublayer, logits over (5, vocabulary), by the library's layers."""
    gpt, stream = language_model(off, which).double().requires_grad_(False), []
    parts = [f"blocks.{layer}.{part}" for layer in (0, 1) for part in ("attention", "feedforward")]
    for part in ("embedding", *parts):
        gpt.get_submodule(part).register_forward_hook(lambda _, __, out: stream.append(out))
    with observe(gpt) as seen:
        logits = gpt(numbered(words[-VIEW:], which)[None])
    lens = torch.stack([gpt.head(gpt.norm(x))[0, -1] for x in stream])
    assert_close(lens[-1], logits[0, -1])
    return torch.cat([seen.weights[f"blocks.{layer}.attention.sublayer"][0] for layer in (0, 1)]), lens


# --- the models in two languages --------------------------------------------------------------------------------------


def check_run(javascript, cases, which="stories"):
    for (words, off), ours in zip(cases, by_script(javascript, "run", cases, which), strict=True):
        weights, lens = library(words, off, which)
        assert ours["first"] == max(0, len(words) - VIEW)
        assert_close(torch.tensor(ours["lens"], dtype=torch.float64), lens, rtol=0, atol=LOGITS)
        for head, table in zip(ours["weights"], weights, strict=True):
            for i, row in enumerate(head):
                assert_close(torch.tensor(row, dtype=torch.float64), table[i, : i + 1], rtol=0, atol=LOGITS)


@pytest.mark.browser
def test_script_agrees_with_the_library(javascript):
    check_run(javascript, [(words, []) for words in texts()])


@pytest.mark.browser
@pytest.mark.parametrize("off", [[], ["1.4", "2.1"]], ids=str)
def test_script_agrees_with_the_library_for_english(javascript, off):
    check_run(javascript, [(text, off) for text in stretches()], "english")


@pytest.mark.browser
@pytest.mark.parametrize("off", [["1.1"], ["2.4", "1.3"], list(HEADS)], ids=str)
def test_ablated_heads_output_zero(javascript, off):
    check_run(javascript, [(words, off) for words in texts()[4:14:3]])


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("{ length: i + 1 }", "{ length: Math.min(n, i + 2) }"),  # one word of the future
        ("Math.sqrt(headWidth)", "Math.sqrt(width)"),
        ("new Int8Array(bytes", "new Uint8Array(bytes"),  # no sign
        ("rotate(model, k);", ""),
        ("(-pair / half)", "(-pair / headWidth)"),
        ("0.044715 * x ** 3", "0.044715 * x ** 2"),
        ("x[i] += number", "x[i] = number"),  # no residual stream
        ("n_context - 1", "n_context - 2"),
        ("`${layer + 1}.${head + 1}`", "`${head + 1}.${layer + 1}`"),
    ],
)
def test_wrong_model_is_noticed(altered, right, wrong):
    with altered("gpt.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_run(javascript, [(words, ["1.2"]) for words in texts()[5:14:4]])


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("config.d_model / config.n_heads", "16"),  # as wide as a head of the other model
        ("Math.floor(i / shape[1])", "Math.floor(i / 64)"),
        ('pairs ? "" : " "', '" "'),
    ],
)
def test_wrong_model_of_english_is_noticed(altered, right, wrong):
    with altered("gpt.math", right, wrong) as javascript, pytest.raises((AssertionError, ValueError, Error)):
        check_run(javascript, [(stretches()[4], ["1.2"])], "english")


def check_pairs(javascript):
    counts = train_gpt.pairs().double()
    ours = by_script(javascript, "followers", [(one,) for one in CHARACTERS], "english")
    far = (torch.tensor(ours, dtype=torch.float64) - counts / counts.sum(-1, keepdim=True)).abs().max()
    assert far < 1e-12
    assert sum(ours[CHARACTERS.index(";")]) == pytest.approx(1)
    assert ours[CHARACTERS.index(";")][CHARACTERS.index(" ")] > 0.99


@pytest.mark.browser
def test_bigrams_are_counted_in_the_training_data(javascript):
    check_pairs(javascript)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("vocabulary.indexOf(token) * vocabulary.length", "vocabulary.indexOf(token) * 71"),
        ("count / (all || 1)", "count / pairs.length"),
        ("counts.reduce((a, b) => a + b, 0)", "Math.max(...counts)"),
    ],
)
def test_wrong_bigrams_are_noticed(altered, right, wrong):
    with altered("writing.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_pairs(javascript)


@pytest.mark.parametrize("off", [[], ["1.2", "2.1"]], ids=str)
def test_next_word_agrees_with_the_library(off):
    for words in texts()[3:15:4]:
        explorer = GPTExplorer(" ".join(words), LONGEST - 1, off)
        assert_close(explorer.next_word(), library(words, off)[1][-1].softmax(-1), rtol=0, atol=1e-9)
    for text in stretches()[2:10:3]:
        explorer = GPTExplorer(query=LONGEST_TEXT - 1, off=off, model="english", text="".join(text))
        assert_close(explorer.next_word(), library(text, off, "english")[1][-1].softmax(-1), rtol=0, atol=1e-9)
        assert explorer.grammar().isnan().all()


def test_truncation_agrees_with_the_library_s_window(model):
    """At temperature 0 the explorer selects the tokens that ``generate`` selects with a window of 63 words."""
    words = texts()[14]
    row = generate(model, encode(" ".join(words))[None], 1, temperature=0.0, window=VIEW)
    explorer = GPTExplorer(" ".join(words), LONGEST - 1, temperature=0.0)
    assert explorer.next_word().argmax() == row[0, -1]
    assert explorer.next_word().sum() == explorer.next_word().max() == 1


# --- the grammar in two languages -------------------------------------------------------------------------------------


def prefixes():
    """600 beginnings of stories, with one word replaced at random in some; about half of them are ungrammatical."""
    rows = sample_stories(torch.Generator().manual_seed(8), batch_size=600, n=32).inputs.tolist()
    chance = random.Random(1)
    found = [row[: chance.randint(1, 32)] for row in rows]
    for row in found[::2]:
        row[chance.randrange(len(row))] = chance.randrange(len(VOCABULARY))
    return [[VOCABULARY[word] for word in row] for row in found]


@pytest.fixture(scope="module")
def by_the_grammar():
    found = []
    for words in prefixes():
        tokens = encode(" ".join(words))
        chances, error = next_word_probs(tokens)[-1], first_error(tokens)
        found.append((words, chances.tolist() if error is None else None, error))
    assert 150 < sum(error is not None for _, _, error in found) < 300
    return found


def check_grammar(javascript, by_the_grammar):
    words = [words for words, _, _ in by_the_grammar]
    ours = javascript.each("stories.math", "nextWord", [(text, list(VOCABULARY)) for text in words])
    assert ours == [chances for _, chances, _ in by_the_grammar]  # to the last bit
    assert javascript.each("stories.math", "firstError", [(text,) for text in words]) == [e for *_, e in by_the_grammar]
    assert javascript("stories.math", "nextWord", [], list(VOCABULARY)) == first_word_probs().tolist()


@pytest.mark.browser
def test_grammar_agrees_with_stories(javascript, by_the_grammar):
    check_grammar(javascript, by_the_grammar)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('["two", [3]]', '["two", [0]]'),
        ("[0.3, oneOf(ADJECTIVES, noun)]", "[0.31, oneOf(ADJECTIVES, noun)]"),
        ("kind === 3 ? verbs", "kind === 2 ? verbs"),
        ("`next sentence ${kind}`]);", "`next sentence 0`]);"),
        ('(["then"], `pronoun ${kind}`', '(["then"], `predicate ${kind}`'),
    ],
)
def test_wrong_grammar_is_noticed(altered, by_the_grammar, right, wrong):
    with altered("stories.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_grammar(javascript, by_the_grammar)


# --- drawing words ----------------------------------------------------------------------------------------------------

HOW = [
    {"temperature": 1.0, "topK": 72, "topP": 1.0},
    {"temperature": 0.7, "topK": 72, "topP": 0.9},
    {"temperature": 1.6, "topK": 5, "topP": 1.0},
    {"temperature": 1.3, "topK": 20, "topP": 0.5},
    {"temperature": 0.0, "topK": 72, "topP": 1.0},
    {"temperature": 0.0, "topK": 3, "topP": 0.05},
    {"temperature": 2.0, "topK": 1, "topP": 1.0},
    *({"temperature": 1.0, "topK": 72, "topP": p / 20} for p in (1, 7, 16, 19)),
]


def drawn(logits, temperature, topK, topP):
    """The words that may be drawn and their probabilities, by the library."""
    kept = top_k_top_p_mask(logits, temperature=temperature or 1.0, top_k=topK, top_p=topP)
    greedy = torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
    return kept, softmax(logits, kept, temperature=temperature) if temperature else greedy


IN_TWENTIETHS = [[6, 2, 2, 10], [7, 7, 6], [3, 4, 9, 1, 3], [1] * 20, [2, 1, 1, 5, 5, 6]]


@pytest.mark.browser
@pytest.mark.parametrize("how", HOW, ids=str)
def test_next_token_probs_agree_with_the_library(javascript, how):
    generator = torch.Generator().manual_seed(2)
    logits = [3 * torch.randn(72, generator=generator, dtype=torch.float64) for _ in range(20)]
    # Sums of these probabilities equal topP but for rounding.
    logits += [(torch.tensor([*row, *[0] * (72 - len(row))]).double() / 20).log() for row in IN_TWENTIETHS]
    logits += [torch.zeros(72, dtype=torch.float64), torch.randint(3, (72,), generator=generator).double()]
    for z, ours in zip(
        logits, javascript.each("writing.math", "nextTokenProbs", [(z.tolist(), how) for z in logits]), strict=True
    ):
        kept, p = drawn(z, **how)
        assert ours["kept"] == kept.tolist()
        assert_close(torch.tensor(ours["p"], dtype=torch.float64), p, rtol=0, atol=1e-12)


@pytest.mark.browser
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf], ids=str)
def test_next_token_probs_invalid_logits_raise(javascript, wrong):
    logits = [wrong if i == 5 or wrong == -math.inf else 0.0 for i in range(72)]
    for how in HOW:
        with pytest.raises(ValueError, match="logits must be finite or -inf"):
            drawn(torch.tensor(logits), **how)
        with pytest.raises(Error, match="logits must be finite or -Infinity"):
            javascript("writing.math", "nextTokenProbs", logits, how)


@pytest.mark.browser
@pytest.mark.parametrize("how", [HOW[0], HOW[3], HOW[4]], ids=str)
def test_sampling_depends_on_seed_and_position_only(javascript, how, model):
    """Word by word or a sentence at once gives the same words, because each depends on seed and position only."""
    for seed, start in ((0, ["the"]), (7, texts()[9]), (2**31 - 1, ["two", "kings"])):
        (at_once,) = by_script(javascript, "write", [(start, [], how, seed, ["."])])
        words = list(start)
        while len(words) < len(at_once):
            _, p = drawn(model(encode(" ".join(words[-VIEW:]))[None])[0, -1], **how)
            chance = next(islice(uniform(seed), len(words), None))
            words.append(VOCABULARY[int((p.cumsum(0) <= chance).sum())])
            assert by_script(javascript, "write", [(words[:-1], [], how, seed, VOCABULARY)]) == [words]
        assert at_once == words
        assert words[-1] == "." or len(words) == LONGEST
        assert "." not in words[len(start) : -1]


@pytest.mark.browser
def test_english_word_ends_with_a_space_or_a_full_stop(javascript):
    how = {"temperature": 0.8, "topK": 40, "topP": 0.95}
    start = list("The val")
    (word,) = by_script(javascript, "write", [(start, [], how, 5, [" ", "."])], "english")
    assert word[-1] in " ."
    assert not {" ", "."} & set(word[len(start) : -1])
    tokens = start
    while len(tokens) < len(word):
        _, p = drawn(library(tokens, which="english")[1][-1], **how)
        chance = next(islice(uniform(5), len(tokens), None))
        tokens = [*tokens, CHARACTERS[int((p.cumsum(0) <= chance).sum())]]
    assert tokens == word
    full = stretches()[8][:120] * 2
    assert len(by_script(javascript, "write", [(full[:-1], [], how, 5, [])], "english")[0]) == LONGEST_TEXT


@pytest.mark.browser
def test_typed_text_is_parsed_as_by_the_library(javascript):
    typed = " The queen  waits. She\nsings."
    words, none = by_script(javascript, "parse", [(typed,), ("  ",)])
    assert decode(encode(" ".join(words))) == "The queen waits. She sings."
    assert none == []
    characters, known = by_script(javascript, "parse", [("It\u2019s\nA  b?",), (CHARACTERS,)], "english")
    assert characters == list("It's A  b?")
    assert known == list(CHARACTERS)


@pytest.mark.browser
def test_arcs_are_the_weights_on_paths_to_the_last_token(javascript):
    words, off = texts()[6], ["2.2"]
    weights, _ = library(words)
    arcs = javascript(
        "arcs.math", "arcs", [[row[: i + 1] for i, row in enumerate(head)] for head in weights.tolist()], off
    )
    assert {arc["head"][0] for arc in arcs} == {"1", "2"}
    last = len(words) - 1
    for arc in arcs:
        assert arc["weight"] == weights[HEADS.index(arc["head"]), arc["to"], arc["from"]].item() >= 0.1
        above = max(weights[i, last, arc["to"]].item() for i in (4, 6, 7))
        assert arc["share"] == (1 if arc["to"] == last else above)
        assert arc["head"] not in off
        assert arc["head"][0] == "1" or arc["to"] == last
    own = {(arc["head"], arc["from"]) for arc in arcs if arc["to"] == last}
    wanted = {
        (head, j) for head, table in zip(HEADS, weights, strict=True) for j in range(last + 1) if table[last, j] >= 0.1
    }
    assert own == {pair for pair in wanted if pair[0] not in off}


# --- how it was made, and what rounding costs -------------------------------------------------------------------------


def test_record_describes_the_model(model):
    record, batch = model_record(), train_gpt.held_out()
    assert record["command"] == f"python tools/train_gpt.py --seed {record['seed']} --steps {record['steps']}"
    assert model.config == train_gpt.CONFIGS["stories"]
    assert sum(p.numel() for p in model.parameters()) == model.config.n_parameters() == 104_704
    assert record["floor"] == pytest.approx(batch.surprisals.mean().item(), abs=1e-6)
    assert record["loss_rounded"] == pytest.approx(evaluate(language_model(), [batch]), abs=2e-5)
    assert 0 < record["loss"] - record["floor"] < 0.01


def test_record_describes_the_english_model():
    record, english = model_record("english"), language_model(name="english")
    assert record["command"] == f"python tools/train_gpt.py english --seed {record['seed']} --steps {record['steps']}"
    assert record["source"] == "The World Factbook, Central Intelligence Agency, public domain"
    assert english.config == train_gpt.CONFIGS["english"]
    assert sum(p.numel() for p in english.parameters()) == english.config.n_parameters() == 161_600
    assert record["held_out"]["text"] == train_gpt.fingerprint()
    assert record["loss_rounded"] == pytest.approx(evaluate(english, [train_gpt.held_out_english()]), abs=2e-5)
    assert record["loss"] < 1.5


def test_english_training_data_has_the_characters_of_the_vocabulary():
    learned, kept = train_gpt.english()
    text = "".join(CHARACTERS[token] for token in torch.cat([learned, kept]).tolist())
    assert len(learned) == len(text) * 9 // 10 > 200_000
    assert text[0].isupper()
    assert text.endswith(".")
    assert set(text) == set(CHARACTERS)


def test_rounding_changes_the_loss_little():
    """A thousandth of the distance to the grammar: 9e-6 nats of divergence, 5e-5 of loss."""
    record = model_record()
    assert record["kl_of_rounding"] < 2e-5
    assert abs(record["loss_rounded"] - record["loss"]) < 1e-4
    english = model_record("english")
    assert english["kl_of_rounding"] < 2.5e-4
    assert abs(english["loss_rounded"] - english["loss"]) < 1e-3
    assert f"{english['kl_of_rounding']:.0e}".replace("e-0", "e-") in GPTExplorer.__doc__


@pytest.mark.thorough
@pytest.mark.parametrize("which", SCRIPTS)
def test_model_is_reproducible_and_rounded_to_half_a_step(monkeypatch, tmp_path, which):
    """Run the whole command with five steps."""
    command = ["train_gpt.py", which, "--steps", "5", "--seed", "4", "--out", str(tmp_path / "model.js")]
    monkeypatch.setattr("sys.argv", command)
    threads = torch.get_num_threads()
    train_gpt.main()
    torch.set_num_threads(threads)
    head, text = (tmp_path / "model.js").read_text().split("export const MODEL = ")
    made = json.loads(text.removesuffix(";\n"))
    assert head.startswith("/** ")
    assert made["record"]["steps"] == 5
    assert made["record"].get("floor", 2) < made["record"]["loss"] < 4.3
    assert made["record"]["kl_of_rounding"] < 1e-5
    assert made["vocabulary"] == (CHARACTERS if which == "english" else " ".join(VOCABULARY))
    assert made.keys() == script_data(SCRIPTS[which]).keys()
    assert made["record"].keys() == script_data(SCRIPTS[which])["record"].keys()


def test_a_matrix_is_rounded_to_half_a_step_of_its_row():
    rows = torch.tensor([[1e-3], [1.0], [9.0], [0.0], [2.0]])
    matrix = (torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * rows).float()
    near = train_gpt.unpack_parameter(train_gpt.pack_parameter(matrix))
    step = matrix.abs().amax(-1, keepdim=True) / 127
    assert ((near - matrix).abs() <= 0.5001 * step).all()
    vector = torch.randn(11, dtype=torch.float32)
    assert torch.equal(train_gpt.unpack_parameter(train_gpt.pack_parameter(vector)), vector)


def test_truncation_does_not_increase_the_loss(model):
    """Of 96 words the last 63 tell as much about the next: 0.008 nats from the grammar, as it is within the view."""
    rows = sample_stories(torch.Generator().manual_seed(22), batch_size=64, n=LONGEST).inputs
    exact = next_word_probs(rows)
    far = [
        kl_divergence(exact[:, n - 1], model(rows[:, max(0, n - VIEW) : n])[:, -1].softmax(-1)).mean()
        for n in (41, 63, 81, 96)
    ]
    assert max(far) < 0.012


def test_model_has_learned_the_grammar(model):
    """On new stories ungrammatical words have probability 0.6 %; the KL divergence from the grammar is 0.008 nats."""
    batch = sample_stories(torch.Generator().manual_seed(21), batch_size=40, n=63)
    p, exact = model(batch.inputs).softmax(-1), next_word_probs(batch.inputs)
    assert (p * (exact == 0)).sum(-1).mean() < 0.01
    assert 0 < kl_divergence(exact, p).mean() < 0.012


# --- traits -----------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"words": "the emperor"}, "words must be of stories.VOCABULARY.*got 'emperor'"),
        ({"words": "The king"}, "got 'The'"),
        ({"words": ""}, "with single spaces, got ''"),
        ({"words": "the  king"}, "with single spaces, got ''"),
        ({"words": "king " * 96 + "king"}, "words must be 1 to 96, got 97"),
        ({"query": 240}, "query.*at most 239"),
        ({"query": -1}, "query.*at least 0"),
        ({"off": ["3.1"]}, "off"),
        ({"temperature": 2.5}, "temperature.*at most 2"),
        ({"temperature": -0.1}, "temperature.*at least 0"),
        ({"top_k": 0}, "top_k.*at least 1"),
        ({"top_k": 73}, "top_k.*at most 72"),
        ({"top_p": 0.0}, "top_p.*at least 0.05"),
        ({"seed": -1}, "seed.*at least 0"),
        ({"model": "french"}, "model"),
        ({"text": ""}, "text must be 1 to 240 characters, got 0"),
        ({"text": "a" * 241}, "text must be 1 to 240 characters, got 241"),
        ({"text": "What?"}, r"text must be letters, digits, spaces and %'\(\),-.:;, got '\?'"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        GPTExplorer(**arguments)


@pytest.mark.rejects
@pytest.mark.parametrize("made", [lambda: language_model(name="french"), lambda: model_record("french")])
def test_language_model_unknown_name_raises(made):
    with pytest.raises(ValueError, match="name must be one of stories, english, got 'french'"):
        made()


def test_invalid_words_keep_the_old_ones():
    explorer = GPTExplorer("the king waits")
    with pytest.raises(traitlets.TraitError):
        explorer.words = "the emperor waits"
    assert explorer.words == "the king waits"


def test_still_contains_the_predictions_of_model_and_grammar():
    explorer = GPTExplorer("the king", 1)
    for word, p in zip(VOCABULARY, explorer.next_word(), strict=True):
        if p > 0.12:
            assert f"{word} {p:.2f} ({explorer.grammar()[VOCABULARY.index(word)]:.2f})" in explorer.still()
    assert GPTExplorer("king the", 1).grammar().isnan().all()
    assert "nan" not in GPTExplorer("king the", 1).still()
    english = GPTExplorer(model="english")
    p = english.next_word()
    assert f"after The go the model expects: {CHARACTERS[p.argmax()]} {p.max():.2f}, " in english.still()
    assert "space 0." in GPTExplorer(query=9, model="english", text="The value").still()


# --- what a reader does -----------------------------------------------------------------------------------------------


def story(page):
    return page.get_by_label("Story")


def bars(page):
    """Words in the order of the page, with the model's probability and the grammar's."""
    grid = page.locator(".g-next")
    values = grid.locator(".x-value").all_inner_texts()
    return list(zip(grid.locator("button").all_inner_texts(), values[::2], values[1::2], strict=True))


def headline(page):
    return page.locator(".x-headline > *").all_inner_texts()


def look_inside(page):
    page.get_by_role("button", name="Look inside").click()


def figures(page):
    return page.locator(".x-numbers td").all_inner_texts()


@pytest.mark.browser
def test_bars_agree_with_model_and_grammar(show):
    with show(GPTExplorer(temperature=0.7)) as page:
        explorer = GPTExplorer(temperature=0.7)
        p, exact = explorer.next_word(), explorer.grammar()
        order = p.argsort(descending=True, stable=True)[:10].tolist()
        assert bars(page) == [(VOCABULARY[i], f"{p[i]:.3f}", f"{exact[i]:.3f}") for i in order]
        lengths = page.locator(".g-next .x-bar").evaluate_all("all => all.map((e) => parseFloat(e.style.width))")
        wanted = [100 * q[i].sqrt().item() for i in order for q in (p, exact)]
        assert lengths == pytest.approx(wanted, abs=1e-3)


@pytest.mark.browser
def test_typed_story_updates_the_figure_and_unknown_words_are_rejected(show):
    with show(GPTExplorer()) as page:
        fill(story(page), "The kings near a dog")
        assert bars(page)[0][0] == VOCABULARY[GPTExplorer("the kings near a dog").next_word().argmax()]
        before = bars(page)
        fill(story(page), "The kings near a dog emperor")
        assert page.get_by_text("does not know “emperor”").is_visible()
        assert page.locator(".g-away").all_inner_texts() == ["emperor"]
        assert bars(page) == before
        fill(story(page), "The kings near a dog s")
        assert page.get_by_text("Known words that begin so: small, she").is_visible()
        story(page).press("Enter")
        assert page.get_by_text("does not know “s”").is_visible()
        fill(story(page), "")
        assert page.get_by_text("The model takes 1 to 96 words.").is_visible()
        assert bars(page) == before
        page.get_by_role("slider", name="Query word").press("ArrowLeft")
        assert story(page).input_value() == "the kings near a dog"


@pytest.mark.browser
def test_typed_text_is_not_reformatted(show):
    with show(GPTExplorer("the king", 1)) as page:
        story(page).focus()
        page.keyboard.press("End")
        page.keyboard.type(" near a Dog waits.")
        next_frame(page)
        assert story(page).input_value() == "the king near a Dog waits."
        assert (
            page.locator("div.explorer").evaluate("e => e.explorer.model.get('words')") == "the king near a dog waits ."
        )
        for _ in range(7):
            page.keyboard.press("ArrowLeft")
        page.keyboard.type("s")  # in the middle of the line
        next_frame(page)
        assert story(page).input_value() == "the king near a Dogs waits."
        assert page.get_by_role("slider").first.get_attribute("aria-valuetext") == "."


@pytest.mark.browser
@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("the queen sings . he sleeps", "he"),
        ("the queen that these dogs follow sing .", "sing"),
        ("king the", "king"),
        ("the queen that these dogs follow", None),
    ],
)
def test_first_ungrammatical_word_is_underlined(show, words, wrong):
    with show(GPTExplorer(words, LONGEST - 1)) as page:
        assert page.locator(".g-wrong").all_inner_texts() == ([wrong] if wrong else [])
        assert page.get_by_text("is the first word that the grammar could not have written.").count() == bool(wrong)
        assert [exact for *_, exact in bars(page)].count(NOTHING) == (10 if wrong else 0)
        assert figures(page).count(NOTHING) == (3 if wrong else 0)
        if wrong:
            line = "e => getComputedStyle(e).textDecorationLine"
            assert page.locator(".g-wrong").evaluate(line) == "underline"
            page.get_by_role("slider", name="Query word").press("Home")
            assert (figures(page).count(NOTHING) == 0) == (words != "king the")


@pytest.mark.browser
def test_marks_are_aligned_with_their_words(show):
    """The overlay breaks its lines where the field does."""
    long = (
        "a tired king near the two small cats that these happy dogs follow waits . he sleeps and loves the young women"
    )
    boxes = "([a, b]) => [a, b].map((e) => [e.scrollHeight, e.clientWidth, getComputedStyle(e).font])"
    for width in (360, 900):
        with show(GPTExplorer(long, 30), width=width) as page:
            both = [page.locator(place).element_handle() for place in ("textarea", ".g-marks")]
            field, glass = page.evaluate(boxes, both)
            assert field == glass
            assert page.locator(".g-marks").inner_text().strip() == story(page).input_value()


@pytest.mark.browser
def test_sampling_sliders_exclude_words_and_show_the_divergence(show):
    with show(GPTExplorer("the queen", 1)) as page:
        left, impossible, lost, apart = figures(page)
        assert (left, lost) == ("72", "0.0000")
        assert float(impossible) > 0
        assert page.locator(".g-cut").count() == 0
        page.get_by_role("slider", name="top-k").fill("3")
        left, impossible, lost, apart = figures(page)
        assert (left, apart) == ("3", "∞")
        explorer = GPTExplorer("the queen", 1, top_k=3)
        cut = explorer.grammar()[explorer.next_word() == 0].sum()
        assert float(lost) == pytest.approx(cut.item(), abs=6e-5)
        assert page.locator(".g-chips .g-cut").count() == 69
        assert page.locator(".g-next .g-cut").count() == 7
        assert "line-through" in page.locator(".g-next .g-cut").first.evaluate(
            "e => getComputedStyle(e).textDecorationLine"
        )
        page.get_by_text("All words", exact=True).click()
        assert page.get_by_role("button", name="sing, cut, impossible", exact=True).count() >= 1
        page.get_by_role("button", name="Reset").click()
        page.get_by_role("slider", name="Temperature").fill("0")
        assert bars(page)[0][1:2] == ("1.000",)


@pytest.mark.browser
def test_generated_words_and_sentences_depend_on_the_seed(show):
    with show(GPTExplorer("the", 0, seed=3)) as page:
        page.get_by_role("button", name="Write a sentence").press("Enter")
        first = story(page).input_value()
        assert first.endswith(".")
        assert first_error(encode(first)) is None
        page.get_by_role("button", name="Once more").press("Enter")
        second = story(page).input_value()
        assert second != first
        assert second.startswith("the ")
        page.get_by_role("button", name="Reset").click()
        assert story(page).input_value() == "the"
        for _ in first.split()[1:]:
            page.get_by_role("button", name="Write a word").press("Enter")
        assert story(page).input_value() == first
        page.get_by_role("button", name="Write a sentence").press("Enter")
        assert story(page).input_value().startswith(f"{first} ")
        assert story(page).input_value().count(".") == 2


@pytest.mark.browser
@pytest.mark.parametrize("where", [".g-next", ".g-chips"])
def test_tapped_word_is_appended_after_the_query(show, where):
    with show(GPTExplorer("the king near two cats", 1), has_touch=True) as page:
        page.get_by_text("All words", exact=True).tap()
        word = page.locator(where).get_by_role("button", name="that", exact=True)
        word.tap()
        assert story(page).input_value() == "the king that"
        assert page.get_by_role("slider").first.get_attribute("aria-valuetext") == "that"


@pytest.mark.browser
def test_ablated_head_turns_he_into_they(show):
    words = "the tired king near two cats waits . then he sees himself and likes the young women ."
    with show(GPTExplorer(words, LONGEST - 1)) as page:
        assert bars(page)[0][0] == "he"
        look_inside(page)
        page.get_by_label("1.2", exact=True).uncheck()
        explorer = GPTExplorer(words, LONGEST - 1, ["1.2"])
        assert headline(page) == [
            f"{explorer.next_word().max():.2f}",
            f"for “they”; the grammar: {explorer.grammar()[VOCABULARY.index('they')]:.2f}",
        ]
        page.get_by_role("button", name="Write", exact=True).click()
        assert bars(page)[0][0] == "they" == VOCABULARY[explorer.next_word().argmax()]
        assert bars(page)[0][1] == f"{explorer.next_word().max():.3f}"
        look_inside(page)
        page.get_by_label("1.2", exact=True).check()
        assert headline(page)[1].startswith("for “he”")


@pytest.mark.browser
def test_logit_lens_reads_the_stream_after_each_sublayer(show):
    with show(GPTExplorer()) as page:
        _, lens = library(GPTExplorer().words.split())
        possible = GPTExplorer().grammar() > 0
        look_inside(page)
        rows = page.locator(".g-lens tr").all_inner_texts()[1:]
        assert len(rows) == len(lens) == 5
        for row, logits in zip(rows, lens, strict=True):
            p = logits.softmax(-1)
            best = ", ".join(VOCABULARY[i] for i in p.argsort(descending=True)[:3].tolist())
            assert row.split("\t")[1:] == [best, f"{p[possible].sum():.4f}"]


@pytest.mark.browser
def test_truncated_story_is_announced_and_shown(show):
    words = " ".join(texts()[13])
    with show(GPTExplorer(words, LONGEST - 1)) as page:
        assert page.get_by_text("The model reads only the last 63 words").is_visible()
        assert page.locator(".g-away").count() == 80 - 63
        p = GPTExplorer(words, LONGEST - 1).next_word()
        assert bars(page)[0][0] == VOCABULARY[p.argmax()]
        assert page.get_by_text("… earlier").count() == 1


@pytest.mark.browser
def test_generation_stops_at_the_longest_text_and_focus_is_kept(show):
    with show(GPTExplorer(" ".join(texts()[14]), LONGEST - 1)) as page:
        page.get_by_role("button", name="Write a word").press("Enter")
        assert len(story(page).input_value().split()) == 96
        assert page.get_by_role("button", name="Write a word").is_disabled()
        assert page.get_by_role("button", name="Write a sentence").is_disabled()
        assert page.locator(".g-next button:enabled, .g-chips button:enabled").count() == 0
        assert page.evaluate("document.activeElement.type") == "range"
        assert page.locator(".x-body").inner_html().count("NaN") == 0


@pytest.mark.browser
@pytest.mark.parametrize("theme", all_but(["light", "dark"], lambda theme: theme == "light"))
def test_every_panel_fits_a_phone(show, theme):
    longest = "the happy horses that these women follow like themselves and know the tired queens ."
    edge = "e => Math.max(...[...e.querySelectorAll('*')].map((one) => one.getBoundingClientRect().right))"
    with show(GPTExplorer(longest, 8), width=360, theme=theme) as page:
        for tab in page.locator(".x-tabs button:visible").all():
            tab.click()
            assert page.locator("div.explorer").evaluate(edge) <= 352
            assert smallest(page) >= 11 or tab.inner_text() != "Heads"
            assert not collisions(page)


@pytest.mark.browser
def test_phone_shows_one_panel_and_words_accept_taps(show):
    with show(GPTExplorer(), width=360, has_touch=True) as page:
        assert page.locator(".g-next").is_visible()
        assert not page.locator(".g-chips").is_visible()
        page.get_by_text("All words", exact=True).tap()
        page.get_by_role("button", name="smiles", exact=True).last.tap()
        assert story(page).input_value().endswith("follow smiles")
        page.get_by_role("button", name="Heads").tap()
        assert not page.locator(".g-next").is_visible()
        page.get_by_label("2.1", exact=True).tap()
        assert page.locator("div.explorer").evaluate("e => e.explorer.model.get('off')") == ["2.1"]


@pytest.mark.browser
def test_a_tab_fits_one_screen_and_hides_the_other(show):
    story = "the tired king near two cats waits . then he sees himself and likes the young women ."
    for explorer in (GPTExplorer(), GPTExplorer(story, 16)):
        with show(explorer, width=736) as page:
            card = page.locator("div.explorer")
            for tab, shown, hidden in (("Look inside", ".g-lens", ".g-next"), ("Write", ".g-next", ".g-lens")):
                page.get_by_role("button", name=tab, exact=True).click()
                assert page.locator(shown).is_visible()
                assert not page.locator(hidden).is_visible()
                assert card.bounding_box()["height"] <= 800
            assert page.locator("button:visible, input:visible, textarea:visible").count() <= 24  # none of all 72 words


# --- the tabs ---------------------------------------------------------------------------------------------------------

MODEL = "e => e.explorer.model.get('model')"


def english(page):
    return page.get_by_role("textbox", name="Text")


@pytest.mark.browser
def test_tabs_open_by_mouse_and_keyboard_and_on_reset(show):
    with show(GPTExplorer()) as page:
        tabs, card = page.get_by_role("tab"), page.locator("div.explorer")
        assert tabs.all_inner_texts() == ["Stories", "English"]
        page.get_by_role("tab", name="English").click()
        english(page).wait_for()
        assert card.evaluate(MODEL) == "english"
        assert page.get_by_role("tabpanel", name="English").is_visible()
        assert page.get_by_role("tab", selected=True).all_inner_texts() == ["English"]
        assert story(page).count() == 0
        wanted = [("ArrowRight", "Stories"), ("ArrowLeft", "English"), ("Home", "Stories"), ("End", "English")]
        for key, name in wanted:
            page.keyboard.press(key)
            assert page.evaluate("document.activeElement.textContent") == name
            assert page.get_by_role("tab", selected=True).all_inner_texts() == [name]
        assert tabs.evaluate_all("all => all.map((tab) => tab.tabIndex)") == [-1, 0]
        page.get_by_role("button", name="Reset").click()
        assert card.evaluate(MODEL) == "stories"
        assert story(page).input_value() == GPTExplorer().words


@pytest.mark.browser
@pytest.mark.parametrize("theme", all_but(["light", "dark"], lambda theme: theme == "light"))
def test_english_tab_opens_by_touch_and_fits_a_phone(show, theme):
    edge = "e => Math.max(...[...e.querySelectorAll('*')].map((one) => one.getBoundingClientRect().right))"
    with show(GPTExplorer(), width=360, theme=theme, has_touch=True) as page:
        page.get_by_role("tab", name="English").tap()
        fill(english(page), ENGLISH[:120])
        for tab in page.locator(".x-tabs button:visible").all():
            tab.tap()
            assert page.locator("div.explorer").evaluate(edge) <= 352
            assert not collisions(page)
        page.get_by_role("button", name="Next character").tap()
        page.get_by_text("All characters", exact=True).tap()
        page.get_by_role("button", name="space", exact=True).last.tap()
        assert english(page).input_value() == f"{ENGLISH[:120]} "


@pytest.mark.browser
def test_english_shows_bars_of_model_and_bigrams_and_no_grammar(show):
    explorer = GPTExplorer(query=30, off=["2.3"], temperature=0.8, top_k=20, model="english", text=ENGLISH[:31])
    with show(explorer) as page:
        english(page).wait_for()
        p, _ = explorer.next_word(), explorer.still()
        pairs = train_gpt.pairs().double()[CHARACTERS.index(ENGLISH[30])]
        order = p.argsort(descending=True, stable=True)[:10].tolist()
        ours = bars(page)
        assert [bar[:2] for bar in ours] == [(CHARACTERS[i].replace(" ", "\u2423"), f"{p[i]:.3f}") for i in order]
        assert [beside for *_, beside in ours] == [f"{pairs[i] / pairs.sum():.3f}" for i in order]
        assert page.get_by_text("probabilities of English characters are unknown").is_visible()
        assert figures(page) == ["20"]
        assert page.locator(".g-chips .g-cut").count() == 52
        assert page.locator(".g-wrong, .g-impossible").count() == 0
        assert headline(page)[1].endswith(f"; pairs: {pairs[order[0]] / pairs.sum():.2f}")
        look_inside(page)
        _, lens = library(list(ENGLISH[:31]), ["2.3"], "english")
        for row, logits in zip(page.locator(".g-lens tr").all_inner_texts()[1:], lens, strict=True):
            assert row.split("\t")[2] == f"{logits.softmax(-1).max():.4f}"


@pytest.mark.browser
def test_english_text_can_be_typed_and_generated(show):
    with show(GPTExplorer(model="english", seed=1, temperature=0.7)) as page:
        fill(english(page), "What?")
        assert page.get_by_text("does not know “?”; its 72 characters are under “All characters”").is_visible()
        assert page.locator(".g-away").all_inner_texts() == ["?"]
        fill(english(page), "It\u2019s  a Method")
        assert page.locator("div.explorer").evaluate("e => e.explorer.model.get('text')") == "It's  a Method"
        assert page.get_by_role("slider").first.get_attribute("aria-valuetext") == "d"
        fill(english(page), ENGLISH[:80])
        assert page.get_by_text("The model reads only the last 63 characters").is_visible()
        assert page.locator(".g-away").count() == 80 - 63
        fill(english(page), "The val")
        page.get_by_role("button", name="Write a word").press("Enter")
        page.wait_for_function("[' ', '.'].includes(document.querySelector('textarea').value.at(-1))")
        first = english(page).input_value()
        assert first.startswith("The val")
        page.get_by_role("button", name="Once more").press("Enter")
        page.wait_for_function("(old) => document.querySelector('textarea').value !== old", arg=first)
        page.get_by_role("tab", name="Stories").click()
        assert story(page).input_value() == GPTExplorer().words
        page.get_by_role("button", name="Write a sentence").press("Enter")
        assert first_error(encode(story(page).input_value())) is None
