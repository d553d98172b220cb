"""Train graph attention on the karate club and on dictionary lookup, and write its first layer as a script.

Two graphs, three kinds of scores and five seeds take half a minute on an idle core. The same seeds on the same machine
give the same numbers. The file has the club's graph with a position for each member on the page, some dictionaries, the
rounded weights that determine the scores of the models with the first seed, and the accuracy with each seed.
"""

import argparse
import gzip
import json
import platform
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from pin_library import library_commit
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, elu, one_hot

from lessons_lib.applications.graphs import SCORE_KINDS, GraphAttention, add_self_loops, propagate_labels
from lessons_lib.page.widgets.graph import DEALS, HEADS, MEMBERS, SCRIPT, WIDTH, WORDS
from lessons_lib.page.widgets.trained import to_base64

TARGET = Path(__file__).resolve().parents[1] / "lessons_lib" / "page" / "widgets" / "static" / SCRIPT
HEAD = "/** A club, some dictionaries, and heads that were trained on them. Written by tools/train_graph.py. */\n"
LEADERS = (0, MEMBERS - 1)
CLUB = {"lr": 0.02, "weight_decay": 5e-4, "dropout": 0.5}
LR, BATCH_SIZE = 0.01, 8  # of the dictionary
ASKED, ASKED_SEED, DEALT_SEED = 200, 10_000, 10_001
SIZE, MARGIN, APART = np.array([340, 320]), 16, 31  # the drawing's size, its margin, and the least distance of nodes


def main() -> None:
    """Train and evaluate the models, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs=2, default=[200, 300], metavar=("CLUB", "DICTIONARY"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="carried is the first")
    parser.add_argument("--out", type=Path, default=TARGET)
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = script(given.seeds, given.steps)
    given.out.write_text(text, encoding="utf-8")
    print(f"{given.out.name}: {len(text)} bytes, {len(gzip.compress(text.encode()))} of them compressed")


# --- the club -------------------------------------------------------------------------------------------------------


def club() -> tuple[Tensor, Tensor]:
    """Return the adjacency matrix of the karate club, and each member's side after its split (Zachary, 1977)."""
    graph = nx.karate_club_graph()
    mask = torch.zeros(MEMBERS, MEMBERS, dtype=torch.bool)
    for u, v in graph.edges:
        mask[u, v] = mask[v, u] = True
    return mask, torch.tensor([int(graph.nodes[u]["club"] == "Officer") for u in graph])


class Network(nn.Module):
    """Two layers of graph attention over the club."""

    def __init__(self, scores: str) -> None:
        super().__init__()
        self.one = GraphAttention(MEMBERS, WIDTH, HEADS, scores=scores)
        self.two = GraphAttention(WIDTH * HEADS, 2, 1, scores=scores)
        self.dropout = nn.Dropout(CLUB["dropout"])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the logits of the two sides for each member."""
        hidden = elu(self.one(self.dropout(x), mask))
        return self.two(self.dropout(hidden), mask)


def on_club(scores: str, seed: int, n_steps: int) -> tuple[GraphAttention, float]:
    """Return the first layer of a network trained on the leaders' sides, and its accuracy on all other members."""
    torch.manual_seed(seed)
    (graph, side), x, known = club(), torch.eye(MEMBERS), list(LEADERS)
    mask, model = add_self_loops(graph), Network(scores)
    optimiser = torch.optim.AdamW(model.parameters(), lr=CLUB["lr"], weight_decay=CLUB["weight_decay"])
    for _ in range(n_steps):
        optimiser.zero_grad()
        cross_entropy(model(x, mask)[known], side[known]).backward()
        optimiser.step()
    with torch.no_grad():
        right = model.eval()(x, mask).argmax(-1) == side
    right[known] = False
    return model.one, right.sum().item() / (MEMBERS - len(known))


def places(mask: Tensor) -> list[list[int]]:
    """Return a position for each node by a force-directed layout, without overlaps."""
    at = np.random.RandomState(4).uniform(-1, 1, (MEMBERS, 2))
    edges = mask.numpy()
    for step in range(600):
        apart = at[:, None] - at[None]
        far = np.sqrt((apart**2).sum(-1)) + 1e-9
        force = apart / far[..., None] * (0.06 / far - edges * far**2)[..., None] - 0.02 * at[:, None]
        moved = force.sum(1)
        length = np.sqrt((moved**2).sum(-1, keepdims=True)) + 1e-9
        at = at + moved / length * np.minimum(length, 0.1 * (1 - step / 600))
    at = (at - at.mean(0)) @ np.linalg.svd(at - at.mean(0))[2].T  # the longer axis is horizontal
    low, high = at.min(0), at.max(0)
    at = MARGIN + (at - low) / (high - low) * (SIZE - 2 * MARGIN)
    for _ in range(400):  # separate nodes that are too close
        apart = at[:, None] - at[None]
        far = np.sqrt((apart**2).sum(-1)) + np.eye(MEMBERS) * 1e9
        at = at + (apart / far[..., None] * np.maximum(APART - far, 0)[..., None]).sum(1) / 4
        at = at.clip(MARGIN, SIZE - MARGIN)
    return at.round().astype(int).tolist()


# --- the dictionary -------------------------------------------------------------------------------------------------


