"""Streams: tokens and text as they are generated, without half characters.

:func:`stream_generate` yields each step of :func:`~lessons_lib.generation.sampling.generate`;
:class:`IncrementalDecoder` converts tokens to text one at a time.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from lessons_lib.generation.steps import GenerationStep, generation_steps
from lessons_lib.generation.stopping import TextEnd
from lessons_lib.transformer.gpt import GPT

INCOMPLETE = "\ufffd"  # what bytes are decoded to that are no whole character


@runtime_checkable
class Decodes(Protocol):
    """Anything that converts tokens to text, for instance a tokenizer of ``tokenizers`` or ``transformers``."""

    def decode(self, ids: list[int], /) -> str:
        """Return the text of these tokens."""
        ...


class Streamed(NamedTuple):
    """What a step of :func:`stream_generate` added."""

    tokens: Int[Tensor, "b"]  # one new token for each row, or padding after its end
    texts: tuple[str, ...] | None  # the new text of each row, which may be empty; None without a tokenizer


class IncrementalDecoder:
    """Converts tokens to text one at a time, so that the parts joined are the text of all tokens.

    Decoding each token alone would be wrong: a character may be spread over several tokens, and tokenizers decide
    about the space between two words or word pieces only when they see both. So each token is decoded together with
    the tokens before it, and the text is held back while it ends within a character. Each token is decoded a few times,
    however long the text.

    The law ``decode(before + tokens) == decode(before) + joined parts`` holds for tokenizers whose text of a token
    depends on the tokens directly before it (byte-level, Metaspace, WordPiece). A clean-up of spaces that changes text
    further back cannot be streamed; there the parts are the text without it.

    >>> class Bytes:
    ...     def decode(self, ids):
    ...         return bytes(ids).decode(errors="replace")
    >>> decoder = IncrementalDecoder(Bytes())
    >>> [decoder.add(byte) for byte in "né!".encode()], decoder.finish()
    (['n', '', 'é', '!'], '')

    Args:
        tokenizer: has a method ``decode(ids)``; special tokens are written as it writes them.
        before: the tokens before the first one that is added, for instance a prompt, whose text is not returned.
    """

    def __init__(self, tokenizer: Decodes, before: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self._done, self._new = list(before), []  # tokens whose text was returned, of late; tokens whose text was not

    def add(self, token: int) -> str:
        """Add a token and return the text that is certain now, which may be empty."""
        self._new.append(token)
        text = self._new_text()
        if not text or text.endswith(INCOMPLETE):
            return ""
        # The tokens before are no longer needed, unless they begin the character that the new ones complete.
        begun = self._done if self._text_before() != self.tokenizer.decode(self._done) else []
        self._done, self._new = begun + self._new, []
        return text

    def finish(self) -> str:
        """Return the text that was held back, with replacement characters for what is incomplete."""
        text = self._new_text() if self._new else ""
        self._done, self._new = self._done + self._new, []
        return text

    def _new_text(self) -> str:
        return self.tokenizer.decode(self._done + self._new)[len(self._text_before()) :]

    def _text_before(self) -> str:
        return self.tokenizer.decode(self._done).rstrip(INCOMPLETE)


def stream_generate(
    model: GPT, tokens: Int[Tensor, "b n"], n_new: int, *, tokenizer: Decodes | None = None, **settings: Any
) -> Iterator[Streamed]:
    """Yield the tokens of :func:`~lessons_lib.generation.sampling.generate` as they are made, and their text.

    With a tokenizer each step also has the text that it adds to each row. A text never ends within a character: it is
    held back until the character is complete, or until the row ends. The texts of a row joined continue the text of its
    prompt; the token that ends it and the padding after it are left out.

    The arguments are checked at once. A step is computed when it is asked for, so generation ends with the iteration.
    Between two steps the model is in its own mode.

    >>> import torch
    >>> from lessons_lib.transformer.configuration import llama_tiny
    >>> class Letters:
    ...     def decode(self, ids):
    ...         return "".join(map(chr, ids))
    >>> model, prompt = GPT(llama_tiny()), torch.tensor([[72, 105]])
    >>> text = "".join(step.texts[0] for step in stream_generate(model, prompt, 8, tokenizer=Letters(), temperature=0))
    >>> len(text)
    8

    Args:
        model, tokens, n_new: as for ``generate``.
        tokenizer: has a method ``decode(ids)``, as those of ``tokenizers`` and ``transformers`` do.
        settings: the keyword arguments of ``generate``.

    Raises:
        ValueError: as ``generate``, or if the tokenizer has no method ``decode``.
    """
    if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
        raise ValueError(f"tokenizer must have a method decode(ids), got {type(tokenizer).__name__}")
    steps = generation_steps(model, tokens, n_new, **settings)
    if tokenizer is None:
        return (Streamed(step.tokens[:, -1], None) for step in steps)
    lengths = settings.get("lengths")
    n_padding = [0] * len(tokens) if lengths is None else (tokens.shape[1] - lengths).tolist()
    prompts = [row[n:] for row, n in zip(tokens.tolist(), n_padding, strict=True)]
    decoders = [IncrementalDecoder(tokenizer, prompt) for prompt in prompts]
    end = TextEnd.of(settings.get("eos"), None, vocab_size=model.config.vocab_size)
    return _with_texts(steps, decoders, set(end.ids), n_new)


def _with_texts(
    steps: Iterator[GenerationStep], decoders: list[IncrementalDecoder], eos: Collection[int], n_new: int
) -> Iterator[Streamed]:
    for i, step in enumerate(steps, start=1):
        new = step.tokens[:, -1]
        texts = []
        for token, is_new, has_ended, decoder in zip(
            new.tolist(), step.is_new.tolist(), step.has_ended.tolist(), decoders, strict=True
        ):
            text = decoder.add(token) if is_new and token not in eos else ""
            texts.append(text + decoder.finish() if has_ended or i == n_new else text)
        yield Streamed(new, tuple(texts))
