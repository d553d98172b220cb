"""The drawings of the chapter on attention patterns, besides the induction circuit in ``transformer``."""

from collections.abc import Collection, Sequence

from lessons_lib.page.language import gettext
from lessons_lib.page.sketch import Sketch


def head_interventions() -> Sketch:
    """Draw a head whose output is cut off from the residual stream, and the three things that can replace it."""
    replacements = {
        "0": "zero ablation",
        "mean of $z$ over texts": "mean ablation",
        "$z$ on another text": "resampling, patching",
    }
    d = Sketch(
        402,
        190,
        alt="A head reads the residual stream and adds its output z to it; the stream leads on to later layers and the "
        "logits. The connection from the head to the stream is cut. In the place of z comes one of three: zero (zero "
        "ablation), the mean of z over texts (mean ablation), or z on another text (resampling, patching).",
    )
    d.path("M4 160H218", thick=True)
    d.arrow((242, 160), (284, 160))
    d.text((290, 153), "later layers,", anchor="start", small=True)
    d.text((290, 168), "logits", anchor="start", small=True)
    d.text((4, 180), "residual stream", anchor="start", small=True)
    d.box(20, 96, 64, 28, "head", role="query")
    d.arrow((52, 158), (52, 124), role="query")
    d.path("M84 110H134", dashed=True)
    d.text((108, 99), "$z$")
    d.text((143, 110), "\u2715")
    d.circle((230, 160), 11, "+")
    for i, (replacement, name) in enumerate(replacements.items()):
        box = d.box(120, 4 + 31 * i, 146, 24, replacement, role="value")
        d.text((272, box.middle[1]), name, anchor="start", small=True)
    d.arrow((230, 92), (230, 149), role="value")
    d.text((240, 120), "one of these", anchor="start", small=True)
    return d


def idle_and_busy_rows(
    symbols: Sequence[str] = ("start", "r", "b", "s", "u"), triggers: Collection[str] = ("b",)
) -> Sketch:
    """Draw where a head attends: from a trigger to the symbol before it, from any other symbol to the first.

    Args:
        symbols: 3 to 7 symbols; the first is the start of the text.
        triggers: the symbols whose rows are busy; at least one of the symbols from the third on.

    Raises:
        ValueError: if there are not 3 to 7 symbols, the first or second is a trigger, or no other is.
    """
    n = len(symbols)
    if not 3 <= n <= 7:
        raise ValueError(f"symbols must be from 3 to 7, got {n}")
    busy = [i for i, symbol in enumerate(symbols) if symbol in triggers]
    if not busy or busy[0] < 2:
        raise ValueError(f"triggers must be among the symbols from the third on, got {sorted(triggers)}")
    idle = [i for i in range(1, n) if i not in busy]
    reads = ", ".join(gettext(f"the row of {symbols[i]} attends to {symbols[i - 1]}") for i in busy)
    d = Sketch(
        402,
        182,
        alt=f"The symbols {', '.join(symbols)} in a row. Above, busy rows: {reads}, the symbol before it. Below, idle "
        f"rows: the rows of {', '.join(symbols[i] for i in idle)} attend to the first symbol, {symbols[0]}.",
    )
    step, top = 402 / n, 64.0
    boxes = []
    for i, symbol in enumerate(symbols):
        role = "query" if i in busy else "key" if i == 0 else ""
        boxes.append(d.box(step * (i + 0.5) - 25, top, 50, 28, symbol, role=role, verbatim=True))
    for i in busy:
        d.arrow(boxes[i].top, boxes[i - 1].top, bend=44, role="query")
    for i in idle:
        d.arrow(boxes[i].bottom, boxes[0].bottom, bend=-(26 + 24 * i), role="key")
    d.text((1, 9), "busy rows: a trigger needs the symbol before it", anchor="start", small=True)
    d.text((401, 172), "idle rows: nothing is needed", anchor="end", small=True)
    return d
