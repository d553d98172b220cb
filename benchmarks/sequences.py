"""Train the rivals of the chapter on sequences, graphs and decisions with three seeds, each at a rate chosen for it.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ. Data and splits are
those of seed 0; rates are chosen on the validation part (:mod:`benchmarks.tuning`). What the lines hold, after the
rate, or alone where a rate is tried:

    speech     vowels wrong for each said: by men and women, by children
    imports    how often the next one is among ten offered
    series     mean absolute error over that of repeating
    code       bits for each letter; brackets right: round near, round far, others near, others far
    graph      accuracy on nodes to choose by, on the rest; a line for each split, without a rate
    dictionary values right, different first choices of eight queries
    corridor   right sides at 16, 32, 64 and 128 steps

One thread, float32. It writes after every rival, and goes on where it was.

``python benchmarks/sequences.py`` writes ``benchmarks/results/sequences.json``, which the chapter reads.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from benchmarks.records import ROOT, Job, defined, record, sources
from benchmarks.tuning import job

CHAPTER = ROOT / "book" / "applications" / "sequences-graphs-decisions.ipynb"
SHARED = "imports", "imports-models", "tools-train", "tools-encoder"
PARTS = {
    "speech": ("speech-sets", "speech-batch", "speech-encoder", "speech-gru", "speech-loss", "speech-error"),
    "imports": ("imports-read", "imports-items", "imports-split", "imports-hits", "imports-models-two"),
    "series": (
        "series-load",
        "series-parts",
        "series-naive",
        "series-model",
        "series-draw",
        "irregular-model",
        "irregular-draw",
        "irregular-error",
    ),
    "code": ("code-texts", "code-codes", "code-bits", "code-brackets", "code-right", "code-model"),
    "graph": ("graph-club", "graph-digits", "graph-split", "graph-model", "graph-accuracy"),
    "dictionary": ("graph-dictionary", "graph-reader", "graph-looked-up"),
    "corridor": ("corridor-make", "corridor-learn", "corridor-models", "corridor-pays"),
}
SPLITS = 10


@cache
def cells(part: str) -> Mapping[str, Any]:
    """What the chapter's cells of a part define, with seed 0."""
    return defined(CHAPTER, (*SHARED, *PARTS[part]), {"SEED": 0})


def wanted() -> list[Job]:
    """All rivals of all parts."""
    return [*series(), *dictionary(), *graph(), *speech(), *imports(), *corridor(), *code()]


def speech() -> list[Job]:
    """A GRU in both directions and an encoder, by CTC; with three times the steps too."""

    def score(model: Any, split: str) -> list[float]:
        error = cells("speech")["speech_error"]
        return [error(model, part) for part in (["val"] if split == "val" else ["test", "children"])]

    rivals = {"GRU": ("RecurrentHearer", (0.003, 0.01)), "encoder": ("Hearer", (0.002, 0.005))}
    return [
        job(f"speech: {name}", *asked("speech", new, "draw_speech", "speech_losses"), score, steps=300, rates=rates,
            longer=3, longer_seeds=(0, 1, 2), smaller_is_better=True)
        for name, (new, rates) in rivals.items()
    ]  # fmt: skip


def imports() -> list[Job]:
    """One causal block, with positions and without; with three times the steps too."""
    return [
        job(f"imports: {position}", *asked("imports", lambda code, p=position: code["recommender"](p), "draw_users",
            "next_token_losses"), lambda model, split: cells("imports")["recommends"](model, split), steps=300,
            rates=(0.003, 0.008), weight_decay=0.05, longer=3, longer_seeds=(0, 1, 2))
        for position in ("learned", "none")
    ]  # fmt: skip


