"""Train the rivals of the chapter on vision and language: rates chosen alike, three seeds, and longer for a control.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ. The lines are those of
:mod:`benchmarks.tuning`; behind the rate stand

    digits ...   share right on the 547 test images
    pairs ...    right caption among 100, of pairs never shown; of pairs shown; preferred to the exchanged caption,
                 said with *left of*; the same with *right of*, where that was learned; where nothing but the order was
                 asked for, these last two alone
    gap ...      bits for the hidden character of 1500 gaps; of the first 100; of these by Bayes' rule, for the writer
    dates ...    share of texts without a fault: the mean, then of one, two, three and four dates
    spot ...     without marks: area under the curve, maps at the spot, occlusions at the spot; and where marks were
                 learned: area under the curve with marks, maps at the spot, occlusions at the spot, maps at the mark,
                 occlusions at the mark

What has no seed has one line; the dearest models have two seeds, and the translators one rate, but for the wide one
of attention alone, with as many weights as the look has. Readers of digits choose among four rates, with three seeds;
of shuffled digits each has the rate that it chooses in order, so that nothing but the order differs. Where a spot is
looked for without marks three rates are tried, with three seeds; with marks two rates with one, and five seeds are
tested. What is asked for the order alone has one rate. One thread, float32; twenty-five minutes on one idle core. It
writes after every rival, and goes on where it was.

``python benchmarks/vision_and_language.py`` writes ``benchmarks/results/vision-and-language.json``.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.records import ROOT, Job, defined, record
from benchmarks.tuning import job
from lessons_lib.training.datasets import ENGLISH_SHA256

CHAPTER = ROOT / "book" / "applications" / "vision-and-language.ipynb"
CELLS = (
    *("imports", "imports-more", "digits-data", "digits-models", "digits-batch", "digits-rivals", "digits-tuned"),
    *("pairs-captions", "pairs-images", "pairs-towers", "pairs-build", "pairs-text", "pairs-kinds", "pairs-losses"),
    *("pairs-score", "pairs-order", "pairs-exchanged", "gap-text", "gap-rows", "gap-models", "gap-writer"),
    *("gap-answers", "gap-writers", "gap-bayes", "gap-counts", "gap-witten-bell", "gap-bits", "dates-data"),
    *("dates-words", "dates-padded", "dates-batch", "dates-asked", "dates-attention", "dates-recurrent"),
    *("dates-forward", "dates-losses", "dates-faultless", "dates-rule", "dates-order", "spot-slice", "spot-windows"),
    *("spot-pooling", "spot-forward", "spot-convolution", "spot-judge", "spot-peak", "spot-occlusion", "spot-look"),
    *("spot-filter", "spot-filtered"),
)
MARKS = {"spot": (0.0, 0.0), "spot and mark": (0.9, 0.1)}


def main() -> None:
    """Run what is missing, and write."""
    code = cells()
    jobs = [one for part in (spots, pairs, digits, gaps, dates) for one in part(code)]
    record(__doc__, "vision-and-language", jobs, text=ENGLISH_SHA256)


def cells() -> dict[str, Any]:
    """What the chapter's cells define."""
    return defined(CHAPTER, CELLS, {"SEED": 0})


def digits(code: dict[str, Any]) -> Iterator[Job]:
    """Real digits: in order, a tenth of them, and with their pixels shuffled."""
    vit, convolution = code["vit"], code["convolution"]
    rivals = {"ViT, 2 x 2": vit, "ViT, 4 x 4": partial(vit, 4), "convolution": convolution}
    in_order = {"ViT, 2 x 2": 0.01, "convolution": 0.016}  # the rates that these choose

    for world, count in (("in order", 1000), ("in order", 100), ("shuffled", 1000)):
        name, steps = f"digits, {count}, {world}", 300 if count == 1000 else 150

        def score(model: Any, split: str, world: str = world) -> float:
            return code["right_share"](model(code["worlds"][world][code["SPLITS"][split]]).argmax(-1), split)

        def classical(world: str = world, count: int = count) -> list[list[float]]:
            return [[found] for found in code["best_classical"](world, count).values()]

        yield [f"{name}, {rival}" for rival in ("nearest neighbours", "kernel machine")], classical
        for rival in in_order if world == "shuffled" else rivals:
            draw = partial(code["draw_digits"], world=world, count=count)
            yield job(
                f"{name}, {rival}", rivals[rival], draw, code["digit_losses"], score, steps=steps,
                rates=(in_order[rival],) if world == "shuffled" else (0.002, 0.006, 0.01, 0.016), chosen_with=(0, 1, 2),
                weight_decay=0.05, longer=4 if name == "digits, 1000, in order" else 0,
            )  # fmt: skip


