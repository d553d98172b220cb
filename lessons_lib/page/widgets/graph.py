"""The graph explorer: attention weights of three kinds of graph attention, and label propagation."""

from typing import Any

import torch
import traitlets
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.applications.graphs import (
    SCORE_KINDS,
    add_self_loops,
    dot_scores,
    gat_scores,
    gatv2_scores,
    propagate_labels,
)
from lessons_lib.attention.softmax import softmax
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.trained import from_base64, script_data
from lessons_lib.page.widgets.traits import Real, Whole
from lessons_lib.page.widgets.words import say

SCRIPT = "graph_heads.js"
MEMBERS = 34
WORDS, DEALS = 8, 6
HEADS, WIDTH = 2, 8


class GraphExplorer(Explorer):
    r"""Select a node to see its attention weights in GAT, GATv2 and dot-product attention; edit edges and labels.

    .. math:: p_u = \operatorname{softmax}_{v \in N(u)}(s_{uv}), \qquad
              F = (1 - \alpha) (I - \alpha \hat A)^{-1} Y

    ``"club"`` is Zachary's karate club: 34 members, with an edge between members who met outside the club. The heads
    are those of the first layer of networks trained with the labels of members 0 and 33 alone. In the ``"dictionary"``
    each of eight query nodes is linked to eight entries, a key and a value, and the heads were trained to return the
    value of the query node's key. The parameters of the scores are stored rounded; weights and labels are computed in
    the page, as by :mod:`lessons_lib.applications.graphs`.

    Args:
        graph: ``"club"`` or ``"dictionary"``.
        score: ``"gat"``, ``"gatv2"`` or ``"dot"``.
        head: head 1 or 2.
        node: the query node, counted from 0; in the dictionary the last query node if there are fewer.
        hand: the effect of a click: select a query (``"query"``), select one end of an ``"edge"``, or set a ``"label"``
            (in the club).
        edits: pairs ``[u, v]``, ``u < v``, whose edge was removed, or added if there was none; entries of the
            dictionary are nodes 8 to 15. A pair that the graph cannot have is ignored.
        labels: pairs of a member and a side, 0 or 1; shown in the club.
        alpha: :math:`\alpha`, the share that a node takes from its neighbours.
        deal: index of one of six dictionaries.
        guess: number of different first choices of eight query nodes in a head of GAT that the reader guessed; 0 before
            the guess.
        places: nodes that the reader moved, ``[u, x, y]``, with their places in a drawing of 340 by 320.

    Raises:
        ValueError: if ``graph``, ``score``, ``head`` or ``hand`` is none of those offered, ``node`` not in 0 .. 33,
            ``edits`` holds a pair twice or not in order, ``labels`` a member twice or another side, ``alpha`` is not in
            0 .. 0.99, ``deal`` not in 0 .. 5, ``guess`` not in 0 .. 8, or ``places`` holds a node twice or a place
            outside the drawing.
    """

    script = "graph"
    card = Card(
        title="Which neighbours does a node attend to?",
        question="Can one head rank the same neighbours differently for different queries?",
        sentence=(
            "In the live figure each node can be the query, with its attention weights in GAT, in GATv2 and by dot "
            "products; edges can be removed and added, and labels of members of the club can be propagated."
        ),
        tries={
            "The dictionary, GATv2": {"graph": "dictionary", "score": "gatv2", "node": 2},
            "The dictionary, dot products": {"graph": "dictionary", "score": "dot", "node": 2},
            "Two labels that spread": {"graph": "club", "labels": [[0, 0], [33, 1]], "hand": "label"},
        },
    )

    graph = traitlets.Enum(["club", "dictionary"], "club").tag(sync=True)
    score = traitlets.Enum(list(SCORE_KINDS), "gat").tag(sync=True)
    head = traitlets.Enum([1, 2], 1).tag(sync=True)
    node = Whole(2, min=0, max=MEMBERS - 1).tag(sync=True)
    hand = traitlets.Enum(["query", "edge", "label"], "query").tag(sync=True)
    edits = traitlets.List(traitlets.List(Whole(min=0, max=MEMBERS - 1), minlen=2, maxlen=2)).tag(sync=True)
    labels = traitlets.List(traitlets.List(Whole(min=0, max=MEMBERS - 1), minlen=2, maxlen=2)).tag(sync=True)
    alpha = Real(0.9, min=0.0, max=0.99).tag(sync=True)
    deal = Whole(0, min=0, max=DEALS - 1).tag(sync=True)
    guess = Whole(0, min=0, max=WORDS).tag(sync=True)
    places = traitlets.List(traitlets.List(Whole(min=0, max=340), minlen=3, maxlen=3)).tag(sync=True)

    @traitlets.validate("edits")
    def _pairs_once(self, proposal: Any) -> list[list[int]]:
        pairs = proposal["value"]
        if any(u >= v for u, v in pairs) or len(set(map(tuple, pairs))) < len(pairs):
            raise traitlets.TraitError(f"edits must be pairs [u, v] with u < v, each once, got {pairs}")
        return pairs

    @traitlets.validate("labels")
    def _one_for_each(self, proposal: Any) -> list[list[int]]:
        pairs = proposal["value"]
        if any(side > 1 for _, side in pairs) or len({u for u, _ in pairs}) < len(pairs):
            raise traitlets.TraitError(f"labels must be [member, 0 or 1], each member once, got {pairs}")
        return pairs

    @traitlets.validate("places")
    def _nodes_once(self, proposal: Any) -> list[list[int]]:
        places = proposal["value"]
        if any(u >= MEMBERS or y > 320 for u, _, y in places) or len({u for u, _, _ in places}) < len(places):
            raise traitlets.TraitError(f"places must be [node, x, y] with y <= 320, each node once, got {places}")
        return places

    def mask(self) -> Bool[Tensor, "n n"]:
        """Return the mask of the graph, with self-loops in the club."""
        club = self.graph == "club"
        n = MEMBERS if club else 2 * WORDS
        mask = torch.zeros(n, n, dtype=torch.bool)
        if club:
            letters = script_data(SCRIPT)["edges"]
            mask[[int(u, 36) for u in letters[::2]], [int(v, 36) for v in letters[1::2]]] = True
        else:
            mask[:WORDS, WORDS:] = True
        for u, v in self.edits:
            if v < n and (club or u < WORDS <= v):
                mask[u, v] = ~mask[u, v]
        return add_self_loops(mask | mask.T) if club else mask

    def weights(self) -> Float[Tensor, "n n"]:
        """Return the attention weights of each node over its neighbours, in float64."""
        return softmax(self.scores(), self.mask())

    def scores(self) -> Float[Tensor, "n n"]:
        """Return the scores of all pairs, with and without an edge, by :mod:`lessons_lib.applications.graphs`."""
        query, key = (self.features() @ self._part(name) for name in "qk")
        if self.score == "dot":
            return dot_scores(query, key)
        if self.score == "gat":  # its queries and keys are stored as their products with a
            return gat_scores(query, key, torch.ones(2, dtype=torch.float64))
        return gatv2_scores(query, key, self._part("a")[0])

    def features(self) -> Float[Tensor, "n d_in"]:
        """Return the features of the nodes: one-hot in the club; in the dictionary a one-hot key and value."""
        if self.graph == "club":
            return torch.eye(MEMBERS, dtype=torch.float64)
        own = torch.eye(WORDS, dtype=torch.float64)
        words, says = ([int(digit) for digit in part] for part in script_data(SCRIPT)["deals"][self.deal])
        return torch.cat([torch.cat([own, 0 * own], -1), torch.cat([own[words], own[says]], -1)])

    def propagated(self) -> Float[Tensor, "n 2"]:
        """Return the propagated labels of each member of the club; self-loops are removed."""
        seeds = torch.zeros(MEMBERS, 2, dtype=torch.float64)
        for u, side in self.labels:
            seeds[u, side] = 1
        mask = self.mask() & ~torch.eye(MEMBERS, dtype=torch.bool)
        return propagate_labels(mask, seeds, alpha=self.alpha)

    def still(self) -> str:
        """Draw the club with the attention weights of one member, or the weights of the dictionary as a matrix."""
        rows = self.weights().tolist()
        if self.graph == "dictionary":
            paths: dict[float, str] = {}
            for i, row in enumerate(rows[:WORDS]):
                for j, weight in enumerate(row[WORDS:]):
                    paths[round(weight, 1)] = paths.get(round(weight, 1), "") + f"M{24 * j} {24 * i}h23v23h-23z"
            cells = [element("path", class_="x-solid", d=d, fill_opacity=shade) for shade, d in sorted(paths.items())]
            return picture(192, 192, say("attention weights of eight queries, down, on eight keys, across"), *cells)
        places, sides = (script_data(SCRIPT)[name] for name in ("places", "sides"))
        places = places[:]
        for u, x, y in self.places:
            places[u] = [x, y]
        at = [f"{x} {y}" for x, y in places]
        given = {v: weight for v, weight in enumerate(rows[self.node]) if weight}
        edges = "".join(f"M{at[u]}L{at[v]}" for u, v in self.mask().triu(1).nonzero().tolist())
        drawn = [element("path", class_="x-axis", d=edges)]
        for v, weight in given.items():
            width = f"stroke-width:{1 + 12 * weight:.1f}"
            drawn.append(element("path", class_="x-line x-second", d=f"M{at[self.node]}L{at[v]}", style=width))
        for side, cap in (("0", "round"), ("1", "square")):
            dots = "".join(f"M{place}h0" for place, own in zip(at, sides, strict=True) if own == side)
            drawn.append(element("path", class_="x-line x-first", d=dots, stroke_linecap=cap, style="stroke-width:14"))
        drawn += [text(str(v + 1), x=places[v][0] + 9, y=places[v][1] - 6) for v in given]
        alt = ", ".join(f"{v + 1} ({weight:.2f})" for v, weight in given.items())
        return picture(
            340,
            320,
            say("member {member} of the karate club attends to {others}", member=self.node + 1, others=alt),
            *drawn,
        )

    def _part(self, name: str) -> Float[Tensor, "rows width"]:
        step, packed = script_data(SCRIPT)["heads"][self.graph][self.score][name]
        width, kind = (1, torch.int16) if self.score == "gat" else (WIDTH, torch.int8)
        return step * from_base64(packed, kind).double().reshape(-1, HEADS, width)[:, self.head - 1]


def graph_record() -> dict[str, Any]:
    """Return how the heads were trained, and their accuracy by score and seed.

    ``right`` is the accuracy on members of the club without a label in training, and on held-out dictionaries.
    ``propagated`` is the accuracy of label propagation in the club.
    """
    return script_data(SCRIPT)["record"]