def series() -> list[Job]:
    """A forecaster for each series, one without positions for the sea, and three that are given half of its months."""
    rivals = {name: (name, True) for name in ("sea", "sunspots", "share")} | {"sea, unordered": ("sea", False)}
    shared = {"weight_decay": 0.1, "longer": 0, "smaller_is_better": True}
    irregular = [
        job(f"series: irregular, {clock}", *asked("series", lambda code, c=clock: code["Irregular"](c),
            "draw_irregular", "irregular_distances"),
            lambda model, split: cells("series")["irregular_error"](model, split), steps=300, rates=(0.004,), **shared)
        for clock in ("nothing", "order", "months")
    ]  # fmt: skip
    return irregular + [
        job(f"series: {line}", *asked("series", lambda code, n=name, o=ordered: code["Forecaster"](
            *code["known"][n][1:3], ordered=o), lambda code, n=name: code["draw_windows"](n), "distances"),
            lambda model, split, n=name: cells("series")["scaled_error"](n, split, model), steps=200,
            rates=(0.001, 0.004), weight_decay=0.1, longer=0, smaller_is_better=True)
        for line, (name, ordered) in rivals.items()
    ]  # fmt: skip


def code() -> list[Job]:
    """A GPT for 300 steps, and one for 1800."""

    def score(model: Any, split: str) -> list[float]:
        told = cells("code")
        return [told["bits"](model, split), *(told["coder_brackets"](model) if split == "test" else [])]

    what = (*asked("code", "coder", "draw_code", "next_token_losses"), score)
    settings = {"longer": 0, "smaller_is_better": True}
    return [
        job("code: GPT", *what, steps=300, rates=(0.003, 0.008), **settings),
        job("code: GPT, long", *what, steps=1800, rates=(0.005,), seeds=(0,), **settings),
    ]


def graph() -> list[Job]:
    """Averaging and three kinds of attention, over splits."""
    return [
        ([f"graph: {kind}, {name}, split {s}" for s in range(SPLITS)],
         lambda kind=kind, name=name: [cells("graph")["learns"](kind, name, s) for s in range(SPLITS)])
        for name, kinds in (("club", ("GCN", "GAT", "GATv2", "dot")), ("digits", ("GCN", "GAT"))) for kind in kinds
    ]  # fmt: skip


def dictionary() -> list[Job]:
    """Three scores that are to look a word up."""
    return [
        job(f"dictionary: {kind}", *asked("dictionary", lambda code, k=kind: code["Reader"](k), "dictionaries",
            "answer_losses"), lambda model, split: cells("dictionary")["looked_up"](model, split), steps=300,
            rates=(0.01,), longer=0)
        for kind in ("gat", "gatv2", "dot")
    ]  # fmt: skip


def corridor() -> list[Job]:
    """A GRU and attention, which remember or do not; two layers at a second rate too."""

    def score(policy: Any, split: str) -> list[float]:
        pays = cells("corridor")["pays"]
        return [pays(policy, 16, 61)] if split == "val" else [pays(policy, n) for n in (16, 32, 64, 128)]

    def attentive(position: str, layers: int) -> Any:
        return lambda code: code["attentive"](position, layers)

    rates = (0.001, 0.003, 0.01)
    rivals = {
        "GRU": ("RecurrentPolicy", rates),
        "none, 1 layer": (attentive("none", 1), rates),
        "none, 2 layers": (attentive("none", 2), rates),
        "sinusoidal, 1 layer": (attentive("sinusoidal", 1), rates),
        "none, 2 layers, rate 0.003": (attentive("none", 2), (0.003,)),
    }
    return [
        job(f"corridor: {name}", *asked("corridor", new, "draw_corridors", "reinforce"), score, steps=500,
            rates=tried, longer=0)
        for name, (new, tried) in rivals.items()
    ]  # fmt: skip


def asked(part: str, new: Any, draw: Any, losses: str) -> tuple[Callable, Callable, Callable]:
    """What builds, draws and judges, found among a part's cells when it is called."""

    def named(what: Any) -> Any:
        return cells(part)[what] if isinstance(what, str) else what(cells(part))

    return (
        lambda: named(new)() if isinstance(new, str) else named(new),
        lambda generator: named(draw)(generator),
        lambda model, batch: named(losses)(model, batch),
    )


def main() -> None:
    """Run what is missing, and write."""
    assert all(name in sources(CHAPTER) for names in PARTS.values() for name in names)
    record(__doc__, "sequences", wanted())


if __name__ == "__main__":
    main()
