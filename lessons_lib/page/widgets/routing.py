"""The routing explorer: the experts that the words of a story are routed to, their load and their capacity."""

from typing import Any

import torch
import traitlets
from jaxtyping import Float, Int
from torch import Tensor

from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.trained import from_base64, script_data
from lessons_lib.page.widgets.traits import Real, Whole
from lessons_lib.page.widgets.words import say
from lessons_lib.transformer.feedforward import Router, Routing

SCRIPT = "routing_scores.js"
EXPERTS = 8
TEXTS, LENGTH = 6, 28
BALANCES = ["none", "0.01", "0.1", "bias"]
CAPACITIES = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0]
RATE = 0.02


class RoutingExplorer(Explorer):
    r"""See the experts of each word of a story, for routers trained with three kinds of load balancing or without.

    .. math:: \mathcal{T} = \operatorname{top}_k(p + b), \qquad L = E \sum_i f_i\, P_i, \qquad
              \text{at most } \lceil c\, T k / E \rceil \text{ words an expert}

    The routers are those of small GPTs trained on ``lessons_lib.training.stories``, two layers of eight experts each;
    their scores for six stories are stored in eight bits. :class:`lessons_lib.transformer.feedforward.Router` computes
    everything else. No model was trained with a capacity, nor with the bias that is added here, so the predictions of
    the model are not computed.

    Args:
        balance: load balancing in training: ``"none"``, the balance loss times ``"0.01"`` or ``"0.1"``, or a ``"bias"``
            in the selection.
        top_k: number of experts for each word, in training and here.
        layer: the layer whose router is shown.
        story: index of the story, counted from 0.
        words: number of words :math:`T` in the call.
        query: position of the selected word, counted from 0; the last if there are fewer.
        capacity: the capacity factor :math:`c`; at 8, the number of experts, no expert is ever full.
        bias: bias of each expert in the selection, added to the bias from training; none if empty.
        guess: the effective number of experts without load balancing that the reader guessed; 0 before the guess.

    Raises:
        ValueError: if ``balance``, ``top_k``, ``layer`` or ``capacity`` is none of those offered, ``story`` is not in
            0 .. 5, ``words`` not in 2 .. 28, ``query`` not in 0 .. 27, ``guess`` not in 0 .. 8, or ``bias`` neither
            empty nor 8 numbers between -1 and 1.
    """

    script = "routing"
    card = Card(
        title="Which expert gets the word?",
        question="Which experts process which words, and which words find theirs full?",
        sentence=(
            "In the live figure lines join the words to their experts. Load balancing in training, the number of "
            "experts for each word, the capacity of an expert and a bias for each expert can be changed."
        ),
        tries={
            "Two experts for each word": {"top_k": 2},
            "Two experts, capacity 1": {"top_k": 2, "capacity": 1.0},
            "One expert, capacity 1": {"top_k": 1, "capacity": 1.0},
        },
    )

    balance = traitlets.Enum(BALANCES, "0.1").tag(sync=True)
    top_k = traitlets.Enum([1, 2], 1).tag(sync=True)
    layer = traitlets.Enum([1, 2], 1).tag(sync=True)
    story = Whole(0, min=0, max=TEXTS - 1).tag(sync=True)
    words = Whole(LENGTH, min=2, max=LENGTH).tag(sync=True)
    query = Whole(4, min=0, max=LENGTH - 1).tag(sync=True)
    capacity = traitlets.Enum(CAPACITIES, 8.0).tag(sync=True)
    bias = traitlets.List(Real(min=-1.0, max=1.0), maxlen=EXPERTS).tag(sync=True)
    guess = Whole(0, min=0, max=EXPERTS).tag(sync=True)

    @traitlets.validate("bias")
    def _each_has_one(self, proposal: Any) -> list[float]:
        if len(proposal["value"]) not in (0, EXPERTS):
            raise traitlets.TraitError(f"bias must be {EXPERTS} numbers or none, got {len(proposal['value'])}")
        return proposal["value"]

    def routing(self) -> Routing:
        """Return the routing of the words of the call by the library's router, in float64."""
        router = Router(EXPERTS, self.top_k, capacity_factor=self.capacity, renormalise=self.top_k > 1, biased=True)
        given = torch.tensor(self.bias or [0.0] * EXPERTS, dtype=torch.float64)
        router.bias = given + torch.tensor(self._router()["bias"], dtype=torch.float64)
        return router(self.scores())

    def scores(self) -> Float[Tensor, "words experts"]:
        """Return the rounded scores of the router for each word of the call."""
        router = self._router()
        numbers = from_base64(router["scores"], torch.int8)
        of_text = numbers.reshape(TEXTS, LENGTH, EXPERTS)[self.story, : self.words]
        return of_text.double() * router["step"]

    def still(self) -> str:
        """Draw the number of words that select each expert."""
        routing = self.routing()
        asked = counts(routing)
        rows = [
            text(say("expert {i}", i=i + 1), x=64, y=24 * i + 16, anchor="end")
            + element("rect", class_="x-solid", x=72, y=24 * i + 4, width=200 * many / self.words, height=16)
            + text(str(many), x=78 + 200 * many / self.words, y=24 * i + 16)
            for i, many in enumerate(asked.tolist())
        ]
        each = ", ".join(str(many) for many in asked.tolist())
        alt = say(
            "{words} words, choices of the eight experts: {choices}; {dropped} choices dropped",
            words=self.words,
            choices=each,
            dropped=int(routing.dropped.sum()),
        )
        return picture(320, 24 * EXPERTS + 4, alt, *rows)

    def _router(self) -> dict[str, Any]:
        return script_data(SCRIPT)["routers"][f"{self.balance} {self.top_k}"]["layers"][self.layer - 1]


def counts(routing: Routing) -> Int[Tensor, " experts"]:
    """Return how often each expert was selected, dropped words included."""
    return routing.experts.flatten().bincount(minlength=EXPERTS)


def routing_record() -> dict[str, Any]:
    """Return how the routers were trained, and the effect of rounding their scores.

    ``floor`` is the loss of the grammar itself on the held-out words, in nats. ``rounding`` has the largest change of a
    probability, and the number of selections that changed.
    """
    return script_data(SCRIPT)["record"]
