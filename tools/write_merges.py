"""Write the script with the byte-pair merges that the explorer *merges* applies.

``python tools/write_merges.py`` runs the cells of the chapter *Training a GPT* that learn the merges, on the same
text, and writes ``lessons_lib/page/widgets/static/merges_learned.js``. It takes a few seconds.
"""

import itertools
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.records import defined  # noqa: E402
from lessons_lib.training import datasets  # noqa: E402

CHAPTER = ROOT / "book" / "transformer" / "train-gpt.ipynb"
CELLS = "bpe-merge", "bpe-words", "bpe-learn", "bpe-apply"
OUT = ROOT / "lessons_lib" / "page" / "widgets" / "static" / "merges_learned.js"
MERGES = 1000
TEXT = """/** Written by tools/write_merges.py: byte-pair merges learned on an English text, the first one first. */

/** Pairs of token numbers: 0 to 255 are the bytes, and 256 + i is the token that merge i makes. */
export const LEARNED = {
  "merges": [
{rows}
  ]
};
"""


def learned() -> list[tuple[bytes, bytes]]:
    """Return the merges that the chapter learns, as pairs of byte strings."""
    given = {"re": re, "pairwise": itertools.pairwise, "Counter": Counter, "defaultdict": defaultdict}
    learn_merges = defined(CHAPTER, CELLS, given)["learn_merges"]
    english = datasets.english()
    return list(learn_merges(english[: int(0.9 * len(english))], MERGES))


def numbered(merges: list[tuple[bytes, bytes]]) -> list[list[int]]:
    """Return the merges as pairs of token numbers.

    >>> numbered([(b"t", b"h"), (b"th", b"e")])
    [[116, 104], [256, 101]]
    """
    numbers = {bytes([byte]): byte for byte in range(256)}
    for i, (left, right) in enumerate(merges):
        numbers.setdefault(left + right, 256 + i)
    return [[numbers[left], numbers[right]] for left, right in merges]


def script(merges: list[list[int]]) -> str:
    """Return the script's text, with ten merges in a line."""
    tens = [merges[start : start + 10] for start in range(0, len(merges), 10)]
    rows = [", ".join(f"[{a}, {b}]" for a, b in ten) for ten in tens]
    return TEXT.replace("{rows}", ",\n".join(f"    {row}" for row in rows))


if __name__ == "__main__":
    OUT.write_text(script(numbered(learned())), encoding="utf-8")
