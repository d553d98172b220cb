"""Tests of streams: steps and text equal those of generate, and no character or word piece is divided."""

import pytest
import torch
from test_sampling import NEW, B, N, model_and_prompts, seeded
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TextIteratorStreamer

from lessons_lib.generation import streaming
from lessons_lib.generation.sampling import generate
from lessons_lib.generation.streaming import INCOMPLETE, IncrementalDecoder, stream_generate
from lessons_lib.transformer.gpt import GPT

TEXT = "naïve café 你好 🙂👩‍🚀 x\ufffdy\n  two  spaces"


def tokenizer_of(kind: str) -> Tokenizer:
    """Return a small tokenizer with the decoder of GPT-2, Llama (with and without bytes) or BERT."""
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
    if kind == "word pieces":
        words = ["un", "##able", "##s", "do", "the", "[UNK]"]
        tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
        tokenizer.decoder = decoders.WordPiece(cleanup=False)
        return tokenizer
    words = ["▁a", "▁b", "c", "▁", "é", *(f"<0x{byte:02X}>" for byte in "é🙂".encode())]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True))
    first = [decoders.ByteFallback()] if kind == "bytes beside pieces" else []
    tokenizer.decoder = decoders.Sequence([*first, decoders.Metaspace()]) if first else decoders.Metaspace()
    return tokenizer


KINDS = ("byte-level", "word pieces", "pieces", "bytes beside pieces")


def added(decoder: IncrementalDecoder, tokens: list[int]) -> list[str]:
    return [*(decoder.add(token) for token in tokens), decoder.finish()]


# --- incremental decoding -------------------------------------------------------------------------------------------


def test_no_part_divides_a_character():
    """Every part is made of whole characters, and comes as soon as its last byte is there."""
    tokenizer = tokenizer_of("byte-level")
    parts = added(IncrementalDecoder(tokenizer), tokenizer.encode(TEXT).ids)
    assert "".join(parts) == TEXT
    whole = TEXT.replace(INCOMPLETE, "")
    assert [part for part in parts if part and INCOMPLETE not in part][: len("naïve")] == list("naïve")
    assert set("".join(part for part in parts if INCOMPLETE not in part)) <= set(whole)


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("n_before", [0, 1, 4])
def test_joined_parts_continue_the_text_before(kind, n_before):
    """For random tokens, which for bytes are mostly no text."""
    tokenizer = tokenizer_of(kind)
    for _ in range(60):
        *tokens, before_end = torch.randint(tokenizer.get_vocab_size(), (13,)).tolist()
        before = tokens[:n_before] if kind != "byte-level" else tokenizer.encode("ab é").ids[:n_before]
        tokens = [*tokens[n_before:], before_end]
        joined = "".join(added(IncrementalDecoder(tokenizer, before), tokens))
        start = tokenizer.decode(before).rstrip(INCOMPLETE) if before else ""
        assert start + joined == tokenizer.decode(before + tokens)


def test_bytes_beside_pieces_are_held_back_until_a_character_is_complete():
    tokenizer = tokenizer_of("bytes beside pieces")
    tokens = [0, 5, 6, 2, 7, 8, 9, 10, 1]
    assert added(IncrementalDecoder(tokenizer), tokens) == ["a", "", "é", "c", "", "", "", "🙂", " b", ""]
    assert added(IncrementalDecoder(tokenizer, [0]), [5, 1, 7]) == ["", f"{INCOMPLETE} b", "", INCOMPLETE]


def test_character_that_begins_in_the_prompt_is_completed():
    tokenizer = tokenizer_of("byte-level")
    first, second = tokenizer.encode("é").ids
    assert added(IncrementalDecoder(tokenizer, [first]), [second]) == ["é", ""]


