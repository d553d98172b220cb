"""The cost explorer: lower bounds on the time of prefill and decoding, limited by arithmetic or memory."""

import math
from typing import NamedTuple

import traitlets

from lessons_lib.page.widgets.budget import PRESETS, Config, key_value_heads, parts
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import mark, say


class Device(NamedTuple):
    """The peak rates of a device: FLOPs of 16-bit matrix products and bytes of memory, per second."""

    flops: float
    bytes: float


# Dao, FlashAttention-2, 2023, arXiv:2307.08691 (A100); Shah et al., FlashAttention-3, 2024, arXiv:2407.08608 (H100).
DEVICES = {"A100": Device(312e12, 2.0e12), "H100": Device(989e12, 3.35e12)}
PARTS = {"matrices": mark("matrices"), "pairs": mark("pairs"), "weights": mark("weights"), "caches": mark("KV caches")}


class Cost(NamedTuple):
    """FLOPs of products with weights and of pairs of tokens; bytes of weights and of keys and values."""

    matrices: int
    pairs: int
    weights: int
    caches: int


class CostExplorer(Explorer):
    r"""Choose a model, a device and a task; the time for arithmetic and for memory by part, and the roofline, follow.

    .. math:: \text{time} \ge \max(F / r_F,\, B / r_B)

    ``mode`` is ``"read"``, prefill of all ``tokens`` of each text at once, or ``"write"``, decoding of one more token
    for each of ``texts`` texts that have ``tokens`` tokens. A number takes two bytes; weights are read once. Prefill
    computes half of the pairs, because the mask is causal, and its FLOPs do not count the output matrix.

    Raises:
        ValueError: if ``model``, ``device`` or ``mode`` is none of those offered, ``tokens`` is not in
            1 .. 1 048 576, or ``texts`` not in 1 .. 1024.
    """

    script = "cost"
    card = Card(
        title="The cost of prefill and decoding",
        question="Does the device wait for arithmetic, or for memory?",
        sentence=(
            "In the live figure, model, device, task, sequence length and batch size can be changed; two bars show the "
            "time for arithmetic and for memory, and the point of the task can be dragged along the roofline."
        ),
        tries={
            "256 chats of 1024 tokens": {"mode": "write", "tokens": 1024, "texts": 256},
            "256 texts of 128 tokens": {"mode": "write", "tokens": 128, "texts": 256},
            "Prefill of 1024 tokens": {"mode": "read", "tokens": 1024, "texts": 1},
            "Prefill of 131,072 tokens": {"mode": "read", "tokens": 131_072, "texts": 1},
        },
    )

    model = traitlets.Enum(list(PRESETS), "Llama 3 8B").tag(sync=True)
    device = traitlets.Enum(list(DEVICES), "H100").tag(sync=True)
    mode = traitlets.Enum(["read", "write"], "write").tag(sync=True)
    tokens = Whole(1024, min=1, max=1_048_576).tag(sync=True)
    texts = Whole(1, min=1, max=1024).tag(sync=True)

    def seconds(self) -> dict[str, float]:
        """Return the time of each part alone, in seconds, at the peak rates of the device."""
        device, of = DEVICES[self.device], cost(PRESETS[self.model], self.mode, self.tokens, self.texts)
        rates = {"matrices": device.flops, "pairs": device.flops, "weights": device.bytes, "caches": device.bytes}
        return {name: getattr(of, name) / rate for name, rate in rates.items()}

    def still(self) -> str:
        """Draw the time for arithmetic and for memory, and of their parts, on a logarithmic axis."""
        took = self.seconds()
        drawn = []
        for top, words, names in (
            (0, say("arithmetic"), ("matrices", "pairs")),
            (70, say("memory"), ("weights", "caches")),
        ):
            total = sum(took[name] for name in names)
            drawn.append(text(words, x=0, y=top + 11) + text(f"{1e3 * total:.3g} ms", x=316, y=top + 11, anchor="end"))
            drawn.append(element("rect", class_="c-total", x=1, y=top + 16, width=_along(total), height=16))
            for k, name in enumerate(names):
                y = top + 35 + 12 * k
                drawn.append(element("rect", class_=f"x-of-{name}", x=1, y=y, width=_along(took[name]), height=9))
        marks = ((1e-9, "1 ns"), (1e-6, "1 µs"), (1e-3, "1 ms"), (1.0, "1 s"), (1e3, "1000 s"))
        drawn += [text(mark, x=1 + _along(s), y=164, anchor="middle" if s > 1e-9 else "start") for s, mark in marks]
        task = {"read": say("prefill"), "write": say("decoding")}[self.mode]
        alt = ", ".join(f"{say(PARTS[name])} {1e3 * some:.3g} ms" for name, some in took.items())
        axis = element("path", class_="x-axis", d="M1 148H316")
        return picture(
            320,
            170,
            say("{model} on {device}, {task}: {times}", model=self.model, device=self.device, task=task, times=alt),
            axis,
            *drawn,
        )


def _along(seconds: float) -> float:
    """Return where a time lies on the axis of the still picture, from 1 ns to 10 000 s."""
    return round(315 * min(1.0, max(0.0, (math.log10(seconds) + 9) / 13)), 2)


def cost(config: Config, mode: str, tokens: int, texts: int) -> Cost:
    """Return the FLOPs and bytes of a call, as ``cost`` in ``static/cost.math.js``."""
    of, d = parts(config), config.heads * config.head_width
    in_blocks = of["queries"] + of["keys"] + of["feedforward"]
    multiplied = in_blocks + config.vocab * d
    caches = texts * 4 * tokens * config.layers * key_value_heads(config) * config.head_width
    if mode == "read":
        return Cost(texts * 2 * tokens * in_blocks, texts * 2 * tokens**2 * config.layers * d, 2 * multiplied, caches)
    return Cost(texts * 2 * multiplied, texts * 4 * tokens * config.layers * d, 2 * multiplied, caches)
