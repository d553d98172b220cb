"""Train the models of the chapter on long texts with other knobs and other seeds.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ, and a run with seed 1
is what the page shows with ``SEED = 1``. A line of the language models is the loss of the same characters after up to
32, 64, 128, 256 and 512 characters of text; they are trained on 64. A line of the searchers, which are trained on gaps
of up to 16, is the share of right symbols behind gaps of 0, 8, 16, 32, 64, 128 and 256. Clocks are slowed by a factor,
as it is and after forty steps (sixty for a searcher) at the long length. One thread, float32; a quarter of an hour on
one idle core. It writes after every run, and goes on where it was.

``python benchmarks/stretching.py`` writes ``benchmarks/results/stretching.json``, which the chapter reads.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from benchmarks.records import ROOT, Job, defined, record
from lessons_lib.training.datasets import ENGLISH_SHA256

CHAPTER = ROOT / "book" / "efficient" / "long-context.ipynb"
CELLS = (
    *("imports", "imports-models", "text-letters", "text-stream", "text-train", "read-rows", "read-loss", "xpos-class"),
    *("stretch-parts", "stretch-practise", "needle-task", "needle-model", "needle-train", "needle-found"),
)
SEEDS, FACTORS = (0, 1, 2), (2.0, 4.0, 8.0)
WAYS = "interpolation", "NTK", "YaRN"
SEARCHERS_FACTOR = 6.0
# name: how the chapter's function is called; "span" is that of xPos
MODELS: dict[str, dict[str, Any]] = {
    "RoPE": {"position": "rotary"},
    "ALiBi, slopes 1/4 to 1/256": {"position": "alibi"},
    "ALiBi, slopes 2 to 1/32": {"position": "alibi", "slopes": (2.0, 1 / 2, 1 / 8, 1 / 32)},
    "xPos, span 64": {"position": "rotary", "span": 64},
    "learned": {"position": "learned"},
    "sines": {"position": "sinusoidal"},
    "none": {"position": "none"},
}
SEARCHERS: dict[str, dict[str, Any]] = {
    "RoPE, base 100": {"position": "rotary", "rope_base": 100.0},
    "ALiBi": {"position": "alibi"},
}


def main() -> None:
    """Run what is missing, and write."""
    about = {"lengths": [32, 64, 128, 256, 512], "gaps": [0, 8, 16, 32, 64, 128, 256], "text": ENGLISH_SHA256}
    record(__doc__, "stretching", wanted(), **about)


def wanted() -> Iterator[Job]:
    """All runs: the names of the lines that one gives, and what makes them."""
    names = [*list(MODELS.items())[:3], *SEARCHERS.items(), *list(MODELS.items())[3:]]
    for name, how in names:
        for seed in SEEDS:
            if name in MODELS:
                more = read_otherwise() if name == "RoPE" else []
                told = [f"{name}, seed {seed}", *(f"{name}, {what}, seed {seed}" for what in more)]
                yield told, lambda how=how, seed=seed, more=more: reader(seed, how, bool(more))
            else:
                more = searched_otherwise(name)
                told = [f"searcher: {name}, seed {seed}", *(f"searcher: {name}, {w}, seed {seed}" for w in more)]
                yield told, lambda how=how, seed=seed, more=more: searcher(seed, how, len(more) > 1)


def read_otherwise() -> list[str]:
    """What else is told of a language model with RoPE."""
    windows = ["window of 64", "window of 32", "window of 60 and the first 4"]
    slowed = [f"{way} by {factor:g}, as it is" for factor in FACTORS for way in WAYS]
    practice = [f"{way} by {FACTORS[-1]:g}, practised" for way in WAYS]
    return [*windows, "40 more steps at 64", "not slowed, practised", *slowed, *practice]


def searched_otherwise(name: str) -> list[str]:
    """What else is told of a searcher."""
    if not name.startswith("RoPE"):
        return ["window of 48"]
    slowed = [f"{way} by {SEARCHERS_FACTOR:g}, {when}" for way in WAYS[1:] for when in ("as it is", "practised")]
    return ["window of 48", "not slowed, practised", *slowed]


@cache
def cells(seed: int) -> dict[str, Any]:
    """What the chapter's cells define with this seed."""
    return defined(CHAPTER, CELLS, {"SEED": seed})


def reader(seed: int, how: dict[str, Any], otherwise: bool) -> list[list[float]]:
    """Train one language model; return its losses, and what else is asked of it."""
    code, how = cells(seed), dict(how)
    span = how.pop("span", None)
    model = code["trained"](**how, process_qk=span and code["XPos"](16, span).process_qk)
    found = [code["losses"](model)]
    if otherwise:
        sliding, causal = code["sliding_window"], code["causal"]
        found += [code["losses"](model, lambda n, w=w: sliding(n, w)) for w in (64, 32)]
        found += [code["losses"](model, lambda n: sliding(n, 60) | (causal(n) & (torch.arange(n) < 4)))]
        found += [code["losses"](code["practised"](model, None, length)) for length in (64, 512)]
        slowed = [way for factor in FACTORS for way in code["ways_by"](factor).values()]
        found += [code["losses"](code["stretched"](model, way)) for way in slowed]
        found += [code["losses"](code["practised"](model, way)) for way in slowed[-len(WAYS) :]]
    return [row.tolist() for row in found]


def searcher(seed: int, how: dict[str, Any], slowed: bool) -> list[list[float]]:
    """Teach one searcher; return how often it is right, and what else is asked of it."""
    code = cells(seed)
    model = code["taught"](code["new_searcher"](**how), code["searches"](64, 48, 16))

    def shares(model: Any, window: int | None = None) -> list[float]:
        hidden = [None if window is None else code["sliding_window"](32 + gap, window) for gap in code["gaps"]]
        return [code["found"](model, gap, mask).item() for gap, mask in zip(code["gaps"], hidden, strict=True)]

    def practised(model: Any, way: Any) -> list[float]:
        twin = code["stretched"](model, way)
        twin.alibi = model.alibi
        return shares(code["taught"](twin, code["searches"](8, 300, 256, seed=5), n_steps=60, lr=1e-3, n_warmup=5))

    found = [shares(model), shares(model, 48)]
    if slowed:
        found += [practised(model, None)]
        for way in [*code["ways_by"](SEARCHERS_FACTOR, 48, beta_fast=8.0).values()][1:]:
            found += [shares(code["stretched"](model, way)), practised(model, way)]
    return found


if __name__ == "__main__":
    main()
