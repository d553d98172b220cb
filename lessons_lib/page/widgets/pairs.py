"""The pairs explorer: seven kinds of efficient attention, and their error on a trained head."""

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from lessons_lib.attention.attention import attention
from lessons_lib.attention.rules import Causal, Rule
from lessons_lib.efficient.linear import linear_attention
from lessons_lib.efficient.performer import performer_attention
from lessons_lib.page.widgets.arithmetic import normal, uniform
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.gpt import language_model
from lessons_lib.page.widgets.reach import MASKS, PATTERN_NAMES, N, cells, pattern_rule
from lessons_lib.page.widgets.trained import HEADS
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import mark, say
from lessons_lib.training.stories import encode

TEXT = (
    "the young men near these kings sing . then they sing . then they see themselves and follow two quiet birds . "
    "they sleep . they chase this boy . this brave girl beside the birds sings . then she follows the woman . "
    "she waits . then she dances . then she hears the women . she waits ."
)
WIDTH = 16
FEATURES = [4, 8, 16, 32, 64, 128, 256]
METHODS = [*MASKS, "linformer", "linear", "performer"]
NAMES = {
    **PATTERN_NAMES,
    "linformer": mark("Linformer"),
    "linear": mark("linear, elu + 1"),
    "performer": mark("Performer"),
}
GUESSES = ["1.3", "2.4", "both", "neither"]


class Vectors(NamedTuple):
    """Queries, keys and values of one head, or of all eight."""

    q: Float[Tensor, "*heads n d"]
    k: Float[Tensor, "*heads n d"]
    v: Float[Tensor, "*heads n d"]


class PairsExplorer(Explorer):
    r"""Choose a kind of efficient attention; its pairs, its weights and the error of a trained head's output follow.

    .. math:: \text{error} = \frac{\lVert O - \hat O \rVert_F}{\lVert O \rVert_F}

    The heads are those of :class:`GPTExplorer`'s model, with its queries, keys and values of width 16 on 60 words of a
    story. Nothing is retrained for the cheaper computation. Masks are those of :mod:`lessons_lib.attention.rules`, the
    other methods those of :mod:`lessons_lib.efficient`. Linformer's projections are mean pooling over neighbours, which
    its authors name as one possible choice.

    Args:
        way: ``"window"``, ``"dilated"``, ``"longformer"`` (window and global tokens), ``"bigbird"`` (these and
            random keys), ``"linformer"``, ``"linear"`` or ``"performer"``.
        window: number of visible keys to each side, the query's own position included.
        step: step between the keys of a dilated window.
        n_global: number of global tokens at the beginning, which attend to all words and are visible to all.
        n_random: number of random keys for each query.
        r: number of random features of Performer, and number of rows to which Linformer projects keys and values, at
            most 60 of these.
        head: of ``1.1`` to ``2.4``.
        causal: apply the causal mask, as in training. Without it exact attention is not masked either, although the
            head was trained with the mask. Linformer is never masked here.
        seed: seed of the random keys of BigBird and the random features of Performer.
        guess: the heads, of 1.3 and 2.4, for which the reader expects a window of 8 to have a smaller error than 64
            random features: ``"1.3"``, ``"2.4"``, ``"both"`` or ``"neither"``; None before.

    Raises:
        ValueError: if ``way``, ``r``, ``head`` or ``guess`` is none of those offered, ``window`` not in 1 .. 60,
            ``step`` not in 1 .. 8, ``n_global`` not in 0 .. 8, ``n_random`` not in 0 .. 16, or ``seed``
            not in 0 .. 999.
    """

    script = "pairs"
    card = Card(
        title="A trained head with fewer pairs",
        question="How much does the output of a head change when fewer pairs are computed?",
        sentence=(
            "In the live figure you choose a method that computes fewer pairs, its budget and a trained head. It shows "
            "the attention weights beside the exact ones, and the error of the output."
        ),
        tries={
            "Longformer without a causal mask": {"way": "longformer", "window": 4, "n_global": 1, "causal": False},
            "BigBird": {"way": "bigbird", "window": 4, "n_global": 1, "n_random": 3},
            "Performer, 64 features": {"way": "performer", "r": 64},
        },
    )

    way = traitlets.Enum(METHODS, "window").tag(sync=True)
    window = Whole(8, min=1, max=N).tag(sync=True)
    step = Whole(2, min=1, max=8).tag(sync=True)
    n_global = Whole(1, min=0, max=8).tag(sync=True)
    n_random = Whole(3, min=0, max=16).tag(sync=True)
    r = traitlets.Enum(FEATURES, 16).tag(sync=True)
    head = traitlets.Enum(HEADS, "2.4").tag(sync=True)
    causal = traitlets.Bool(True).tag(sync=True)
    seed = Whole(0, min=0, max=999).tag(sync=True)
    guess = traitlets.Enum(GUESSES, None, allow_none=True).tag(sync=True)

    @property
    def is_causal(self) -> bool:
        """Whether the causal mask is applied; Linformer is never masked here."""
        return self.causal and self.way != "linformer"

    def rule(self) -> Rule | None:
        """Return the computed pairs as a rule of the library; None for methods that compute no pairs."""
        if self.way not in MASKS:
            return None
        return pattern_rule(self.way, self.window, self.step, self.n_global, self.n_random, self.causal, self.seed)

    def exact(self) -> Float[Tensor, "n d"]:
        """Return the output of exact attention for each word."""
        return attention(*head_vectors(self.head), Causal().to_mask(N) if self.is_causal else None)

    def output(self) -> Float[Tensor, "n d"]:
        """Return the output of the efficient method."""
        return self._attend(*head_vectors(self.head))

    def weights(self) -> Float[Tensor, "n n"]:
        """Return the weights with which the efficient method averages the values."""
        q, k, _ = head_vectors(self.head)
        return self._attend(q, k, torch.eye(N, dtype=q.dtype))

    def error(self) -> float:
        """Return the relative error of the output in the Frobenius norm."""
        exact = self.exact()
        return ((self.output() - exact).norm() / exact.norm()).item()

    def still(self) -> str:
        """Draw the computed pairs, or the shapes that replace them, and write the error."""
        rule, side = self.rule(), 4
        if rule is None:
            r = {"linformer": min(self.r, N), "linear": WIDTH, "performer": self.r}[self.way]
            unit = side * N / (N + r + 2)
            shapes = [(0, unit * (r + 2), unit * r, unit * N), (unit * (r + 2), 0, unit * N, unit * r)]
            drawn = [element("rect", class_="x-may", x=x, y=y, width=w, height=h) for x, y, w, h in shapes]
            alt = say(
                "{method}: no pair is computed; {r} numbers for each of {n} words stand for them; error of head "
                "{head}: {error}",
                method=say(NAMES[self.way]),
                r=r,
                n=N,
                head=self.head,
                error=f"{self.error():.2f}",
            )
        else:
            allowed = rule.to_mask(N)
            drawn = [element("path", class_="x-may", d=cells(allowed, side))]
            alt = say(
                "{method}: {computed} of {pairs} pairs are computed; error of head {head}: {error}",
                method=say(NAMES[self.way]),
                computed=int(allowed.sum()),
                pairs=N * N,
                head=self.head,
                error=f"{self.error():.2f}",
            )
        ground = element("rect", class_="x-ground", x=0, y=0, width=side * N, height=side * N)
        return picture(300, side * N + 20, alt, ground, *drawn, text(say("rows: queries, columns: keys"), x=0, y=256))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.way == "linformer":
            pool = pooling_matrix(min(self.r, N))
            return attention(q, pool @ k, pool @ v)
        if self.way == "linear":
            return linear_attention(q, k, v, causal=self.causal)
        if self.way == "performer":
            omega = orthogonal_features(self.r, self.seed)
            return performer_attention(q, k, v, projection=omega, causal=self.causal)
        rule = self.rule()
        return attention(q, k, v, None if rule is None else rule.to_mask(N))


