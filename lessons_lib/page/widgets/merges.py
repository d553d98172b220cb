"""The merges explorer: byte-pair encoding of a text, merge by merge."""

import re
from functools import cache
from itertools import pairwise
from typing import Any

import traitlets

from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.trained import script_data
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import say

SCRIPT = "merges_learned.js"
N_MERGES = 1000
LONGEST = 80
WORD = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^A-Za-z0-9 ]+| ")


class MergesExplorer(Explorer):
    """Type a text and see its tokens after any number of merges of byte-pair encoding.

    The merges are those that the chapter on training a GPT learns from an English text. They are applied in the order
    in which they were learned, inside words only; a word takes the space before it along. Tokens 0 to 255 are the
    bytes, and merge :math:`i`, counted from 1, makes token :math:`255 + i`.

    Args:
        text: the text, 1 to 80 characters.
        merges: how many of the 1000 merges are applied.

    Raises:
        ValueError: if ``text`` is empty or longer than 80 characters, or ``merges`` is not in 0 .. 1000.
    """

    script = "merges"
    card = Card(
        title="Byte-pair encoding, merge by merge",
        question="Into which tokens is your text cut, and what are their numbers?",
        sentence=(
            "In the live figure any text can be typed, and a slider goes through the merges that change it; the "
            "tokens, their numbers and the length of the text in tokens follow."
        ),
        tries={
            "No merge: bytes": {"text": "The government counted 1997 strawberries", "merges": 0},
            "Capital letters": {"text": "government Government GOVERNMENT"},
            "Years": {"text": "in 1889 and in 1990"},
            "Letters with accents": {"text": "café, naïve, Zürich"},
        },
    )

    text = traitlets.Unicode("The government counted 1997 strawberries").tag(sync=True)
    merges = Whole(N_MERGES, min=0, max=N_MERGES).tag(sync=True)

    @traitlets.validate("text")
    def _text_is_short(self, proposal: Any) -> str:
        length = len(proposal["value"])
        if not 1 <= length <= LONGEST:
            raise traitlets.TraitError(f"text must have 1 to {LONGEST} characters, got {length}")
        return proposal["value"]

    def tokens(self) -> list[int]:
        """Return the numbers of the tokens of the text."""
        return [token for word in WORD.findall(self.text) for token in word_tokens(word, self.merges)]

    def still(self) -> str:
        """Draw the tokens as boxes, in lines of at most 320."""
        boxes, x, y = [], 0, 0
        shown = [spelled(token) for token in self.tokens()]
        for piece in shown:
            width = 8 * len(piece) + 8
            x, y = (0, y + 26) if x + width > 320 else (x, y)
            boxes.append(element("rect", class_="x-ground", x=x, y=y + 2, width=width, height=20))
            boxes.append(text(piece, x=x + width / 2, y=y + 16, anchor="middle"))
            x += width + 4
        alt = say(
            "the text after {merges} merges, {count} tokens: {tokens}",
            merges=self.merges,
            count=len(shown),
            tokens=" | ".join(shown),
        )
        return picture(320, y + 26, alt, *boxes)


def word_tokens(word: str, n_merges: int) -> list[int]:
    """Return the tokens of one word after the first ``n_merges`` merges.

    >>> word_tokens("the", 0), len(word_tokens(" the", 1000))
    ([116, 104, 101], 1)
    """
    tokens = list(word.encode())
    for i, pair in enumerate(learned()[:n_merges]):
        if pair in pairwise(tokens):
            tokens = _merged(tokens, pair, 256 + i)
    return tokens


def _merged(tokens: list[int], pair: tuple[int, int], made: int) -> list[int]:
    joined = []
    for token in tokens:
        if joined and (joined[-1], token) == pair:
            joined[-1] = made
        else:
            joined.append(token)
    return joined


def spelled(token: int) -> str:
    """Return the text of a token, a space as ``␣``; bytes that are no character by themselves as ``[C3]``."""
    try:
        return to_bytes(token).decode().replace(" ", "␣")
    except UnicodeDecodeError:
        return "".join(f"[{byte:02X}]" for byte in to_bytes(token))


def to_bytes(token: int) -> bytes:
    """Return the bytes that a token stands for."""
    if token < 256:
        return bytes([token])
    left, right = learned()[token - 256]
    return to_bytes(left) + to_bytes(right)


@cache
def learned() -> list[tuple[int, int]]:
    """Return the pairs of tokens that are merged, the first merge first."""
    return [(left, right) for left, right in script_data(SCRIPT)["merges"]]