def dealt(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a random dictionary: the word of each entry, every word once, and the entry's value."""
    return torch.randperm(WORDS, generator=generator), torch.randint(WORDS, (WORDS,), generator=generator)


def features(words: Tensor, values: Tensor) -> Tensor:
    """Return the features of eight query nodes, each with its word, and eight entries, each with a word and a value."""
    own = torch.eye(WORDS)
    queries = torch.cat([own, torch.zeros(WORDS, WORDS)], -1)
    return torch.cat([queries, torch.cat([own[words], one_hot(values, WORDS).float()], -1)])


def linked() -> Tensor:
    """Return the mask with an edge from each query node to each entry."""
    mask = torch.zeros(2 * WORDS, 2 * WORDS, dtype=torch.bool)
    mask[:WORDS, WORDS:] = True
    return mask


class Reader(nn.Module):
    """One layer of graph attention that predicts the value of each query node's entry."""

    def __init__(self, scores: str) -> None:
        super().__init__()
        self.one = GraphAttention(2 * WORDS, WIDTH, HEADS, scores=scores)
        self.says = nn.Linear(WIDTH * HEADS, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the values for each query node."""
        return self.says(self.one(x, linked()))[..., :WORDS, :]


def asked(generator: torch.Generator, n: int) -> tuple[Tensor, Tensor]:
    """Return the features of ``n`` random dictionaries, and the correct values."""
    drawn = [dealt(generator) for _ in range(n)]
    answers = torch.stack([values[words.argsort()] for words, values in drawn])
    return torch.stack([features(*one) for one in drawn]), answers


def on_dictionary(scores: str, seed: int, n_steps: int) -> tuple[GraphAttention, float]:
    """Return the layer of a trained reader, and its accuracy on held-out dictionaries."""
    torch.manual_seed(seed)
    model, generator = Reader(scores), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=LR)
    for _ in range(n_steps):
        x, answers = asked(generator, BATCH_SIZE)
        optimiser.zero_grad()
        cross_entropy(model(x).flatten(0, 1), answers.flatten()).backward()
        optimiser.step()
    x, answers = asked(torch.Generator().manual_seed(ASKED_SEED), ASKED)
    with torch.no_grad():
        return model.one, (model(x).argmax(-1) == answers).float().mean().item()


# --- the file -------------------------------------------------------------------------------------------------------


def script(seeds: list[int], n_steps: list[int]) -> str:
    """Return the file's text: the record of training and evaluation, and the models' heads."""
    heads: dict[str, Any] = {}
    right: dict[str, Any] = {}
    graph, side = club()
    for name, train, steps in (("club", on_club, n_steps[0]), ("dictionary", on_dictionary, n_steps[1])):
        models = {kind: [train(kind, seed, steps) for seed in seeds] for kind in SCORE_KINDS}
        heads[name] = {kind: pack_layer(of[0][0]) for kind, of in models.items()}
        right[name] = {kind: [round(share, 4) for _, share in of] for kind, of in models.items()}
    seen = torch.zeros(MEMBERS, 2)
    seen[list(LEADERS), side[list(LEADERS)]] = 1
    spread = (propagate_labels(graph, seen).argmax(-1) == side).sum().item() - len(LEADERS)
    record = {
        "command": f"python tools/train_graph.py --steps {n_steps[0]} {n_steps[1]} --seeds {' '.join(map(str, seeds))}",
        "seeds": seeds,
        "steps": n_steps,
        "right": right,
        "propagated": round(spread / (MEMBERS - len(LEADERS)), 4),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "networkx": nx.__version__},
        "commit": library_commit(),
    }
    generator = torch.Generator().manual_seed(DEALT_SEED)
    deals = [["".join(map(str, part.tolist())) for part in dealt(generator)] for _ in range(DEALS)]
    edges = "".join(np.base_repr(u, 36) + np.base_repr(v, 36) for u, v in graph.triu().nonzero().tolist()).lower()
    carried = {
        "record": record,
        "edges": edges,
        "sides": "".join(map(str, side.tolist())),
        "places": places(graph),
        "deals": deals,
        "heads": heads,
    }
    return f"{HEAD}export const MODEL = {json.dumps(carried).replace('}, ', '},' + chr(10))};\n"


def pack_layer(layer: GraphAttention) -> dict[str, list[Any]]:
    """Return the weights that determine the scores, as integers with a step size, in 8 bits.

    These are the queries and keys of each feature. GAT's scores depend only on their products with the halves of ``a``,
    so for GAT these products are stored, in 16 bits, so that no two nodes have the same rank.
    """
    parts = {"q": layer.w_q.weight.T, "k": layer.w_k.weight.T}
    if layer.scores == "gat":
        assert layer.a is not None
        halves = zip(parts.items(), layer.a.chunk(2, dim=-1), strict=True)
        parts = {name: (part.reshape(-1, HEADS, WIDTH) * half).sum(-1) for (name, part), half in halves}
    elif layer.a is not None:
        parts["a"] = layer.a
    kind = torch.int16 if layer.scores == "gat" else torch.int8
    return {name: rounded(part.detach(), kind) for name, part in parts.items()}


def rounded(numbers: Tensor, kind: torch.dtype) -> list[Any]:
    """Return the step size, and the numbers in multiples of it, encoded as text."""
    step = float(f"{numbers.abs().max().item() / (torch.iinfo(kind).max - 1):.4g}")
    return [step, to_base64((numbers / step).round().to(kind).contiguous())]


if __name__ == "__main__":
    main()