def head_vectors(head: str, words: str = TEXT) -> Vectors:
    """Return the queries, keys and values of a head of the model on a text, in float64."""
    index = HEADS.index(head)
    return Vectors(*(part[index % 4].clone() for part in _of_layers(words)[index // 4]))


@cache
def _of_layers(words: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return the queries, keys and values of the heads of each layer; cached, because the text is fixed."""
    model, taken = language_model().double(), []

    def keeping(q: Tensor, k: Tensor, v: Tensor, *rest: object, **options: object) -> Tensor:
        taken.append((q[0], k[0], v[0]))
        return attention(q, k, v, *rest, **options)  # type: ignore[arg-type]

    for block in model.blocks:
        block.attention.sublayer.implementation = keeping  # type: ignore[union-attr]
    with torch.no_grad():
        model(encode(words)[None])
    return taken


def pooling_matrix(r: int) -> Float[Tensor, "r n"]:
    """Return the mean-pooling matrix from the words to ``r`` rows."""
    edges = [i * N // r for i in range(r + 1)]
    rows = torch.zeros(r, N, dtype=torch.float64)
    for i, (start, stop) in enumerate(pairwise(edges)):
        rows[i, start:stop] = 1 / (stop - start)
    return rows


def orthogonal_features(r: int, seed: int) -> Float[Tensor, "r d"]:
    """Return the matrix of ``performer.orthogonal_projection`` for the numbers that the script draws from the seed."""
    random, groups = uniform(seed), -(-r // WIDTH)
    numbers = torch.tensor([normal(random) for _ in range((groups * WIDTH + r) * WIDTH)], dtype=torch.float64)
    square, rows = numbers.split([groups * WIDTH * WIDTH, r * WIDTH])
    q, upper = torch.linalg.qr(square.reshape(groups, WIDTH, WIDTH))
    rotated = q * upper.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    return rows.reshape(r, WIDTH).norm(dim=-1, keepdim=True) * rotated.flatten(0, 1)[:r]
