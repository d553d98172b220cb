"""The drawings of the part on Transformers."""

from collections.abc import Sequence

from lessons_lib.page.sketch import Sketch


def residual_stream() -> Sketch:
    """Draw the residual stream of one token: attention and feed-forward read it through a norm and add to it.

    Elhage et al., *A Mathematical Framework for Transformer Circuits*, 2021, section "High-Level Architecture".
    """
    d = Sketch(
        402,
        222,
        alt="A thick line from left to right is the residual stream of one token, from embedding to output matrix. "
        "Twice a branch leaves it, goes up through a norm and a layer, and comes back into a plus sign on the line: "
        "first attention, to which arrows also lead from the residual streams of the other tokens, dashed at the top; "
        "then the feed-forward layer, which reads this token alone.",
    )
    line, others = 196.0, 34.0
    d.text((1, 10), "streams of the other tokens", anchor="start", small=True)
    d.path(f"M1 {others}H401", dashed=True)
    d.path(f"M1 {line}H138M158 {line}H328M348 {line}H401", thick=True)
    d.text((1, line + 16), "embedding", anchor="start", small=True)
    d.text((401, line + 16), "output matrix", anchor="end", small=True)
    for left, name, role in ((38.0, "attention", "query"), (228.0, "feed-forward", "value")):
        norm = d.box(left, 134, 46, 26, "norm")
        layer = d.box(left, 76, 132, 30, name, role=role)
        plus = d.circle((left + 110, line), 10, "+")
        d.arrow((norm.middle[0], line), norm.bottom, gap=1)
        d.arrow(norm.top, (norm.top[0], layer.y + layer.height))
        d.arrow((plus.middle[0], layer.y + layer.height), plus.top, role=role)
        d.text((plus.middle[0] + 8, 142), "adds", anchor="start", small=True)
    for x in (64.0, 104.0, 144.0):
        d.arrow((x, others), (x, 76), role="key")
    d.text((160, 56), "keys and values", anchor="start", small=True)
    return d


def encoder_and_decoder() -> Sketch:
    """Draw a block of the 2017 encoder beside a block of the decoder, which attends to the encoder's output.

    Vaswani et al., *Attention Is All You Need*, 2017, figure 1.
    """
    d = Sketch(
        402,
        252,
        alt="Two columns. On the left the encoder's block, from the source upwards: self-attention in which every word "
        "sees every word, then a feed-forward layer. On the right the decoder's block, from the target upwards: "
        "self-attention with the causal mask, then cross-attention, then a feed-forward layer. An arrow from the "
        "encoder's top to the cross-attention carries keys and values; the queries come from the target.",
    )
    wide = 138.0
    columns = (
        (16.0, "source", ("self-attention", "feed-forward")),
        (246.0, "target", ("self-attention, causal", "cross-attention", "feed-forward")),
    )
    tops = []
    for left, name, layers in columns:
        middle = left + wide / 2
        d.text((middle, 242), name)
        below = (middle, 233.0)
        boxes = []
        for i, layer in enumerate(layers):
            box = d.box(left, 184 - 66 * i, wide, 30, layer, role="value" if layer == "feed-forward" else "query")
            d.arrow(below, box.bottom, role="query" if layer == "cross-attention" else "")
            below, boxes = box.top, [*boxes, box]
        tops.append(boxes)
        if name == "target":
            d.arrow(below, (middle, 18))
    encoded, cross = tops[0][-1], tops[1][1]
    d.text((encoded.middle[0], 88), "the source, encoded", small=True)
    d.arrow(encoded.top, (encoded.middle[0], 98), gap=1)
    d.path(f"M{encoded.middle[0] + 66:.0f} 88H200V{cross.middle[1]:.0f}H228", role="key")
    d.arrow((222, cross.middle[1]), cross.left, role="key", gap=2)
    d.text((204, 76), "keys, values", small=True)
    d.text((cross.middle[0] + 8, cross.y + 47), "queries", anchor="start", small=True)
    d.text((315, 8), "next word", small=True)
    return d


