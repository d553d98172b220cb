"""The drawings of the chapter on what changed since 2017: two blocks, and latent attention."""

from lessons_lib.page.sketch import Box, Sketch

_BLOCKS = {
    "2017": (
        ("attention", "one key per head", "query"),
        ("layer norm", "after the sum", "value"),
        ("feed-forward", "ReLU", "key"),
        ("layer norm", "after the sum", "value"),
    ),
    "Llama 3": (
        ("RMS norm", "before the layer", "value"),
        ("attention, RoPE", "shared keys", "query"),
        ("RMS norm", "before the layer", "value"),
        ("feed-forward", "SwiGLU", "key"),
    ),
}

_TOPS = {"2017": (250.0, 184.0, 118.0, 52.0), "Llama 3": (250.0, 194.0, 118.0, 62.0)}


def block_changes() -> Sketch:
    """Draw a decoder block of 2017 beside a block of Llama 3: the same two layers, with other parts.

    Vaswani et al., *Attention Is All You Need*, 2017, figure 1, without cross-attention; Llama Team, *The Llama 3 Herd
    of Models*, 2024, section 3.2.
    """
    d = Sketch(
        402,
        328,
        alt="Two blocks, read from bottom to top along a thick line, the residual stream. On the left the block of "
        "2017: positions are added to the tokens; attention, with one key per head, is added to the stream, and a "
        "layer norm stands on the stream after the sum; then a feed-forward layer with ReLU, and again a layer norm "
        "after the sum. On the right the block of Llama 3: no positions are added; each branch begins with an RMS norm "
        "before the layer; attention rotates queries and keys and shares keys between heads; the feed-forward layer is "
        "a SwiGLU; no norm stands on the stream.",
    )
    for (name, parts), left in zip(_BLOCKS.items(), (1.0, 207.0), strict=True):
        stream, branch = left + 20, left + 48
        d.text((left + 97, 10), name)
        boxes: list[Box] = []
        on_stream = name == "2017"
        for i, (words, note, role) in enumerate(parts):
            y = _TOPS[name][i]
            own = on_stream and role == "value"
            x = left if own else branch
            boxes.append(d.box(x, y, 194 - (x - left), 44, role=role))
            d.text((boxes[-1].middle[0], y + 14), words)
            d.text((boxes[-1].middle[0], y + 31), note, small=True)
        d.text((left + 97, 322), "token + sines" if on_stream else "token", small=True)
        norms = [box for box in boxes if box.x == left]
        sums: list[Box] = []
        for low, high in ((0, 0), (2, 2)) if on_stream else ((0, 1), (2, 3)):
            start, end = boxes[low], boxes[high]
            d.path(f"M{stream} {start.y + 51}H{start.middle[0]}")
            d.arrow((start.middle[0], start.y + 51), start.bottom, gap=0)
            if high > low:
                d.arrow(start.top, end.bottom, gap=0)
            d.path(f"M{end.middle[0]} {end.y}V{end.y - 11}")
            d.arrow((end.middle[0], end.y - 11), (stream + 8, end.y - 11), gap=0)
            sums.append(d.circle((stream, end.y - 11), 8, "+"))
        d.path(_stream(stream, norms + sums), thick=True)
    return d


def latent_attention(n_heads: int = 3) -> Sketch:
    """Draw what latent attention stores for a token, and the keys and values that it need not make.

    DeepSeek-AI, *DeepSeek-V2*, 2024, figure 3 and section 2.1.

    Raises:
        ValueError: if ``n_heads`` is not between 2 and 4.
    """
    if not 2 <= n_heads <= 4:
        raise ValueError(f"n_heads must be between 2 and 4, got {n_heads}")
    height = 52.0 * n_heads
    d = Sketch(
        402,
        height + 84,
        alt="On the left a token x. One arrow, the matrix W D K V, leads to a short latent vector c; another, W K R, "
        f"to one short rotated key. These two are stored. From c, arrows lead to keys and values of {n_heads} heads, "
        "drawn dashed: while a text is generated they are never made. The rotated key is shared by all heads.",
    )
    x = d.matrix(4, 20 + height / 2 - 34, 24, 68, "$x$")
    c = d.matrix(128, 20 + height / 2 - 24, 24, 48, "$c$", role="output")
    shared = d.matrix(128, height + 42, 24, 24, role="output")
    d.arrow(x.right, c.left, "$W_{DKV}$")
    d.path(f"M{x.middle[0]} {x.y + x.height}V{shared.middle[1]}")
    d.arrow((x.middle[0], shared.middle[1]), shared.left, "$W_{KR}$", gap=0)
    d.text((140, 8), "stored", small=True)
    d.text((303, 8), "not made", small=True)
    for i in range(n_heads):
        y = 20 + 52.0 * i
        d.path(f"M226 {y}h154v34h-154z", dashed=True)
        d.text((303, y + 17), f"head {i + 1}: $k_{i + 1}, v_{i + 1}$")
        d.arrow(c.right, (226, y + 17))
    d.text((162, shared.middle[1]), "one rotated key for all heads", anchor="start", small=True)
    return d


def _stream(x: float, stations: list[Box]) -> str:
    """Return the path of the residual stream from bottom to top, with a gap at each norm and each sum."""
    ends = sorted([(box.y, box.y + box.height) for box in stations], reverse=True)
    path, at = "", 310.0
    for top, bottom in ends:
        path += f"M{x} {at}V{bottom}"
        at = top
    return f"{path}M{x} {at}V22"
