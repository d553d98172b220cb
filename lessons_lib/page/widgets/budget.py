"""The budget explorer: parameters of a GPT by part, FLOPs for a token, and bytes of its keys and values."""

from typing import NamedTuple

import traitlets

from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import mark, say

HEADS = [1, 2, 4, 8, 12, 16, 20, 25, 32, 40, 48, 64, 96, 128]
HEAD_WIDTHS = [16, 32, 48, 64, 80, 96, 128, 160, 192, 256]
GROUPS = [1, 2, 4, 8, 16, 32, 64, 128]
POSITIONS = 1024
NAMES = {
    "embedding": mark("embedding"),
    "head": mark("output matrix"),
    "rest": mark("positions, norms, biases"),
    "queries": mark("queries, outputs"),
    "keys": mark("keys, values"),
    "feedforward": mark("feed-forward"),
}
COLUMNS = (("embedding", "head", "rest"), ("queries", "keys"), ("feedforward",))


class Config(NamedTuple):
    """The sizes of a model, named as the traits of the explorer."""

    kind: str
    layers: int
    heads: int
    head_width: int
    group: int
    eighths: int
    vocab: int
    tied: bool


# GPT-2: Radford et al., Language Models are Unsupervised Multitask Learners, 2019, table 2 and section 2.3; the heads
# are those of the files hparams.json published with the weights.
# Llama 3: Llama Team, The Llama 3 Herd of Models, 2024, table 3, arXiv:2407.21783; the vocabulary to the word is that
# of the files on the Hugging Face hub. Qwen3: config.json of Qwen/Qwen3-8B there.
PRESETS = {
    "GPT-2 small": Config("gpt2", 12, 12, 64, 1, 32, 50_257, True),
    "GPT-2 medium": Config("gpt2", 24, 16, 64, 1, 32, 50_257, True),
    "GPT-2 large": Config("gpt2", 36, 20, 64, 1, 32, 50_257, True),
    "GPT-2 XL": Config("gpt2", 48, 25, 64, 1, 32, 50_257, True),
    "Llama 3 8B": Config("llama", 32, 32, 128, 4, 28, 128_256, False),
    "Llama 3 70B": Config("llama", 80, 64, 128, 8, 28, 128_256, False),
    "Qwen3 8B": Config("qwen3", 36, 32, 128, 4, 24, 151_936, False),
}


class BudgetExplorer(Explorer):
    r"""Choose a published model or sizes of your own; its parameters as areas, and its FLOPs and bytes for a token.

    .. math:: N = V d + L \big(2 (h + g)\, d_{\text{head}}\, d + (2 \text{ or } 3)\, d\, d_{\text{ff}}\big) + \dots

    ``kind`` selects the architecture: layer norms, biases, 1024 learned positions and two matrices in a feed-forward
    layer (``"gpt2"``); RMS norms, no biases, rotary positions and three matrices (``"llama"``); the same with norms of
    queries and keys (``"qwen3"``). The width is ``heads * head_width``, that of the feed-forward layer ``eighths / 8``
    times as much. ``group`` query heads share a key/value head, or the next smaller number that divides ``heads``.
    FLOPs count the matrix products for one token that attends to ``tokens`` tokens; bytes count two for each number.

    Raises:
        ValueError: if ``kind``, ``heads``, ``head_width`` or ``group`` is none of those offered, ``layers`` is not in
            1 .. 128, ``eighths`` not in 4 .. 64, ``vocab`` not in 1000 .. 300 000, or ``tokens`` not in 1 .. 131 072.
    """

    script = "budget"
    card = Card(
        title="The budget of a GPT",
        question="Which part of the model has the most weights?",
        sentence=(
            "In the live figure a published model can be chosen and each size changed; the areas are the shares of the "
            "weights, and the FLOPs per token and the size of the KV cache follow."
        ),
        tries={
            "GPT-2 XL": PRESETS["GPT-2 XL"]._asdict(),
            "Llama 3 8B": PRESETS["Llama 3 8B"]._asdict(),
            "Llama 3 8B without grouped heads": {**PRESETS["Llama 3 8B"]._asdict(), "group": 1},
            "Llama 3 70B": PRESETS["Llama 3 70B"]._asdict(),
        },
    )

    kind = traitlets.Enum(["gpt2", "llama", "qwen3"], "gpt2").tag(sync=True)
    layers = Whole(12, min=1, max=128).tag(sync=True)
    heads = traitlets.Enum(HEADS, 12).tag(sync=True)
    head_width = traitlets.Enum(HEAD_WIDTHS, 64).tag(sync=True)
    group = traitlets.Enum(GROUPS, 1).tag(sync=True)
    eighths = Whole(32, min=4, max=64).tag(sync=True)
    vocab = Whole(50_257, min=1000, max=300_000).tag(sync=True)
    tied = traitlets.Bool(True).tag(sync=True)
    tokens = Whole(1024, min=1, max=131_072).tag(sync=True)

    @classmethod
    def of(cls, name: str, tokens: int = 1024) -> "BudgetExplorer":
        """Return the explorer of a published model.

        Raises:
            ValueError: if there is no model of this name.
        """
        if name not in PRESETS:
            raise ValueError(f"name must be one of {', '.join(PRESETS)}, got {name!r}")
        return cls(*PRESETS[name], tokens=tokens)

    def config(self) -> Config:
        """Return the sizes of the model."""
        return Config(*(getattr(self, name) for name in Config._fields))

    def still(self) -> str:
        """Draw the share of each part of the model as an area."""
        of = parts(self.config())
        total, drawn, x = sum(of.values()), [], 0.0
        for column in COLUMNS:
            width, y = 320 * sum(of[name] for name in column) / total, 0.0
            for name in column:
                height = 160 * 320 * of[name] / total / width
                place = {"x": round(x, 2), "y": round(y, 2), "width": round(width, 2), "height": round(height, 2)}
                drawn.append(element("rect", class_=f"x-of-{name}", **place))
                if width > 80 and height > 18:
                    drawn.append(text(say(NAMES[name]), x=round(x + 4, 1), y=round(y + 14, 1)))
                y += height
            x += width
        shares = ", ".join(f"{say(NAMES[name])} {some / total:.0%}" for name, some in of.items() if some)
        return picture(320, 160, say("{total} weights: {shares}", total=f"{total:,}", shares=shares), *drawn)


def key_value_heads(config: Config) -> int:
    """Return the number of key/value heads."""
    return config.heads // max(g for g in GROUPS if g <= config.group and config.heads % g == 0)


def parts(config: Config) -> dict[str, int]:
    """Return the number of parameters of each part, as ``parts`` in ``static/budget.math.js``."""
    g, d = key_value_heads(config), config.heads * config.head_width
    ff, is_gpt2 = config.eighths * d // 8, config.kind == "gpt2"
    biases = (config.heads + 2 * g) * config.head_width + d + ff + d + 4 * d
    gains = 2 * d + (2 * config.head_width if config.kind == "qwen3" else 0)
    return {
        "embedding": config.vocab * d,
        "head": 0 if config.tied else config.vocab * d,
        "rest": POSITIONS * d + config.layers * biases + 2 * d if is_gpt2 else config.layers * gains + d,
        "queries": config.layers * 2 * d * d,
        "keys": config.layers * 2 * g * config.head_width * d,
        "feedforward": config.layers * (2 if is_gpt2 else 3) * d * ff,
    }
