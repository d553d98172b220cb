"""The drawings of the chapter on vision and language: an image as tokens, translation with and without attention."""

from itertools import pairwise

from lessons_lib.page.sketch import Sketch


def image_as_tokens(n: int = 3) -> Sketch:
    """Draw an image that is cut into ``n`` by ``n`` patches, which an encoder reads as tokens after a summary token.

    Dosovitskiy et al., *An Image is Worth 16x16 Words*, 2021.

    Raises:
        ValueError: if ``n`` is not 2, 3 or 4.
    """
    if not 2 <= n <= 4:
        raise ValueError(f"n must be between 2 and 4, got {n}")
    count = n * n
    d = Sketch(
        402,
        206,
        alt=f"An image, cut into {n} by {n} patches with numbers. Each patch becomes a token: a row of {count} boxes "
        "after a first one, s, the summary token, which belongs to no patch. All go into an encoder. One arrow leads "
        "from the place of the summary token to the class of the image.",
    )
    side, gap = 108 / n, 4.0
    d.text((1, 8), "image", anchor="start")
    for i in range(count):
        x, y = 8 + (side + gap) * (i % n), 24 + (side + gap) * (i // n)
        d.box(x, y, side, side, str(i + 1), role="key")
    width = 234 / (count + 1)
    left = 160.0
    d.text((left, 34), "patches as tokens", anchor="start")
    tokens = [
        d.matrix(left + width * i, 52, width - 2, 28, "$s$" if i == 0 else "", role="query" if i == 0 else "key")
        for i in range(count + 1)
    ]
    encoder = d.box(left, 104, 234, 30, "encoder")
    for token in tokens:
        d.arrow(token.bottom, (token.bottom[0], encoder.y), role="query" if token is tokens[0] else "key", gap=2)
    d.arrow((128, 66), (left, 66))
    d.arrow((tokens[0].bottom[0], 134), (tokens[0].bottom[0], 178), role="query")
    d.text((left, 192), "class of the image", anchor="start")
    return d


def bottleneck_and_attention(n: int = 5) -> Sketch:
    """Draw a decoder that is given the last state of an encoder, and one that attends to all ``n`` states.

    Bahdanau, Cho and Bengio, *Neural Machine Translation by Jointly Learning to Align and Translate*, 2014.

    Raises:
        ValueError: if ``n`` is not between 3 and 7.
    """
    if not 3 <= n <= 7:
        raise ValueError(f"n must be between 3 and 7, got {n}")
    d = Sketch(
        402,
        262,
        alt=f"Above, an encoder passes a state from word to word, {n} states in all, and the decoder is given the last "
        f"one alone. Below, the same encoder; the decoder has arrows from all {n} states, so that none has to pass "
        "through another one.",
    )
    step = 250 / (n - 1)
    for top, name, attends in ((0, "one vector", False), (134, "attention", True)):
        d.text((1, top + 8), name, anchor="start")
        xs = [22 + step * i for i in range(n)]
        y = top + 96.0
        states = [d.circle((x, y), 15, f"$h_{i + 1}$", role="value") for i, x in enumerate(xs)]
        for one, following in pairwise(states):
            d.arrow(one.right, following.left)
        decoder = d.box(322, top + 26, 72, 34, "decoder", role="query")
        if attends:
            for state in states:
                d.arrow(state.top, (decoder.x, decoder.y + 17), role="query")
        else:
            d.arrow(states[-1].right, (decoder.x + 36, decoder.y + 34), role="value")
    return d
