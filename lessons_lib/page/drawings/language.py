"""The drawings of the chapter on training a GPT: parts of the loss, shifted targets, cuts before sampling, merges."""

from collections.abc import Mapping, Sequence

import torch

from lessons_lib.page.language import gettext
from lessons_lib.page.sketch import Sketch


def loss_parts(truth: Sequence[float], models: Mapping[str, Sequence[float]]) -> Sketch:
    r"""Draw the expected loss of each model as a bar of two parts, :math:`H(P)` and :math:`D(P\|Q)`.

    Args:
        truth: the probabilities :math:`P` of the next words.
        models: one to four models by name, each with its probabilities :math:`Q` of the same words.

    Raises:
        ValueError: if there are not one to four models, or a distribution has another length than ``truth``, has an
            entry that is not positive, or does not sum to 1.
    """
    if not 1 <= len(models) <= 4:
        raise ValueError(f"models must be between 1 and 4, got {len(models)}")
    for name, probs in (("truth", truth), *models.items()):
        if len(probs) != len(truth) or min(probs) <= 0 or abs(sum(probs) - 1) > 1e-6:
            raise ValueError(f"{name!r} must be {len(truth)} positive probabilities with sum 1, got {list(probs)}")
    p = torch.tensor(truth, dtype=torch.float64)
    entropy = -(p * p.log()).sum().item()
    losses = {name: -(p * torch.tensor(q, dtype=torch.float64).log()).sum().item() for name, q in models.items()}
    listed = "; ".join(f"{name}, loss {loss:.2f}, of which {loss - entropy:.2f} is D" for name, loss in losses.items())
    height = 40.0 * len(losses) + 34
    d = Sketch(
        402,
        height,
        alt=f"One bar for each model of the next word. Every bar begins with the same part, the entropy H of the "
        f"truth, {entropy:.2f} nats, and ends with the divergence D of the model from the truth: {listed}.",
    )
    left, scale = 104.0, 236 / max(losses.values())
    edge = left + scale * entropy
    d.text((left + scale * entropy / 2, 10), "$H(P)$", small=True)
    if max(losses.values()) - entropy > 0.05:
        d.text((left + scale * (entropy + max(losses.values())) / 2, 10), r"$D(P\|Q)$", small=True)
    for i, (name, loss) in enumerate(losses.items()):
        y = 22.0 + 40 * i
        d.text((left - 8, y + 13), name, anchor="end", small=True)
        d.matrix(left, y, scale * entropy, 26, role="value")
        if loss - entropy > 1e-3:
            d.matrix(edge, y, scale * (loss - entropy), 26, role="query")
        d.text((left + scale * loss + 8, y + 13), f"{loss:.2f}", anchor="start", small=True)
    d.line([(edge, 20), (edge, height - 16)], dashed=True)
    d.text((edge, height - 7), "the floor", small=True)
    return d


def shifted_targets(words: Sequence[str] = ("the", "cat", "that", "slept", "ran")) -> Sketch:
    """Draw a row of words as inputs of a GPT, and the same row shifted by one as its targets.

    Raises:
        ValueError: if there are not between three and six words.
    """
    n = len(words) - 1
    if not 2 <= n <= 5:
        raise ValueError(f"words must be between 3 and 6, got {len(words)}")
    inputs, targets = words[:-1], words[1:]
    shown = n // 2  # the position whose inputs are drawn
    d = Sketch(
        402,
        178,
        alt=f"Below, the inputs: {', '.join(inputs)}. Above, the targets, the same row shifted by one: "
        f"{', '.join(targets)}. Between them is the GPT, with one output for each position. Lines lead to output "
        f"{shown + 1} from input {' and '.join(inputs[: shown + 1])}: its target is {targets[shown]}.",
    )
    left, step = 74.0, 328 / n
    middles = [left + step * (i + 0.5) for i in range(n)]
    for y, name in ((14, "targets"), (90, "GPT"), (166, "inputs")):
        d.text((62, y), name, anchor="end", small=True)
    d.box(left, 62, 328 - 1, 56)
    for i, x in enumerate(middles):
        d.text((x, 14), targets[i])
        d.text((x, 166), inputs[i])
        d.arrow((x, 156), (x, 116), role="key" if i <= shown else "")
        d.arrow((x, 66), (x, 24), role="output" if i == shown else "")
        if i < shown:
            d.line([(x, 113), (middles[shown], 70)], role="key")
    d.line([(middles[shown], 113), (middles[shown], 70)], role="key")
    return d