def test_parts_joined_equal_the_text_of_transformers():
    tokenizer = tokenizer_of("byte-level")
    streamer = TextIteratorStreamer(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    tokens = tokenizer.encode(TEXT).ids
    for token in tokens:
        streamer.put(torch.tensor([token]))
    streamer.end()
    assert "".join(streamer) == "".join(added(IncrementalDecoder(tokenizer), tokens))


# --- streams --------------------------------------------------------------------------------------------------------


class Letters:
    """Each token is one letter."""

    def decode(self, ids):
        return "".join(chr(ord("a") + token) for token in ids)


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 3.0, "eos": [1, 4], "pad": -1}], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["equal lengths", "left-padded"])
def test_stream_yields_the_tokens_and_texts_of_generate(settings, padded):
    model, tokens = model_and_prompts("llama")
    settings = settings | {"lengths": torch.tensor([N, 1, 2]) if padded else None}
    text = generate(model, tokens, NEW, generator=seeded(), **settings)
    found = list(stream_generate(model, tokens, NEW, generator=seeded(), tokenizer=Letters(), **settings))
    assert torch.equal(torch.stack([step.tokens for step in found], dim=1), text[:, N:])
    ends = settings.get("eos", [])
    for i, row in enumerate(text[:, N:].tolist()):
        kept = [token for token in row if token >= 0 and token not in ends]
        assert "".join(step.texts[i] for step in found) == Letters().decode(kept)
    plain = list(stream_generate(model, tokens, NEW, generator=seeded(), **settings))
    assert all(step.texts is None for step in plain)
    assert torch.equal(torch.stack([step.tokens for step in plain], dim=1), text[:, N:])


def test_last_step_of_a_row_returns_the_text_held_back():
    """Bytes alone: at the end of the stream, or of a row, an incomplete character is returned as it is decoded."""
    tokenizer = tokenizer_of("byte-level")
    first, _ = tokenizer.encode("é").ids
    vocabulary = tokenizer.get_vocab_size()
    model, _ = model_and_prompts("llama")
    model = GPT(model.config.__class__(**{**vars(model.config), "vocab_size": vocabulary}))
    model.head.register_forward_hook(lambda module, args, logits: logits + 1e3 * (torch.arange(vocabulary) == first))
    steps = list(stream_generate(model, torch.zeros(1, 2, dtype=torch.long), 3, tokenizer=tokenizer, temperature=0))
    assert [step.texts[0] for step in steps] == ["", "", 3 * INCOMPLETE]


def test_stream_computes_a_step_when_it_is_asked_for():
    model, tokens = model_and_prompts("llama")
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    model.train()
    steps = stream_generate(model, tokens, NEW, temperature=0)
    assert not calls
    next(steps)
    next(steps)
    assert len(calls) == 2
    assert model.training, "between two steps the model is in its own mode"
    assert torch.is_grad_enabled()


@pytest.mark.rejects
def test_stream_checks_arguments_at_once():
    model, tokens = model_and_prompts("llama")
    with pytest.raises(ValueError, match="n_new must be at least 0"):
        stream_generate(model, tokens, -1)
    with pytest.raises(ValueError, match=r"tokenizer must have a method decode\(ids\), got int"):
        stream_generate(model, tokens, 1, tokenizer=3)
    with pytest.raises(TypeError, match="n_beams"):
        stream_generate(model, tokens, 1, n_beams=3)
    assert len(list(stream_generate(model, tokens, 0))) == 0
    assert len(tokens) == B


# --- wrong implementations that the tests catch ---------------------------------------------------------------------


class TokenByToken(IncrementalDecoder):
    """Decode each token alone."""

    def add(self, token):
        return self.tokenizer.decode([token])

    def finish(self):
        return ""


class WithoutHoldingBack(IncrementalDecoder):
    """Return the text of an incomplete character at once."""

    def add(self, token):
        self._new.append(token)
        return self.finish()


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        (TokenByToken, lambda: test_joined_parts_continue_the_text_before("pieces", 1)),
        (TokenByToken, test_no_part_divides_a_character),
        (TokenByToken, lambda: test_joined_parts_continue_the_text_before("word pieces", 1)),
        (WithoutHoldingBack, test_no_part_divides_a_character),
    ],
)
def test_wrong_decoders_are_caught(wrong, test, monkeypatch):
    monkeypatch.setitem(globals(), "IncrementalDecoder", wrong)
    monkeypatch.setattr(streaming, "IncrementalDecoder", wrong)
    with pytest.raises(AssertionError):
        test()
