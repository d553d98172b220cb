"""Tests of the masks: each equals its definition, written out entry by entry."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.attention import masks
from lessons_lib.attention.rules import Prefix

sizes = st.integers(1, 9)
seeds = st.integers(0, 2**31)


def entries(n, m, may_attend):
    """Return the mask whose entry (i, j) is ``may_attend(i, j)``."""
    return torch.tensor([[bool(may_attend(i, j)) for j in range(m)] for i in range(n)])


def seed(value=0):
    return torch.Generator().manual_seed(value)


# --- by position ----------------------------------------------------------------------------------------------------


@given(n=sizes, more=st.integers(0, 5))
def test_causal_and_bidirectional_equal_definition(n, more):
    m = n + more
    assert torch.equal(masks.causal(n, m), entries(n, m, lambda i, j: j <= i + m - n))
    assert torch.equal(masks.causal(n), entries(n, n, lambda i, j: j <= i))
    assert torch.equal(masks.bidirectional(n, m), entries(n, m, lambda i, j: True))
    assert masks.bidirectional(n).shape == (n, n)


def test_causal_queries_are_last_positions():
    assert torch.equal(masks.causal(2, 7), masks.causal(7)[-2:])
    assert masks.causal(1, 7).all()


@given(n=sizes, window=sizes, dilation=st.integers(1, 4))
def test_sliding_window_and_dilated_equal_definition(n, window, dilation):
    assert torch.equal(masks.sliding_window(n, window), entries(n, n, lambda i, j: 0 <= i - j < window))
    assert torch.equal(masks.sliding_window(n, window, causal=False), entries(n, n, lambda i, j: abs(i - j) < window))
    visible = {step * dilation for step in range(window)}
    assert torch.equal(masks.dilated(n, window, dilation), entries(n, n, lambda i, j: i - j in visible))
    symmetric = entries(n, n, lambda i, j: abs(i - j) in visible)
    assert torch.equal(masks.dilated(n, window, dilation, causal=False), symmetric)


def test_window_counts_visible_keys():
    assert masks.sliding_window(5, 3).sum(-1).tolist() == [1, 2, 3, 3, 3]
    assert masks.sliding_window(7, 3, causal=False).sum(-1).tolist() == [3, 4, 5, 5, 5, 4, 3]
    assert masks.dilated(11, 3, 2).sum(-1).tolist() == [1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3]
    assert torch.equal(masks.sliding_window(5, 5), masks.causal(5))
    assert torch.equal(masks.sliding_window(5, 1, causal=False), torch.eye(5, dtype=torch.bool))


@given(n=sizes, size=sizes, length=st.integers(0, 9))
def test_block_and_prefix_equal_definition(n, size, length):
    length = min(length, n)
    assert torch.equal(masks.block(n, size), entries(n, n, lambda i, j: i // size == j // size))
    assert torch.equal(masks.prefix(n, length), entries(n, n, lambda i, j: j < length or j <= i))


@given(n=sizes, positions=st.sets(st.integers(0, 8)))
def test_global_tokens_equal_definition(n, positions):
    positions = sorted(p for p in positions if p < n)
    assert torch.equal(masks.global_tokens(n, positions), entries(n, n, lambda i, j: i in positions or j in positions))


@given(height=st.integers(1, 4), width=st.integers(1, 5), radius=st.integers(0, 5))
def test_neighbourhood_2d_equals_definition(height, width, radius):
    patches = [(row, column) for row in range(height) for column in range(width)]
    expected = entries(
        len(patches),
        len(patches),
        lambda i, j: max(abs(a - b) for a, b in zip(patches[i], patches[j], strict=True)) <= radius,
    )
    assert torch.equal(masks.neighbourhood_2d(height, width, radius), expected)


@given(prefix=st.integers(1, 4), lengths=st.lists(st.integers(0, 3), max_size=4))
def test_shared_prefix_equals_definition(prefix, lengths):
    owner = [None] * prefix + [i for i, length in enumerate(lengths) for _ in range(length)]
    expected = entries(len(owner), len(owner), lambda i, j: j <= i and owner[j] in (None, owner[i]))
    assert torch.equal(masks.shared_prefix(prefix, lengths), expected)


# --- by content -----------------------------------------------------------------------------------------------------


def test_padding_hides_keys_beyond_length():
    lengths = torch.tensor([3, 0, 5])
    mask = masks.padding(lengths, 5)
    assert mask.shape == (3, 1, 1, 5)
    assert torch.equal(mask[:, 0, 0], entries(3, 5, lambda b, j: j < lengths[b]))
    assert masks.padding(torch.tensor(2), 5).tolist() == [[True, True, False, False, False]]


def test_documents_separate_packed_sequences():
    ids = torch.tensor([[4, 4, 7, 7, 7], [1, 2, 2, 1, 1]])
    mask = masks.documents(ids)
    assert mask.shape == (2, 1, 5, 5)
    for b in range(2):
        assert torch.equal(mask[b, 0], entries(5, 5, lambda i, j, row=ids[b]: row[i] == row[j]))
        assert torch.equal(masks.documents(ids[b]), mask[b, 0])


def test_documents_inner_rule_counts_from_the_start_of_each_document():
    assert masks.documents(torch.tensor([7, 4, 4, 4]), Prefix(2)).int().tolist() == [
        [1, 0, 0, 0],
        [0, 1, 1, 0],
        [0, 1, 1, 0],
        [0, 1, 1, 1],
    ]


def test_batched_masks_combine_without_mixing_sequences():
    """Padding and documents have an axis for the heads, so three sequences are never aligned with three heads."""
    ids, lengths = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1], [2, 2, 2, 2]]), torch.tensor([4, 3, 2])
    together = masks.causal(4) & masks.documents(ids) & masks.padding(lengths, 4)
    assert together.shape == (3, 1, 4, 4)
    for b in range(3):
        expected = entries(4, 4, lambda i, j, b=b: j <= i and ids[b, i] == ids[b, j] and j < lengths[b])
        assert torch.equal(together[b, 0], expected)


# --- random ---------------------------------------------------------------------------------------------------------


@given(n=sizes, density=st.floats(0, 1), value=seeds)
def test_random_sparse_keeps_diagonal_and_is_reproducible(n, density, value):
    mask = masks.random_sparse(n, density, seed(value))
    assert mask.diagonal().all()
    assert torch.equal(mask, masks.random_sparse(n, density, seed(value)))


def test_random_sparse_has_expected_density():
    """The mean over 499 * 499 pairs has a standard deviation below 0.001; the tolerance is five times as large."""
    n, density = 499, 0.3
    expected = density + (1 - density) / n
    assert abs(masks.density(masks.random_sparse(n, density, seed())) - expected) < 0.005
    assert torch.equal(masks.random_sparse(7, 0.0, seed()), torch.eye(7, dtype=torch.bool))
    assert masks.random_sparse(7, 1.0, seed()).all()


def test_random_sparse_is_independent_of_default_dtype():
    double = masks.random_sparse(31, 0.4, seed())
    torch.set_default_dtype(torch.float32)
    assert torch.equal(masks.random_sparse(31, 0.4, seed()), double)


def test_longformer_is_union_of_window_and_global_tokens():
    expected = entries(11, 11, lambda i, j: abs(i - j) < 2 or 5 in (i, j) or 0 in (i, j))
    assert torch.equal(masks.longformer(11, window=2, global_positions=[0, 5]), expected)


@given(n=sizes, window=st.integers(1, 4), n_global=st.integers(0, 3), n_random=st.integers(0, 4), value=seeds)
def test_big_bird_adds_random_keys_to_longformer(n, window, n_global, n_random, value):
    n_global, n_random = min(n, n_global), min(n, n_random)
    fixed = masks.longformer(n, window=window, global_positions=range(n_global))
    mask = masks.big_bird(n, window=window, n_global=n_global, n_random=n_random, generator=seed(value))
    assert (mask >= fixed).all()
    hidden = (~fixed).sum(-1)
    assert torch.equal((mask & ~fixed).sum(-1), hidden.clamp_max(n_random))


def test_big_bird_with_block_repeats_entries_per_block():
    options = {"window": 2, "n_global": 1, "n_random": 1}
    small = masks.big_bird(7, **options, generator=seed())
    large = masks.big_bird(21, **options, generator=seed(), block=3)
    assert torch.equal(large, entries(21, 21, lambda i, j: small[i // 3, j // 3]))


# --- properties of a mask -------------------------------------------------------------------------------------------


def test_density_is_fraction_of_allowed_pairs():
    assert masks.density(masks.causal(7)) == 28 / 49
    assert masks.density(masks.causal(2, 5)) == 9 / 10
    assert masks.density(masks.padding(torch.tensor([3, 5]), 5)[:, 0]).tolist() == [3 / 5, 1.0]


def reach_by_search(mask, n_layers, residual):
    """Return the reach by breadth-first search: from each output back to the positions that its layer reads."""
    n = len(mask)
    reached = [{i} for i in range(n)]
    for _ in range(n_layers):
        reads = [{j for j in range(n) if mask[i, j] or (residual and i == j)} for i in range(n)]
        reached = [set().union(*(reached[j] for j in reads[i])) for i in range(n)]
    return entries(n, n, lambda i, j: j in reached[i])


@given(n=sizes, n_layers=st.integers(0, 4), residual=st.booleans(), value=seeds)
def test_reach_equals_breadth_first_search(n, n_layers, residual, value):
    mask = torch.rand(n, n, generator=seed(value)) < 0.3
    assert torch.equal(masks.reach(mask, n_layers, residual=residual), reach_by_search(mask, n_layers, residual))


def test_reach_of_windows_grows_with_depth():
    """L layers with a causal window of w keys reach L (w - 1) positions back."""
    assert torch.equal(masks.reach(masks.sliding_window(31, 3), 5), masks.sliding_window(31, 5 * 2 + 1))
    assert masks.reach(masks.longformer(31, window=1, global_positions=[7]), 2).all()
    assert torch.equal(masks.reach(masks.causal(7), 5), masks.causal(7))


def test_reach_without_residual_is_matrix_power():
    previous = masks.causal(5).tril(-1)
    assert not masks.reach(previous, 5, residual=False).any()
    assert torch.equal(masks.reach(previous, 2, residual=False), masks.causal(5).tril(-2))
    assert torch.equal(masks.reach(previous, 0, residual=False), torch.eye(5, dtype=torch.bool))


def test_reach_accepts_batch():
    stack = torch.stack([masks.causal(5), masks.block(5, 2), masks.sliding_window(5, 2)])
    assert torch.equal(masks.reach(stack, 2), torch.stack([masks.reach(mask, 2) for mask in stack]))


# --- devices and errors ---------------------------------------------------------------------------------------------


ON_META = [
    lambda device: masks.bidirectional(5, device=device),
    lambda device: masks.causal(5, 7, device=device),
    lambda device: masks.sliding_window(5, 2, device=device),
    lambda device: masks.dilated(5, 2, 3, device=device),
    lambda device: masks.block(5, 2, device=device),
    lambda device: masks.prefix(5, 2, device=device),
    lambda device: masks.global_tokens(5, [1, 3], device=device),
    lambda device: masks.neighbourhood_2d(2, 3, 1, device=device),
    lambda device: masks.shared_prefix(2, [2, 1], device=device),
    lambda device: masks.random_sparse(5, 0.5, seed(), device=device),
    lambda device: masks.longformer(5, window=2, global_positions=[3], device=device),
    lambda device: masks.big_bird(5, window=2, n_global=1, n_random=1, generator=seed(), device=device),
]


@pytest.mark.parametrize("make", ON_META)
def test_mask_is_boolean_and_on_requested_device(make):
    """The ``meta`` device stands for a GPU here: no mask reads values from it."""
    assert make("meta").device.type == "meta"
    assert make(None).device.type == "cpu"
    assert make(None).dtype == torch.bool


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: masks.causal(5, 4), "n must be at most m, got 5 and 4"),
        (lambda: masks.causal(0), "n must be at least 1, got 0"),
        (lambda: masks.bidirectional(3, 0), "m must be at least 1, got 0"),
        (lambda: masks.bidirectional(3.0), r"n must be an integer, got 3\.0"),
        (lambda: masks.sliding_window(4, 0), "window must be at least 1, got 0"),
        (lambda: masks.sliding_window(4, True), "window must be an integer, got True"),
        (lambda: masks.dilated(4, 2, 0), "dilation must be at least 1, got 0"),
        (lambda: masks.block(4, 0), "size must be at least 1, got 0"),
        (lambda: masks.prefix(4, 5), "prefix must be at most 4, got 5"),
        (lambda: masks.prefix(4, -1), "prefix must be at least 0, got -1"),
        (lambda: masks.global_tokens(4, [4]), "positions must be at most 3, got 4"),
        (lambda: masks.global_tokens(4, [-1]), "positions must be at least 0, got -1"),
        (lambda: masks.neighbourhood_2d(0, 3, 1), "height must be at least 1, got 0"),
        (lambda: masks.neighbourhood_2d(3, 0, 1), "width must be at least 1, got 0"),
        (lambda: masks.shared_prefix(0, []), "n must be at least 1, got 0"),
        (lambda: masks.padding(torch.tensor([6]), 5), r"lengths must be in 0 \.\. m = 5, got \[6\]"),
        (lambda: masks.padding(torch.tensor([-1]), 5), r"lengths must be in 0 \.\. m = 5, got \[-1\]"),
        (
            lambda: masks.padding(torch.tensor([1.0]), 5),
            r"lengths must be integers over \(\) or \(batch,\), got torch.float64",
        ),
        (lambda: masks.padding([3, 5], 5), r"lengths must be integers over \(\) or \(batch,\), got list"),
        (
            lambda: masks.padding(torch.tensor([[1]]), 5),
            r"lengths must be integers over .* got torch.int64 over \(1, 1\)",
        ),
        (
            lambda: masks.documents(torch.tensor([True])),
            r"ids must be integers over \(m,\) or \(batch, m\), got torch.bool",
        ),
        (lambda: masks.documents(torch.tensor(1)), r"ids must be integers over .* got torch.int64 over \(\)"),
        (lambda: masks.random_sparse(4, 1.5, seed()), r"density must be between 0 and 1, got 1\.5"),
        (lambda: masks.big_bird(4, window=1, n_global=5, n_random=0, generator=seed()), "n_global must be at most 4"),
        (lambda: masks.big_bird(4, window=1, n_global=0, n_random=5, generator=seed()), "n_random must be at most 4"),
        (
            lambda: masks.big_bird(7, window=1, n_global=0, n_random=0, generator=seed(), block=2),
            "block must divide n, got block=2 and n=7",
        ),
        (lambda: masks.density(torch.ones(3, 3)), "mask must be Boolean over .* got torch.float"),
        (lambda: masks.density(torch.ones(3, dtype=torch.bool)), r"got torch.bool over \(3,\)"),
        (lambda: masks.reach(masks.causal(2, 3), 1), r"mask must be square.* got \(2, 3\)"),
        (lambda: masks.reach(masks.causal(2), -1), "n_layers must be at least 0, got -1"),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- wrong masks are caught -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda n, m: masks.causal(m)[:n], id="aligned to the first query"),
        pytest.param(lambda n, m: ~masks.causal(n, m), id="True means hidden"),
        pytest.param(lambda n, m: masks.causal(m).mT[-n:], id="attends to later keys"),
        pytest.param(lambda n, m: masks.causal(n, m).tril(m - n - 1), id="without its own position"),
    ],
)
def test_causal_definition_catches_wrong_masks(wrong):
    assert not torch.equal(wrong(2, 5), entries(2, 5, lambda i, j: j <= i + 3))


def test_window_definition_catches_other_count():
    counts_earlier_keys_only = entries(5, 5, lambda i, j: 0 <= i - j <= 3)
    assert not torch.equal(counts_earlier_keys_only, masks.sliding_window(5, 3))