def induction_circuit(words: Sequence[str] = ("the", "cat", "sat", "the", "cat")) -> Sketch:
    """Draw an induction circuit: layer 1 stores the previous word at each position, layer 2 matches it and copies.

    Raises:
        ValueError: unless there are five words and the last equals the second.
    """
    if len(words) != 5 or words[4] != words[1]:
        raise ValueError(f"words must be five, the last one the second again, got {tuple(words)}")
    d = Sketch(
        402,
        236,
        alt=f"Five words in a row, {', '.join(words)}. In layer 1 each word gets a note of the word before it: the "
        f"third word, {words[2]}, has the note {words[1]}. In layer 2 an arrow leads from the last word, {words[4]}, "
        f"to the note at {words[2]}, since note and word agree; {words[2]} is copied from there to the last word.",
    )
    wide, left = 62.0, 44.0
    middles = [left + 36 + 72 * i for i in range(len(words))]
    d.text((1, 211), "stream", anchor="start", small=True)
    d.text((1, 133), "layer 1", anchor="start", small=True)
    d.text((1, 20), "layer 2", anchor="start", small=True)
    for i, (x, word) in enumerate(zip(middles, words, strict=True)):
        box = d.box(x - wide / 2, 197, wide, 28, word, role="value" if i == 2 else "query" if i == 4 else "")
        if i:
            note = d.box(x - wide / 2, 118, wide, 30, f"after {words[i - 1]}", role="key" if i == 2 else "")
            d.arrow((middles[i - 1] + 8, 197), (x - 10, 148), role="key" if i == 2 else "")
            d.path(f"M{x} {box.y}V{note.y + note.height}", fine=True)
    d.path(f"M{middles[4]} 118V64H{middles[2] + 9}", role="query")
    d.arrow((middles[2] + 9, 64), (middles[2] + 9, 118), role="query")
    d.text(((middles[2] + middles[4]) / 2 + 6, 52), f"which word follows {words[4]}?", small=True)
    d.path(f"M{middles[2] - 12} 118V20H{middles[4] - 40}", role="value")
    d.arrow((middles[4] - 40, 20), (middles[4] - 14, 20), role="value", gap=0)
    d.text((middles[4], 20), words[2])
    return d


def mixture_of_experts() -> Sketch:
    """Draw top-2 routing: the router's probabilities of four experts, and the two experts that process the vector.

    Shazeer et al., *Outrageously Large Neural Networks*, 2017, figure 1.
    """
    d = Sketch(
        402,
        196,
        alt="On the left a word's vector. An arrow leads down from it to the router, whose four probabilities are "
        "bars, two of them tall. Of four experts in a column those two get the vector by an arrow each; the other two "
        "are dashed, and no arrow leads to them. The two answers meet in a plus sign on the right.",
    )
    word = d.matrix(4, 40, 26, 60, "$x$", role="query")
    router = d.box(4, 140, 66, 28, "router", role="key")
    d.arrow(word.bottom, (word.middle[0], router.y))
    plus = d.circle((352, word.middle[1]), 11, "+")
    for i, p in enumerate((0.08, 0.55, 0.05, 0.32)):
        left, top, chosen = 120.0, 6 + 38.0 * i, p > 0.3
        if chosen:
            box = d.box(left, top, 92, 28, f"expert {i + 1}", role="value")
            d.arrow(word.right, box.left, role="query")
            d.arrow(box.right, (plus.left[0] + 4, plus.middle[1] + (4 if i > 1 else -4)), f"$w_{i + 1}$", role="value")
        else:
            d.path(f"M{left} {top}h92v28h-92z", dashed=True)
            d.text((left + 46, top + 14), f"expert {i + 1}")
        d.matrix(120 + 24.0 * i, 192 - 40 * p, 16, 40 * p, role="key" if chosen else "")
    d.arrow(router.right, (118, router.middle[1] + 20), role="key")
    d.text((224, 180), "probabilities $p$", anchor="start", small=True)
    d.arrow(plus.right, (398, plus.middle[1]), role="value")
    return d


def speculative_decoding(kept: Sequence[bool] = (True, True, False, False), words: Sequence[str] = ()) -> Sketch:
    """Draw speculative decoding: drafted words are accepted up to the first rejection, where a word is sampled again.

    Leviathan et al., *Fast Inference from Transformers via Speculative Decoding*, 2022, figure 1.
    """
    words = words or ("sat", "on", "a", "mat")
    n_kept = list(kept).index(False) if False in kept else len(kept)
    d = Sketch(
        402,
        150,
        alt=f"Three rows. In the first the small model has drafted {', '.join(words)} one after the other. In the "
        f"second the large model verifies them all in one call: the first {n_kept} are accepted, the next is rejected. "
        f"The third is the output: the first {n_kept}, and a word sampled from the large model.",
    )
    for y, name in ((26, "draft"), (72, "verified"), (118, "output")):
        d.text((66, y), name, anchor="end", small=True)
    d.text((95, 72), "one call", small=True)
    for i, word in enumerate(words):
        x = 124 + 70.0 * i
        top = d.box(x, 12, 56, 28, word, role="query")
        if i:
            d.arrow((x - 14, 26), top.left, gap=1)
        verdict = "accepted" if i < n_kept else "rejected" if i == n_kept else "dropped"
        d.text((x + 28, 72), verdict, small=True)
        d.arrow(top.bottom, (x + 28, 64), gap=2)
        if i <= n_kept:
            below = d.box(x, 104, 56, 28, word if i < n_kept else "the", role="query" if i < n_kept else "output")
            d.arrow((x + 28, 80), below.top, gap=2)
    return d