def pairs(code: dict[str, Any]) -> Iterator[Job]:
    """Two digits and a caption, said in one way or in two; and these with a loss that asks for the order alone."""
    never = code["never"]
    for both in (False, True):

        def score(model: Any, split: str, both: bool = both) -> list[float]:
            told = [code["named"](model, split, which) for which in (never, ~never)]
            said = () if split == "val" else (False, True)[: 1 + both]
            return [*told, *(code["order_told"](model, turned) for turned in said)]

        for rival, rates in (("linear", (0.001, 0.003, 0.01)), ("transformers", (0.003, 0.006, 0.012))):
            name = f"pairs, said in {'two ways' if both else 'one way'}, {rival}"
            task = code[rival], partial(code["draw_pairs"], both=both), code["contrast"], score
            seeds = (0, 1, 2) if rival == "linear" else (0, 1)
            yield job(name, *task, steps=800, rates=rates, seeds=seeds, longer=0)
            if both:  # the rates are chosen anew after four times the steps
                yield job(f"{name}, 3200 steps", *task, steps=3200, rates=rates, longer=0)

    def order(model: Any, split: str) -> list[float]:
        return [code["order_told"](model, turned) for turned in (False, True)]

    for rival, rate in (("linear", 0.01), ("transformers", 0.006)):
        yield job(
            f"pairs, asked for the order, {rival}", code[rival], code["draw_exchanged"], code["order_losses"], order,
            steps=800, rates=(rate,), seeds=(0, 1, 2) if rival == "linear" else (0, 1), longer=0,
        )  # fmt: skip


def gaps(code: dict[str, Any]) -> Iterator[Job]:
    """A hidden character: counts, a reader, a writer asked in two ways."""
    bits, questions = code["bits"], code["questions"]

    def counted(side: str) -> list[list[float]]:
        shapes, rows = code["SIDES"][side], questions("test")
        found = code["by_counts"](code["counted"](shapes), shapes, rows)
        return [[bits(found, rows), bits(found[:100], rows[:100])]]

    def score(model: Any, split: str, ask: Any) -> list[float]:
        rows = questions(split)
        found = [bits(ask(model, some), some) for some in (rows, rows[:100])]
        writes = ask is code["by_writer"] and split == "test"
        return [*found, bits(code["by_bayes"](model, rows[:100]), rows[:100])] if writes else found

    for side in code["SIDES"]:
        yield [f"gap, counts, {side}"], partial(counted, side)
    for name, build, draw, ask in (
        ("reader", code["Reader"], code["draw_gaps"], code["by_reader"]),
        ("writer", code["writer"], code["draw_onwards"], code["by_writer"]),
    ):
        yield job(
            f"gap, {name}", build, draw, code["next_token_losses"], partial(score, ask=ask),
            steps=300, rates=(0.003, 0.008), seeds=(0, 1), longer=7 if name == "reader" else 0, smaller_is_better=True,
        )  # fmt: skip


def dates(code: dict[str, Any]) -> Iterator[Job]:
    """Dates from English to Hungarian."""

    def ruled() -> list[list[float]]:
        words = code["word_table"](code["DAYS"]["train"][:2000])
        phrase, days = code["phrase"], code["DAYS"]["test"][:2000]
        right = [code["by_rule"](phrase(day, "en"), words) == phrase(day, "hu") for day in days]
        return [[sum(right) / len(right), len(words)]]

    def score(model: Any, split: str) -> list[float]:
        found = [code["faultless"](model, *code["asked"](split, n)) for n in range(1, 5)]
        return [sum(found) / 4, *found]

    yield ["dates, table and rule"], ruled
    for name, build, rates in (
        ("one vector", code["Recurrent"], (0.006,)),
        ("attention alone", code["AttentionAlone"], (0.006,)),
        ("attention alone, wide", partial(code["AttentionAlone"], 72), (0.003, 0.006)),
        ("one vector and a look", partial(code["Recurrent"], 80, look=True), (0.006,)),
    ):
        yield job(
            f"dates, {name}", build, code["draw_dates"], code["date_losses"], score,
            steps=600, rates=rates, seeds=(0, 1) if "look" in name else (0, 1, 2),
            longer=2 if name in ("one vector", "attention alone, wide") else 0,
        )  # fmt: skip


def spots(code: dict[str, Any]) -> Iterator[Job]:
    """A spot in half of the windows; and beside it a mark that mostly goes with it."""
    yield ["spot, filter"], lambda: [list(code["filtered"]())]
    for name, mark in MARKS.items():

        def score(model: Any, split: str, mark: tuple[float, float] = mark) -> list[float]:
            if split == "val":
                x, sick, *_ = code["windows"](torch.Generator().manual_seed(12), 600, "train", mark)
                return [code["auc"](model(x)[0], sick)]
            told = list(code["looked_at"](model, (0.0, 0.0))[:3])
            return [*told, *code["looked_at"](model, mark)] if mark[0] else told

        for rival, build in (
            ("pooling", partial(code["Pooling"], False)),
            ("pooling after a block", partial(code["Pooling"], True)),
            ("convolution", code["ClassMap"]),
        ):
            draw = partial(code["windows"], count=32, side="train", mark=mark)
            yield job(
                f"{name}, {rival}", build, draw, code["sick_losses"], score,
                steps=400, rates=(0.003, 0.01) if mark[0] else (0.003, 0.005, 0.01), seeds=range(5 if mark[0] else 3),
                chosen_with=(0,) if mark[0] else (0, 1, 2), longer=0 if mark[0] else 2,
            )  # fmt: skip


if __name__ == "__main__":
    main()
