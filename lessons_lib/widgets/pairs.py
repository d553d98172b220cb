"""The pairs explorer: seven ways to compute fewer pairs, and how near each comes to exact attention of a head."""

from functools import cache
from itertools import islice, pairwise
from typing import NamedTuple

import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from lessons_lib.attention import attention
from lessons_lib.efficient.linear import linear_attention
from lessons_lib.efficient.performer import performer_attention
from lessons_lib.rules import Causal, Dilated, GlobalTokens, Rule, Table, Window
from lessons_lib.stories import encode
from lessons_lib.widgets.arithmetic import normal, uniform
from lessons_lib.widgets.drawing import element, picture, runs, text
from lessons_lib.widgets.explorer import Card, Explorer
from lessons_lib.widgets.gpt import language_model
from lessons_lib.widgets.trained import HEADS
from lessons_lib.widgets.traits import Whole

TEXT = (
    "the young men near these kings sing . then they sing . then they see themselves and follow two quiet birds . "
    "they sleep . they chase this boy . this brave girl beside the birds sings . then she follows the woman . "
    "she waits . then she dances . then she hears the women . she waits ."
)
N = len(TEXT.split())
WIDTH = 16
FAR = 4096
FEATURES = [4, 8, 16, 32, 64, 128, 256]
MASKS = ["window", "dilated", "longformer", "bigbird"]
METHODS = [*MASKS, "linformer", "linear", "performer"]
NAMES = {
    "window": "window",
    "dilated": "dilated window",
    "longformer": "Longformer",
    "bigbird": "BigBird",
    "linformer": "Linformer",
    "linear": "linear, elu + 1",
    "performer": "Performer",
}
GUESSES = ["1.3", "2.4", "both", "neither"]


class Vectors(NamedTuple):
    """Queries, keys and values of one head, or of the eight."""

    q: Float[Tensor, "*heads n d"]
    k: Float[Tensor, "*heads n d"]
    v: Float[Tensor, "*heads n d"]


class PairsExplorer(Explorer):
    r"""Choose how to compute fewer pairs: which are left, what it costs, and how far a trained head's output moves.

    .. math:: \text{error} = \frac{\lVert O - \hat O \rVert_F}{\lVert O \rVert_F}

    The heads are those of :class:`GPTExplorer`'s model, on 60 words of a story: its own queries, keys and values, width
    16. Nothing is trained again for the cheaper way. Masks are those of :mod:`lessons_lib.rules`, the others those of
    :mod:`lessons_lib.efficient`; Linformer's matrices average neighbours: mean pooling, which its authors name among
    other choices.

    Args:
        way: ``"window"``, ``"dilated"``, ``"longformer"`` (window and global words), ``"bigbird"`` (these and random
            ones), ``"linformer"``, ``"linear"`` or ``"performer"``.
        window: number of keys to each side that is visible, the query's own included.
        step: step between the keys of a dilated window.
        n_global: how many words at the beginning see all and are seen by all.
        n_random: how many other words each one draws.
        r: how many random features Performer has, and to how many mixtures Linformer averages keys and values, at
            most 60 of these.
        head: of ``1.1`` to ``2.4``.
        causal: hide what comes after a word, as in training. Without it exact attention sees all as well: queries and
            keys that the head has, put to a use that it was not trained for. Linformer hides nothing here.
        layers: how many layers the reach is counted for.
        seed: of what BigBird and Performer draw.
        guess: for which of the heads 1.3 and 2.4 the reader expects a window of 8 to come nearer than 64 random
            features: ``"1.3"``, ``"2.4"``, ``"both"`` or ``"neither"``; None before.

    Raises:
        ValueError: if ``way``, ``r``, ``head`` or ``guess`` is none of those offered, ``window`` not in 1 .. 60,
            ``step`` or ``layers`` not in 1 .. 8, ``n_global`` not in 0 .. 8, ``n_random`` not in 0 .. 16, or ``seed``
            not in 0 .. 999.
    """

    script = "pairs"
    card = Card(
        title="A budget of pairs",
        question="Which pairs can a head do without, and what does it cost to look at none?",
        sentence=(
            "In the live figure a way to compute fewer pairs is chosen, with its budget and a trained head; the pairs "
            "that are left, the weights beside the exact ones, and the error of the output follow."
        ),
    )

    way = traitlets.Enum(METHODS, "window").tag(sync=True)
    window = Whole(8, min=1, max=N).tag(sync=True)
    step = Whole(2, min=1, max=8).tag(sync=True)
    n_global = Whole(1, min=0, max=8).tag(sync=True)
    n_random = Whole(3, min=0, max=16).tag(sync=True)
    r = traitlets.Enum(FEATURES, 16).tag(sync=True)
    head = traitlets.Enum(HEADS, "2.4").tag(sync=True)
    causal = traitlets.Bool(True).tag(sync=True)
    layers = Whole(2, min=1, max=8).tag(sync=True)
    seed = Whole(0, min=0, max=999).tag(sync=True)
    guess = traitlets.Enum(GUESSES, None, allow_none=True).tag(sync=True)

    @property
    def is_causal(self) -> bool:
        """Whether later words are hidden: Linformer, as here, hides nothing."""
        return self.causal and self.way != "linformer"

    def rule(self) -> Rule | None:
        """Return which pairs are computed, as a rule of the library; None where features stand for them."""
        if self.way not in MASKS:
            return None
        rule: Rule = Dilated(self.window, self.step) if self.way == "dilated" else Window(self.window)
        if self.way in {"longformer", "bigbird"}:
            rule = rule | GlobalTokens(range(self.n_global))
        if self.way == "bigbird":
            fixed = rule.tensor(N)
            drawn = draws(self.seed, N, N).masked_fill(fixed, -1.0).topk(self.n_random).indices
            rule = Table(fixed.scatter(-1, drawn, True))
        return rule & Causal() if self.causal else rule

    def exact(self) -> Float[Tensor, "n d"]:
        """Return what exact attention of the head gives for each word."""
        return attention(*vectors(self.head), Causal().tensor(N) if self.is_causal else None)

    def output(self) -> Float[Tensor, "n d"]:
        """Return what the cheaper way gives."""
        return self._attend(*vectors(self.head))

    def weights(self) -> Float[Tensor, "n n"]:
        """Return the weights with which it averages the values."""
        q, k, _ = vectors(self.head)
        return self._attend(q, k, torch.eye(N, dtype=q.dtype))

    def error(self) -> float:
        """Return how far the output lies from the exact one, relative to it."""
        exact = self.exact()
        return ((self.output() - exact).norm() / exact.norm()).item()

    def still(self) -> str:
        """Draw the pairs, or what stands for them, and say the error."""
        rule, side = self.rule(), 4
        if rule is None:
            r = {"linformer": min(self.r, N), "linear": WIDTH, "performer": self.r}[self.way]
            unit = side * N / (N + r + 2)
            shapes = [(0, unit * (r + 2), unit * r, unit * N), (unit * (r + 2), 0, unit * N, unit * r)]
            drawn = [element("rect", class_="x-may", x=x, y=y, width=w, height=h) for x, y, w, h in shapes]
            said = f"no pair is computed; {r} numbers for each of {N} words stand for them"
        else:
            allowed = rule.tensor(N)
            cells = "".join(
                f"M{side * start} {side * i}h{side * (stop - start)}v{side}H{side * start}z"
                for i, row in enumerate(allowed.tolist())
                for start, stop in runs(row)
            )
            drawn = [element("path", class_="x-may", d=cells)]
            said = f"{int(allowed.sum())} of {N * N} pairs are computed"
        ground = element("rect", class_="x-ground", x=0, y=0, width=side * N, height=side * N)
        said = f"{NAMES[self.way]}: {said}; error of head {self.head}: {self.error():.2f}"
        return picture(300, side * N + 20, said, ground, *drawn, text("down: reads, across: is read", x=0, y=256))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.way == "linformer":
            pool = pooling(min(self.r, N))
            return attention(q, pool @ k, pool @ v)
        if self.way == "linear":
            return linear_attention(q, k, v, causal=self.causal)
        if self.way == "performer":
            omega = directions(self.r, self.seed)
            return performer_attention(q, k, v, projection=omega, causal=self.causal)
        rule = self.rule()
        return attention(q, k, v, None if rule is None else rule.tensor(N))