def sampling_cuts(
    rows: Mapping[str, Sequence[float]], *, top_k: int, top_p: float, min_p: float, n_bars: int = 16
) -> Sketch:
    """Draw the most probable words of each distribution as bars, and below them how many words each cut keeps.

    Args:
        rows: one or two distributions over the vocabulary, by name.
        top_k: number of words that top-k keeps.
        top_p: probability that the words kept by top-p reach together.
        min_p: least probability that min-p keeps, relative to the most probable word.
        n_bars: number of bars.

    Raises:
        ValueError: if there are not one or two rows, a row has fewer than ``n_bars`` words or does not sum to 1, or a
            setting is outside its range.
    """
    if not 1 <= len(rows) <= 2:
        raise ValueError(f"rows must be 1 or 2, got {len(rows)}")
    if not (4 <= n_bars <= 24 and 1 <= top_k <= n_bars and 0 < top_p <= 1 and 0 < min_p <= 1):
        raise ValueError(
            f"n_bars must be in 4 .. 24, top_k in 1 .. n_bars, top_p and min_p in (0, 1], "
            f"got {n_bars}, {top_k}, {top_p} and {min_p}"
        )
    for name, row in rows.items():
        if len(row) < n_bars or min(row) < 0 or abs(sum(row) - 1) > 1e-4:
            raise ValueError(f"{name!r} must be at least {n_bars} probabilities with sum 1, got {list(row)[:8]}")
    panels = {name: torch.tensor(row, dtype=torch.float64).sort(descending=True).values for name, row in rows.items()}
    cuts = f"top-$k$, $k = {top_k}$", f"top-$p$, $p = {top_p:g}$", f"min-$p$, $p = {min_p:g}$"
    kept = {
        name: (top_k, int((p.cumsum(0) - p < top_p).sum()), int((p >= min_p * p[0]).sum()))
        for name, p in panels.items()
    }
    described = gettext("; ").join(
        gettext(
            f"{name}: the most probable word has {p[0]:.2f} and the {n_bars}th {p[n_bars - 1]:.1g}, "
            f"top-k with k = {top_k} keeps {kept[name][0]}, top-p with p = {top_p:g} keeps {kept[name][1]}, "
            f"min-p with p = {min_p:g} keeps {kept[name][2]}"
        )
        for name, p in panels.items()
    )
    panel = 150.0
    d = Sketch(
        402,
        panel * len(panels),
        alt=f"Next-word probabilities as bars, the {n_bars} most probable first. {described}.",
    )
    left, step = 130.0, 226 / n_bars
    for i, (name, p) in enumerate(panels.items()):
        top = panel * i
        d.text((1, top + 10), name, anchor="start")
        base, tallest = top + 84, 60 / p[0].item()
        d.path(f"M{left} {base}h{226}", fine=True)
        for j in range(n_bars):
            height = max(0.8, tallest * p[j].item())
            d.matrix(left + step * j + 1, base - height, step - 2, height, role="value")
        for j, (cut, n) in enumerate(zip(cuts, kept[name], strict=True)):
            y, shown = base + 14 + 17 * j, min(n, n_bars)
            d.text((left - 8, y), cut, anchor="end", small=True)
            d.path(f"M{left + 1} {y}h{step * shown - 2:.1f}", role="query", thick=True)
            d.text((398, y), f"keeps {n}", anchor="end", small=True)
    return d


def byte_pair_steps(steps: Sequence[Sequence[str]]) -> Sketch:
    """Draw a word as it is merged by byte-pair encoding, with one row for each division into pieces.

    Args:
        steps: two to seven divisions of the same word of at most 16 characters, each with fewer pieces than the one
            before it.

    Raises:
        ValueError: if the steps break these rules.
    """
    word = "".join(steps[0]) if steps else ""
    if not 2 <= len(steps) <= 7 or not 2 <= len(word) <= 16:
        raise ValueError(f"steps must be 2 to 7 divisions of a word of 2 to 16 characters, got {list(steps)!r}")
    sizes = [len(pieces) for pieces in steps]
    if any("".join(pieces) != word for pieces in steps) or sorted(set(sizes), reverse=True) != sizes:
        raise ValueError(f"steps must divide one word into fewer and fewer pieces, got {list(steps)!r}")

    def shown(piece: str) -> str:
        return piece.replace(" ", "\u2423")

    rows = "; ".join(" ".join(map(shown, pieces)) for pieces in steps)
    height = 30.0
    d = Sketch(
        402,
        height * len(steps) + 6,
        alt=f"One word in {len(steps)} rows, each with fewer pieces than the row above: {rows}. "
        f"The word begins as {sizes[0]} pieces and ends as {sizes[-1]}.",
    )
    cell = min(30.0, 316 / len(word))
    for i, pieces in enumerate(steps):
        y, x = 4 + height * i, 2.0
        new = set(pieces) - set(steps[i - 1]) if i else set()
        for piece in pieces:
            role = "query" if piece in new else ""
            d.box(x + 1, y, cell * len(piece) - 2, 22, shown(piece), role=role, verbatim=True)
            x += cell * len(piece)
        count = f"{sizes[i]} pieces" if sizes[i] > 1 else "1 piece"
        d.text((398, y + 11), count, anchor="end", small=True)
    return d
