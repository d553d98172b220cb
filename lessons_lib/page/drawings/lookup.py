"""The drawings of attention as a look-up: one query, memory of fixed and of growing size, words in another order."""

from collections.abc import Sequence

import torch

from lessons_lib.attention.softmax import softmax
from lessons_lib.page.sketch import Sketch


def one_query(words: Sequence[str], scores: Sequence[float], values: Sequence[float], *, query: int = -1) -> Sketch:
    """Draw attention for one query: its scores with the keys, the weights, the values and their weighted average.

    Args:
        words: two to four words, each with a key and a value.
        scores: of the query with each key.
        values: one number for each word, not negative.
        query: the index of the word whose query it is.

    Raises:
        ValueError: if there are fewer than two words or more than four, scores or values are not as many, a value is
            negative, or ``query`` is not the index of a word.
    """
    n = len(words)
    if not 2 <= n <= 4 or len(scores) != n or len(values) != n or min(values) < 0:
        raise ValueError(
            "words must be 2 to 4, with one score and one value each, no value negative, got "
            f"{n} words, scores {scores!r} and values {values!r}"
        )
    if not -n <= query < n:
        raise ValueError(f"query must be the index of one of {n} words, got {query}")
    weights = softmax(torch.tensor(list(scores), dtype=torch.float64)).tolist()
    output = sum(p * v for p, v in zip(weights, values, strict=True))
    told = "; ".join(
        f"{word}: score {s:.3g}, weight {p:.3f}, value {v:.3g}"
        for word, s, p, v in zip(words, scores, weights, values, strict=True)
    )
    step, top = 46.0, 40.0
    d = Sketch(
        402,
        top + step * n + 26,
        alt=f"The query of {words[query]} has an arrow to the key of each word. A softmax turns the scores into "
        f"weights, drawn as bars, and each value goes into the output with its weight. {told}. "
        f"The output is {output:.2f}.",
    )
    middle = top + step * n / 2
    asking = d.box(1, middle - 22, 54, 44, role="query")
    d.text((asking.middle[0], middle - 8), "query of", small=True)
    d.text((asking.middle[0], middle + 8), words[query], small=True)
    answer = d.box(352, middle - 22, 49, 44, role="output")
    d.text((answer.middle[0], middle - 8), "output", small=True)
    d.text((answer.middle[0], middle + 8), f"{output:.2f}", small=True)
    d.text((117, 10), "keys")
    d.text((168, 10), "scores")
    d.text((237, 10), "weights")
    d.text((306, 10), "values")
    for i, (word, s, p, v) in enumerate(zip(words, scores, weights, values, strict=True)):
        y = top + step * (i + 0.5)
        key = d.box(94, y - 13, 46, 26, word, role="key")
        d.arrow(asking.right, key.left, role="query")
        d.text((168, y), f"${s:.3g}$")
        d.matrix(208, y - 4, max(0.8, 54 * p), 12, role="key")
        d.text((208, y - 12), f"{p:.3f}", anchor="start", small=True)
        value = d.box(285, y - 13, 42, 26, f"{v:.3g}", role="value")
        d.arrow(value.right, answer.left, role="value")
    base = top + step * n + 14
    d.text((237, base), "sum: 1", small=True)
    d.text((340, base), "weighted average", small=True)
    return d


def fixed_and_growing_memory(words: Sequence[str] = ("the", "cat", "that", "slept"), width: int = 3) -> Sketch:
    """Draw what each network keeps after each word: a state of ``width`` numbers, or one key and value a word.

    Raises:
        ValueError: if there are not between two and five words, or ``width`` is not between 2 and 4.
    """
    n = len(words)
    if not 2 <= n <= 5 or not 2 <= width <= 4:
        raise ValueError(f"words must be 2 to 5 and width 2 to 4, got {n} and {width}")
    cell, step = 13.0, 400 / n
    tall = n * (cell + 3)
    d = Sketch(
        402,
        152 + tall,
        alt=f"After each of {n} words, what is kept. Above, a recurrent network: always {width} numbers, the state. "
        f"Below, attention: one row with a key and a value for each word read so far, 1 row after the first word and "
        f"{n} rows after the last.",
    )
    d.text((1, 8), f"recurrent network: a state of {width} numbers, written anew", anchor="start")
    d.text((1, 92), "attention: one row more for every word", anchor="start")
    before = None
    for i, word in enumerate(words):
        x = 1 + step * (i + 0.5)
        state = d.matrix(x - width * cell / 2, 28, width * cell, cell, role="value", grid=(1, width))
        d.text((x, 62), f"after {word}", small=True)
        if before is not None:
            d.arrow(before.right, state.left)
        before = state
        for j in range(i + 1):
            y = 108 + j * (cell + 3)
            d.matrix(x - 1.1 * cell * 1.5, y, 1.5 * cell, cell, role="key")
            d.matrix(x + 0.1 * cell, y, 1.5 * cell, cell, role="value")
        d.text((x, 122 + tall), f"after {word}", small=True)
    d.text((201, 144 + tall), "left of each row: the key; right: the value", small=True)
    return d


def reordered_words(words: Sequence[str] = ("dog", "bites", "man"), order: Sequence[int] = (2, 1, 0)) -> Sketch:
    """Draw attention on words and on the same words in another order: the outputs are the same, reordered alike.

    Raises:
        ValueError: if there are not between two and four words, or ``order`` is not an order of them.
    """
    n = len(words)
    if not 2 <= n <= 4 or sorted(order) != list(range(n)):
        raise ValueError(f"words must be 2 to 4 and order must name each index once, got {n} words and {order!r}")
    again = [words[i] for i in order]
    d = Sketch(
        402,
        158,
        alt=f"Two sentences pass through attention. {' '.join(words)} gives one output for each word. "
        f"{' '.join(again)} gives the same outputs, in the order of its words.",
    )
    for panel, sentence in enumerate((words, again)):
        left, width = 4.0 + 206 * panel, 188.0
        layer = d.box(left, 62, width, 34, "attention")
        for i, word in enumerate(sentence):
            x = left + width * (i + 0.5) / n
            d.text((x, 14), word)
            d.arrow((x, 24), (x, layer.y), role="key")
            d.arrow((x, layer.y + layer.height), (x, 128), role="output")
            d.text((x, 142), f"$o_{{{word}}}$")
    return d
