"""The drawings of sparse and linear attention: routes through a global token, kept keys, mixed keys, state updates."""

import math
from collections.abc import Sequence

import torch

from lessons_lib.attention.softmax import softmax
from lessons_lib.page.language import gettext
from lessons_lib.page.sketch import Sketch


def global_token_routes(n: int = 6) -> Sketch:
    """Draw how the second of ``n`` tokens reaches the last one in two layers: through a global first token, or not.

    Every token attends to itself, to its neighbours and to the first token; the first token attends to all. On the
    right a causal mask is added, under which the first token attends to itself alone.

    Raises:
        ValueError: if ``n`` is not between 5 and 7.
    """
    if not 5 <= n <= 7:
        raise ValueError(f"n must be between 5 and 7, got {n}")
    d = Sketch(
        402,
        206,
        alt=f"Two panels, each with {n} tokens in a row and two layers above them; the first token is global. On the "
        "left nothing is hidden: an arrow leads from token 2 to the first token in layer 1, and from there another to "
        f"token {n} in layer 2. On the right the future is hidden: the arrow from token 2 to the first token is dashed "
        "and crossed out. Only steps of one token lead forward, so that after two layers token 2 has reached token 4.",
    )
    rows = {"layer 2": 42.0, "layer 1": 104.0, "input": 166.0}
    for name, y in rows.items():
        d.text((1, y), name, anchor="start", small=True)
    step = 140 / (n - 1)
    for left, title in ((68.0, "nothing hidden"), (252.0, "future hidden")):
        columns = [left + step * i for i in range(n)]
        d.text((left + 70, 10), title)
        causal = title == "future hidden"
        reached = {"layer 2": {1, 2, 3} if causal else set(range(n)), "input": {1}}
        reached["layer 1"] = {1, 2} if causal else {0, 1, 2}
        for name, y in rows.items():
            for i, x in enumerate(columns):
                d.circle((x, y), 7.5, role="key" if i in reached[name] else "")
        for i in range(n):
            d.text((columns[i], 192), f"{i + 1}", small=True)
        start, middle = (columns[1], rows["input"]), (columns[0], rows["layer 1"])
        if causal:
            d.line([(start[0] - 3, start[1] - 9), (middle[0] + 3, middle[1] + 9)], dashed=True, role="query")
            x, y = (start[0] + middle[0]) / 2, (start[1] + middle[1]) / 2
            d.path(f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10")
            d.arrow(start, (columns[2], rows["layer 1"]), gap=10, role="key")
            d.arrow((columns[2], rows["layer 1"]), (columns[3], rows["layer 2"]), gap=10, role="key")
        else:
            d.arrow(start, middle, gap=10, role="query")
            d.arrow(middle, (columns[-1], rows["layer 2"]), gap=10, role="query")
    return d


def selected_keys(scores: Sequence[float], n_kept: int) -> Sketch:
    """Draw the weights of one query with all keys, and which of them two choices keep: the nearest and the strongest.

    Args:
        scores: of the last token's query with four to ten keys, the nearest key last.
        n_kept: number of keys that are kept.

    Raises:
        ValueError: if there are not four to ten scores, or ``n_kept`` is not between 1 and one less than their number.
    """
    n = len(scores)
    if not 4 <= n <= 10 or not 1 <= n_kept < n:
        raise ValueError(f"scores must be 4 to 10 and n_kept between 1 and one less, got {n} and {n_kept}")
    row = torch.tensor(scores, dtype=torch.float64)
    weights = softmax(row)
    kept = {
        "all keys": set(range(n)),
        f"{n_kept} nearest": set(range(n - n_kept, n)),
        f"{n_kept} strongest": set(row.topk(n_kept).indices.tolist()),
    }
    share = {name: 100 * sum(weights[i].item() for i in keys) for name, keys in kept.items()}
    listed = ", ".join(f"{w:.2f}" for w in weights.tolist())
    d = Sketch(
        402,
        198,
        alt=f"Three rows of bars, one for each of {n} keys in the order of the text; their heights are the attention "
        f"weights {listed}. In the first row all bars are filled. In the second the {n_kept} nearest keys are filled, "
        f"with {share[f'{n_kept} nearest']:.0f} % of the weight. In the third the {n_kept} keys with the highest "
        f"scores are filled, with {share[f'{n_kept} strongest']:.0f} %.",
    )
    left, step, tall = 92.0, 232 / n, 44.0
    for r, (name, keys) in enumerate(kept.items()):
        base = 62.0 + 56 * r
        d.text((1, base - 12), name, anchor="start", small=True)
        d.path(f"M{left - 4} {base}H{left + 234}", fine=True)
        for i, w in enumerate(weights.tolist()):
            height, x = max(1.0, tall * w / weights.max().item()), left + step * i
            if i in keys:
                d.matrix(x, base - height, 0.6 * step, height, role="key")
            else:
                d.path(f"M{x:.1f} {base}v{-height:.1f}h{0.6 * step:.1f}v{height:.1f}", dashed=True)
        d.text((334, base - 12), f"{share[name]:.0f} %", anchor="start", small=True)
    d.text((334, 8), "weight kept", anchor="middle", small=True)
    d.text((left, 188), "first word", anchor="start", small=True)
    d.text((left + 232, 188), "last word", anchor="end", small=True)
    return d


def key_mixtures(n: int = 8, r: int = 3) -> Sketch:
    """Draw how Linformer mixes ``n`` keys down to ``r``, with the last key in every mixture.

    Wang et al., *Linformer*, 2020, figure 2.

    Raises:
        ValueError: if ``n`` is not between 4 and 10, or ``r`` is not between 2 and 4.
    """
    if not 4 <= n <= 10 or not 2 <= r <= 4:
        raise ValueError(f"n must be between 4 and 10 and r between 2 and 4, got {n} and {r}")
    d = Sketch(
        402,
        208,
        alt=f"Below, {n} keys in a row. A line leads from each of them to each of {r} mixtures above. The lines of the "
        f"last key are strong: it is in all {r} mixtures. The query of the first token has an arrow to each mixture.",
    )
    keys = [58 + 330 * i / (n - 1) for i in range(n)]
    mixed = [150 + 210 * j / (r - 1) for j in range(r)]
    d.text((1, 176), "keys", anchor="start", small=True)
    d.text((1, 96), "mixtures", anchor="start", small=True)
    for x in keys[:-1]:
        for y in mixed:
            d.line([(x, 166), (y, 107)], fine=True)
    for y in mixed:
        d.line([(keys[-1], 166), (y, 107)], role="query")
    for i, x in enumerate(keys):
        d.box(x - 10, 166, 20, 20, role="query" if i == n - 1 else "key")
    d.text((keys[0], 199), "first", small=True)
    d.text((keys[-1] - 6, 199), "last", small=True)
    asking = d.box(30, 8, 120, 26, "first query")
    for y in mixed:
        mixture = d.box(y - 13, 83, 26, 24, role="key")
        d.arrow((asking.right[0] - 30, 34), mixture.top)
    return d


def state_updates(decay: float = 0.5) -> Sketch:
    """Draw what a state returns for one key under which two values were written, for three update rules.

    Args:
        decay: factor by which the second rule multiplies the state at each step.

    Raises:
        ValueError: if ``decay`` is not between 0 and 1.
    """
    if not 0 <= decay <= 1:
        raise ValueError(f"decay must be between 0 and 1, got {decay}")
    rules = {"add": (1.0, 1.0), f"decay by {decay:g}": (decay, 1.0), "delta rule": (0.0, 1.0)}
    told = "; ".join(
        gettext(f"{name}: {old:g} of the first and {new:g} of the second") for name, (old, new) in rules.items()
    )
    d = Sketch(
        402,
        200,
        alt="Three rows, one for each update rule. After the first value is written, each state returns all of it. "
        f"After a second value is written under the same key, the state returns, for {told}.",
    )
    d.text((176, 8), "after writing $v_1$")
    d.text((318, 8), "after writing $v_2$")
    tall = 32.0
    for r, (name, after) in enumerate(rules.items()):
        base = 60.0 + 58 * r
        d.text((1, base - 16), name, anchor="start")
        for middle, amounts in ((176.0, (1.0, 0.0)), (318.0, after)):
            d.path(f"M{middle - 50} {base}H{middle + 50}", fine=True)
            for offset, amount, label, role in ((-24, amounts[0], "v_1", "value"), (24, amounts[1], "v_2", "output")):
                if not math.isclose(amount, 0):
                    d.matrix(middle + offset - 12, base - tall * amount, 24, tall * amount, role=role)
                d.text((middle + offset, base + 11), f"{amount:g} ${label}$", small=True)
        d.arrow((232, base - 16), (262, base - 16), gap=2)
    return d
