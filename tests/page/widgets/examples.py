"""One example of every explorer, for the tests that every explorer must pass."""

from copy import deepcopy
from functools import partial

from lessons_lib.page.widgets import (
    BirthExplorer,
    BudgetExplorer,
    ClocksExplorer,
    CollapseExplorer,
    CostExplorer,
    GPTExplorer,
    GraphExplorer,
    HeadsExplorer,
    MasksExplorer,
    MergesExplorer,
    PairsExplorer,
    PatchesExplorer,
    PatternExplorer,
    PlaneExplorer,
    ReachExplorer,
    RecallExplorer,
    RetrievalExplorer,
    RoutingExplorer,
    ScalingExplorer,
    StepsExplorer,
    StretchExplorer,
    TemperatureExplorer,
    TilesExplorer,
    WalkExplorer,
)

# How each is made, and another value for each of its traits.
EXAMPLES = [
    (
        partial(TemperatureExplorer, scores=[2.0, 1.5, -1.0], labels=["cat", "dog", "the"], temperature=0.5),
        {"scores": [1.0, 0.0, 3.0], "labels": ["a", "b", "c"], "temperature": 7.0},
    ),
    (
        partial(ScalingExplorer, width=128, n_keys=8, scaling="1", seed=5),
        {"width": 2, "n_keys": 5, "scaling": "1/d", "seed": 6},
    ),
    (
        partial(MasksExplorer, n=6, parts=["sliding_window 2", "| dilated 3 2", "| random_sparse 0.2 1"], layers=2),
        {"n": 9, "parts": ["block 3"], "layers": 5, "painted": [[0, 3, 1], [1, 1, 0]]},
    ),
    (
        partial(PlaneExplorer, query=[1.2, 0.9], key=[[1.8, 0.4], [-0.6, 1.7]]),
        {
            "query": [-1.0, 0.5],
            "key": [[0.5, 1.0], [1.5, -1.0]],
            "value": [[1.0, 0.0], [0.0, -2.0]],
            "temperature": 4.0,
            "similarity": "cosine",
        },
    ),
    (
        partial(WalkExplorer, n=6, start=3, layers=3, temperature=0.7, residual=0.25),
        {
            "n": 9,
            "start": 1,
            "layers": 5,
            "causal": True,
            "temperature": 2.0,
            "residual": 0.5,
            "same": True,
            "seed": 3,
        },
    ),
    (
        partial(ClocksExplorer, query=20, key=12, shift=5, back=3, base=1000.0, scaling="ntk", factor=3.0),
        {
            "query": 40,
            "key": 11,
            "shift": 300,
            "back": 7,
            "base": 500_000.0,
            "scaling": "interpolation",
            "factor": 6.5,
        },
    ),
    (
        partial(CollapseExplorer, depth=5, residual=0.5, temperature=0.7),
        {"depth": 9, "residual": 0.8, "temperature": 2.0, "norm": "before", "causal": True, "seed": 4},
    ),
    (
        partial(
            BudgetExplorer, layers=5, heads=8, head_width=48, group=2, eighths=20, vocab=9990, tied=False, tokens=77
        ),
        {
            "kind": "qwen3",
            "layers": 7,
            "heads": 12,
            "head_width": 96,
            "group": 4,
            "eighths": 28,
            "vocab": 5000,
            "tied": True,
            "tokens": 1000,
        },
    ),
    (
        partial(CostExplorer, "GPT-2 XL", "A100", "read", 300, 5),
        {"model": "Qwen3 8B", "device": "H100", "mode": "write", "tokens": 5000, "texts": 40},
    ),
    (
        partial(TilesExplorer, n=7, block_q=3, block_k=2, step=9),
        {
            "n": 8,
            "block_q": 4,
            "block_k": 3,
            "is_causal": True,
            "order": "rising",
            "rescale": False,
            "memory": 64,
            "step": 4,
            "seed": 6,
        },
    ),
    (
        partial(HeadsExplorer, words="the king near two cats waits .", query=4, off=["2.3"]),
        {"words": "a tired bird that these dogs follow sings", "query": 2, "off": ["1.1", "1.4"]},
    ),
    (
        partial(
            RetrievalExplorer, query=[-1.2, -1.6], key=[[0.0, 1.0], [1.0, 0.0]], value=[3.0, 12.0], labels=["N", "E"]
        ),
        {
            "query": [3.0, 0.5],
            "key": [[0.5, 1.0], [1.0, -1.0]],
            "value": [-10.0, 12.5],
            "labels": ["north", "east"],
        },
    ),
    (
        partial(GPTExplorer, "the king", 1, [], 1.2, 40, 0.9, 5, "stories", "The"),
        {
            "words": "a tired bird that these dogs follow sings",
            "query": 2,
            "off": ["1.1", "1.4"],
            "temperature": 0.6,
            "top_k": 7,
            "top_p": 0.5,
            "seed": 8,
            "model": "english",
            "text": "If the o",
        },
    ),
    (
        partial(BirthExplorer, step=120, symbols="LUMBERJACKLUMBERJACKL", query=14, hide=["values"], guess=80),
        {
            "step": 50,
            "symbols": "ABCDEFGHABCDEFGHABCD77",
            "query": 3,
            "hide": ["queries", "keys"],
            "forced": True,
            "guess": 200,
        },
    ),
    (
        partial(PatternExplorer, "the king near two cats", 4, ["2.3"], "2.4", "1.2"),
        {
            "words": "the horses that a boy likes sing",
            "query": 1,
            "off": ["1.2", "2.4"],
            "head": "1.3",
            "guess": "2.1",
        },
    ),
    (
        partial(RoutingExplorer, "none", 2, 1, 2, 20, 7, 1.5, guess=3),
        {
            "balance": "bias",
            "top_k": 1,
            "layer": 2,
            "story": 4,
            "words": 9,
            "query": 3,
            "capacity": 0.75,
            "bias": [0.5, -0.5, 0.0, 0.0, 0.1, 0.0, 0.0, -0.2],
            "guess": 6,
        },
    ),
    (
        partial(PairsExplorer, "bigbird", 5, 3, 2, 4, 32, "2.1", seed=3),
        {
            "guess": "2.4",
            "window": 9,
            "step": 5,
            "n_global": 4,
            "n_random": 6,
            "r": 64,
            "head": "1.2",
            "causal": False,
            "seed": 7,
            "way": "performer",
        },
    ),
    (
        partial(ReachExplorer, "bigbird", 5, 3, 2, 4, seed=3),
        {
            "window": 9,
            "n_global": 4,
            "n_random": 6,
            "layers": 3,
            "causal": False,
            "seed": 7,
            "way": "dilated",
            "step": 5,
        },
    ),
    (
        partial(RecallExplorer, 8, "delta"),
        {"pairs": 32, "kind": "sum", "steps": 3200},
    ),
    (
        partial(StretchExplorer, 5000.0, 16, "yarn", 6.0, 300, 3, guess="ntk"),
        {
            "base": 90.0,
            "width": 8,
            "method": "interpolation",
            "factor": 2.5,
            "length": 100,
            "clock": 5,
            "practised": True,
            "guess": "none",
        },
    ),
    (
        partial(PatchesExplorer, 12, 2, "shuffled", 7, guess="fewer"),
        {
            "digit": 3,
            "size": 4,
            "pixels": "in order",
            "query": 2,
            "ink": [0, 16, 5, 0] * 16,
            "guess": "alike",
        },
    ),
    (
        partial(GraphExplorer, "club", "dot", 2, 8, "label", [], [[0, 0]], 0.7, 1, 3),
        {
            "score": "gatv2",
            "head": 1,
            "node": 5,
            "alpha": 0.3,
            "labels": [[4, 1], [30, 0]],
            "edits": [[3, 30]],
            "hand": "edge",
            "graph": "dictionary",
            "deal": 4,
            "guess": 7,
            "places": [[3, 100, 200]],
        },
    ),
    (
        partial(StepsExplorer, words=["a", "sat"], scores=[[2.0, 0.0], [3.0, 0.0]], values=[4.0, 1.0], query=1, step=4),
        {
            "words": ["the", "sat"],
            "scores": [[2.0, 0.0], [1.0, -1.0]],
            "values": [0.0, 2.0],
            "query": 0,
            "step": 2,
        },
    ),
    (
        partial(MergesExplorer, "café in Switzerland, 1997", 300),
        {"text": "strawberry", "merges": 7},
    ),
]

BY_NAME = {make.func.__name__: (make, others) for make, others in EXAMPLES}
NAMES = list(BY_NAME)


def example(name):
    """A new explorer of that name."""
    return BY_NAME[name][0]()


def changes(name):
    """Another value for each of its traits."""
    return deepcopy(BY_NAME[name][1])
