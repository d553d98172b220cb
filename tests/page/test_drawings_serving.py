"""Tests of the drawings in ``serving``: memory traffic, prefill and decoding, paged KV caches, batches."""

import re

import pytest
from drawn import words

from lessons_lib.page import drawings

DRAWINGS = {
    "operation_traffic": drawings.operation_traffic(),
    "prefill_and_decoding": drawings.prefill_and_decoding(),
    "prefill_and_decoding of twelve": drawings.prefill_and_decoding(12),
    "paged_cache": drawings.paged_cache(),
    "paged_cache of one text": drawings.paged_cache([13], 8),
    "paged_cache of three texts": drawings.paged_cache([3, 9, 5], 5),
    "batching": drawings.batching(),
    "batching of one slot": drawings.batching([2, 1, 12], 1),
    "batching of four slots": drawings.batching([12, 1, 1, 2, 3, 9, 4, 1, 1], 4),
}


def test_operation_traffic_marks_the_four_transfers_of_tables():
    html = DRAWINGS["operation_traffic"].to_html()
    assert len(re.findall(r'class="key tip"', html)) == 4
    assert words(DRAWINGS["operation_traffic"]).count("memory") == 2


@pytest.mark.parametrize("n", [2, 12])
def test_prefill_and_decoding_says_how_often_a_weight_is_used(n):
    drawing = drawings.prefill_and_decoding(n)
    assert f"and used for {n} tokens" in words(drawing)
    assert f"each weight that is read is used {n} times" in drawing.alt


@pytest.mark.parametrize(
    ("lengths", "block", "n_blocks", "free"), [((10, 6), 4, 5, 4), ((13,), 8, 2, 3), ((8,), 4, 2, 0)]
)
def test_paged_cache_has_an_arrow_for_each_block_and_counts_empty_slots(lengths, block, n_blocks, free):
    drawing = drawings.paged_cache(lengths, block)
    assert len(re.findall(r" tip\"", drawing.to_html())) == n_blocks
    assert f"{free} slots of the last blocks are empty, and {7 - n_blocks} blocks" in drawing.alt


@pytest.mark.parametrize(
    ("lengths", "slots", "fixed", "continuous"),
    [((3, 8, 5, 2, 6, 4), 3, 14, 11), ((2, 1, 12), 1, 15, 15), ((4, 4, 4, 4), 2, 8, 8), ((1, 12, 1, 1), 2, 13, 12)],
)
def test_batching_counts_the_steps_of_both_schedules(lengths, slots, fixed, continuous):
    drawing = drawings.batching(lengths, slots)
    assert {f"fixed batches: {fixed} steps", f"continuous batching: {continuous} steps"} <= set(words(drawing))
    assert f"finished: {fixed} steps." in drawing.alt
    assert drawing.alt.endswith(f"free: {continuous} steps.")


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: drawings.prefill_and_decoding(1), "n must be between 2 and 12, got 1"),
        (lambda: drawings.paged_cache([4], 1), "block must be between 2 and 8, got 1"),
        (lambda: drawings.paged_cache([], 4), "lengths must be positive and fill 1 to 6 blocks of 4"),
        (lambda: drawings.paged_cache([0], 4), "lengths must be positive and fill 1 to 6 blocks of 4"),
        (lambda: drawings.paged_cache([25], 4), "lengths must be positive and fill 1 to 6 blocks of 4"),
        (lambda: drawings.batching([1], 5), "slots must be between 1 and 4, got 5"),
        (lambda: drawings.batching([], 2), "lengths must be 1 to 9 numbers between 1 and 12"),
        (lambda: drawings.batching([13], 2), "lengths must be 1 to 9 numbers between 1 and 12"),
        (lambda: drawings.batching([0], 2), "lengths must be 1 to 9 numbers between 1 and 12"),
    ],
)
def test_invalid_arguments_raise(call, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        call()
