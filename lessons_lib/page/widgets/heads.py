"""The heads explorer: attention weights of eight trained heads on a sentence, and ablation of each head."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from lessons_lib.analysis.diagnostics import observe
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.trained import HEADS, from_base64, load_model, parse_words, script_data
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import say
from lessons_lib.training.stories import encode
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

LONGEST = 16


class HeadsExplorer(Explorer):
    """Type a sentence and choose a query; see the attention weights of each head of a trained model, and ablate heads.

    The model is causal. It has two layers with four heads each, named ``1.1`` to ``2.4``, embeddings and norms, and no
    feed-forward layers; ``story_model`` returns its weights. It was trained on the sentences of
    ``lessons_lib.training.stories`` and knows only their words. Ablating a head sets its output to zero.

    Args:
        words: 2 to 16 words of ``stories.VOCABULARY``, with single spaces; the full stop is a word.
        query: position of the query, counted from 0; the last word if there are fewer words.
        off: the heads that are ablated.

    Raises:
        ValueError: if the words are not of the vocabulary or not 2 to 16, ``query`` is not in 0 .. 15, or ``off`` names
            an unknown head.
    """

    script = "heads"
    card = Card(
        title="Eight trained heads",
        question="Which head finds the subject, and what becomes of the verb without it?",
        sentence=(
            "In the live figure any sentence of the grammar can be typed; the weights of all eight heads follow, and "
            "the prediction of the next word, with any of the heads switched off."
        ),
        tries={
            "The query “follow”": {"words": "the queen that these dogs follow", "query": 5, "off": []},
            "Without head 1.1": {"words": "the queen that these dogs follow", "query": 5, "off": ["1.1"]},
            "A plural subject": {"words": "the queens that these dogs follow", "query": 5, "off": []},
        },
    )

    words = traitlets.Unicode("the queen that these dogs follow").tag(sync=True)
    query = Whole(5, min=0, max=LONGEST - 1).tag(sync=True)
    off = traitlets.List(traitlets.Enum(HEADS)).tag(sync=True)

    @traitlets.validate("words")
    def _words_are_known(self, proposal: Any) -> str:
        parse_words("words", proposal["value"], at_least=2, at_most=LONGEST)
        return proposal["value"]

    def weights(self) -> Float[Tensor, "8 n n"]:
        """Return the attention weights of the eight heads, in the order of their names."""
        model, tokens = head_model(self.off), encode(self.words)[None]
        with observe(model) as seen, torch.no_grad():
            model(tokens)
        return torch.cat([seen.weights[f"blocks.{layer}.attention.sublayer"][0] for layer in (0, 1)])

    def still(self) -> str:
        """Draw the attention weights of each head at the query."""
        words, weights = self.words.split(), self.weights()
        query = min(self.query, len(words) - 1)
        names = [text(head, x=104 + 27 * i, y=12, anchor="middle") for i, head in enumerate(HEADS)]
        rows = [
            text(word, x=84, y=31 + 20 * j, anchor="end", class_="x-query" if j == query else "")
            for j, word in enumerate(words)
        ]
        cells = [
            element("rect", class_="x-solid", x=92 + 27 * i, y=18 + 20 * j, width=25, height=18, fill_opacity=share)
            for i, head in enumerate(weights[:, query].tolist())
            for j, share in enumerate(head[: query + 1])
        ]
        ground = element("rect", class_="x-ground", x=91, y=17, width=216, height=20 * len(words))
        most = say(", ").join(
            say("{head} to {word}", head=head, word=words[row.argmax()])
            for head, row in zip(HEADS, weights[:, query], strict=True)
        )
        alt = say(
            "attention weights of eight heads from the query {query}; each attends most, {most}",
            query=words[query],
            most=most,
        )
        return picture(308, 20 + 20 * len(words), alt, ground, *names, *rows, *cells)


def story_model() -> dict[str, np.ndarray]:
    """Return the parameters of the model, named as in the state of its ``lessons_lib.transformer.gpt.GPT``.

    Its configuration is ``GPTConfig(72, 16, 32, 2, 4, feedforward="none", norm="rms", bias=False)``, with tied
    embeddings.
    """
    return {
        name: packed["step"] * from_base64(packed["base64"], torch.int8).reshape(packed["shape"]).double().numpy()
        for name, packed in script_data("heads_model.js")["parameters"].items()
    }


def head_model(off: Iterable[str] = ()) -> GPT:
    """Return the model in evaluation mode, with the heads in ``off`` ablated to zero."""
    parameters = {name: torch.tensor(value) for name, value in story_model().items()}
    return load_model(GPTConfig(72, 16, 32, 2, 4, feedforward="none", norm="rms", bias=False), parameters, off)