def vectors(head: str, words: str = TEXT) -> Vectors:
    """Return the queries, keys and values of a head of the model on a text, in float64."""
    index = HEADS.index(head)
    return Vectors(*(part[index % 4].clone() for part in _of_layers(words)[index // 4]))


@cache
def _of_layers(words: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The queries, keys and values of each layer's heads: what the model reads does not change."""
    model, taken = language_model().double(), []

    def keeping(q: Tensor, k: Tensor, v: Tensor, *rest: object, **options: object) -> Tensor:
        taken.append((q[0], k[0], v[0]))
        return attention(q, k, v, *rest, **options)  # type: ignore[arg-type]

    for block in model.blocks:
        block.attention.sublayer.implementation = keeping  # type: ignore[union-attr]
    with torch.no_grad():
        model(encode(words)[None])
    return taken


def pooling(r: int) -> Float[Tensor, "r n"]:
    """Return the matrix that averages neighbours, to ``r`` mixtures of the words."""
    edges = [i * N // r for i in range(r + 1)]
    rows = torch.zeros(r, N, dtype=torch.float64)
    for i, (start, stop) in enumerate(pairwise(edges)):
        rows[i, start:stop] = 1 / (stop - start)
    return rows


def directions(r: int, seed: int) -> Float[Tensor, "r d"]:
    """Return what ``performer.orthogonal_projection`` makes of the numbers that the script draws from the seed."""
    random, groups = uniform(seed), -(-r // WIDTH)
    numbers = torch.tensor([normal(random) for _ in range((groups * WIDTH + r) * WIDTH)], dtype=torch.float64)
    square, rows = numbers.split([groups * WIDTH * WIDTH, r * WIDTH])
    q, upper = torch.linalg.qr(square.reshape(groups, WIDTH, WIDTH))
    rotated = q * upper.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    return rows.reshape(r, WIDTH).norm(dim=-1, keepdim=True) * rotated.flatten(0, 1)[:r]


def draws(seed: int, rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """Return the numbers in (0, 1) that the script draws from the seed."""
    return torch.tensor(list(islice(uniform(seed), rows * columns)), dtype=torch.float64).reshape(rows, columns)
