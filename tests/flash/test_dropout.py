"""Dropout in the tiled backend: a mask that depends on the place alone, replayed into attention."""

import pytest
import torch
from flash_cases import attend_with, mutated_tiled
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from lessons_lib.attention.attention import attention_weights
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.rules import Causal, Full, Padding, Rule, Window
from lessons_lib.flash import as_implementation, chosen_backend, dropout, dropout_mask, flash_attention, tile_shapes

N, M, P, SEED = 29, 53, 0.3, 5
RULES = {
    "full": Full(),
    "causal": Causal(),
    "window, and lengths": Causal() & Window(9) & Padding(torch.tensor([53, 20])),
}


def inputs() -> list[torch.Tensor]:
    return [torch.randn(2, heads, rows, d) for heads, rows, d in ((4, N, 5), (2, M, 5), (2, M, 6))]


def dropped_attention(q, k, v, rule: Rule, kept: torch.Tensor, p: float = P, **options) -> torch.Tensor:
    """Return attention with the weights that the mask keeps."""
    weights = attention_weights(q, k, rule, **options) * kept / (1 - p)
    return weights @ v.repeat_interleave(len(q[0]) // len(v[0]), dim=1)


def assert_replayed(attend, rule: Rule, kept: torch.Tensor, **options) -> None:
    """Compare output and gradients with attention under the mask; the learnt options get gradients too."""
    leaves = [x.requires_grad_() for x in inputs()]
    learnt = [x for x in options.values() if isinstance(x, torch.Tensor)]
    upstream = torch.randn(2, 4, N, 6)
    found = attend(*leaves, rule, **options)
    expected = dropped_attention(*leaves, rule, kept, **options)
    assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(out, [*leaves, *learnt], upstream) for out in (found, expected))
    assert_close(ours, theirs)


@pytest.mark.parametrize("tile", [(1024, 256), (16, 16), (5, 7)], ids=str)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("scale", [0.1, 9.0], ids=["small scores", "large scores"])
def test_dropout_equals_attention_with_its_mask_for_any_tiles(rule, tile, scale, monkeypatch):
    for name, size in {"ROWS": tile[0], "MASKED_ROWS": tile[0], "KEYS": tile[1]}.items():
        monkeypatch.setattr(tile_shapes, name, size)
    monkeypatch.setattr(tile_shapes, "TILE_SCORES", 2 * tile[0] * tile[1])

    def attend(q, k, v, rule, **options):
        return flash_attention(q, k, v, rule, dropout_p=P, dropout_seed=SEED, **options)

    assert_replayed(attend, rule, dropout_mask(SEED, P, 2, 4, N, M), scale=scale)


def test_dropout_beside_all_terms_equals_attention():
    def attend(q, k, v, rule, **options):
        return flash_attention(q, k, v, rule, dropout_p=P, dropout_seed=torch.tensor(SEED), **options)

    terms = {"alibi_slopes": torch.rand(4), "sinks": torch.randn(4), "bias": torch.randn(1, 4, N, M)}
    terms = {name: x.requires_grad_() for name, x in terms.items()}
    assert_replayed(attend, RULES["causal"], dropout_mask(SEED, P, 2, 4, N, M), softcap=1.5, **terms)


def test_cached_keys_keep_their_place():
    """A key's number in the mask is its number in the cache, whatever the first key of the sequence is."""
    q, k, v = inputs()
    starts, lengths = torch.tensor([3, 11]), torch.tensor([M, 40])
    where = {"cache_starts": starts, "cache_lengths": lengths}
    out = flash_attention(q, k, v, **where, dropout_p=P, dropout_seed=SEED)
    j = torch.arange(M)
    seen = (j >= starts[:, None]) & (j < lengths[:, None])
    assert_close(out, dropped_attention(q, k, v, seen[:, None, None], dropout_mask(SEED, P, 2, 4, N, M)))


def test_mask_keeps_the_probability_and_has_no_structure():
    kept = dropout_mask(11, 0.25, b=2, h=3, n=150, m=160).double()
    assert abs(kept.mean() - 0.75) < 5 * (0.75 * 0.25 / kept.numel()) ** 0.5
    for axis in range(4):  # rows, columns, heads and sequences are uncorrelated with their neighbours
        first, second = (kept - 0.75).narrow(axis, 0, 1), (kept - 0.75).narrow(axis, 1, 1)
        assert abs((first * second).mean()) < 5 * 0.1875 / first.numel() ** 0.5
    others = dropout_mask(12, 0.25, b=2, h=3, n=150, m=160).double()
    assert abs(((kept - 0.75) * (others - 0.75)).mean()) < 5 * 0.1875 / kept.numel() ** 0.5


def test_numbers_are_those_of_splitmix64():
    """The first numbers of the published generator from state 1234567."""
    numbers = dropout._draw(torch.tensor(1234567), torch.arange(3))
    assert [int(x) % 2**64 for x in numbers] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_expectation_is_attention_without_dropout():
    q, k, v = (x[:1] for x in inputs())
    outs = torch.stack([flash_attention(q, k, v, dropout_p=P, dropout_seed=seed) for seed in range(400)])
    deviation = outs.std(dim=0) / 20
    assert ((outs.mean(dim=0) - flash_attention(q, k, v)).abs() < 5 * deviation).all()


def test_dropout_of_zero_changes_no_bit():
    q, k, v = inputs()
    plain = flash_attention(q, k, v, is_causal=True, backend="tiled", return_lse=True)
    zero = flash_attention(q, k, v, is_causal=True, backend="tiled", return_lse=True, dropout_p=0.0, dropout_seed=3)
    assert all(map(torch.equal, plain, zero))
    assert chosen_backend(q, k, v[..., :5], dropout_p=0.0).backend == "torch"


def test_log_sum_exp_is_that_without_dropout():
    q, k, v = inputs()
    _, lse = flash_attention(q, k, v, dropout_p=P, return_lse=True)
    assert_close(lse, flash_attention(q, k, v, return_lse=True)[1])


def test_seed_is_drawn_from_the_global_generator_when_omitted():
    q, k, v = inputs()

    def drop():
        return flash_attention(q, k, v, dropout_p=P)

    torch.manual_seed(1)
    first, second = drop(), drop()
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(drop(), first)


def test_checkpoint_recomputes_the_same_mask():
    q, k, v = (x.requires_grad_() for x in inputs())
    grads = []
    for run in (lambda f, *x: f(*x), lambda f, *x: checkpoint(f, *x, use_reentrant=False)):
        torch.manual_seed(3)
        out = run(lambda q, k, v: flash_attention(q, k, v, dropout_p=P), q, k, v)
        for leaf in (q, k, v):
            leaf.grad = None
        out.square().sum().backward()
        grads.append([leaf.grad for leaf in (q, k, v)])
    assert_close(*grads)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own use of it
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_draws_by_its_randomness(randomness):
    q, k, v = inputs()
    stacked = torch.stack([q, q])
    first, second = torch.func.vmap(lambda q: flash_attention(q, k, v, dropout_p=P), randomness=randomness)(stacked)
    assert torch.equal(first, second) == (randomness == "same")


def test_layer_in_training_drops_and_in_evaluation_does_not():
    layer = MultiHeadAttention(12, 4, dropout=0.5, implementation=as_implementation(is_causal=True))
    x = torch.randn(2, 9, 12)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.rejects
def test_invalid_dropout_raises():
    q, k, v = inputs()
    for p in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"dropout_p must be in \[0, 1\)"):
            flash_attention(q, k, v, dropout_p=p)
        with pytest.raises(ValueError, match=r"dropout_p must be in \[0, 1\)"):
            dropout_mask(1, p, 1, 1, 1, 1)
    for seed, message in ((1.5, "got 1.5"), (2**63, "got 9223372036854775808"), (True, "got True")):
        with pytest.raises(ValueError, match=f"dropout_seed must be an integer of 64 bits, {message}"):
            flash_attention(q, k, v, dropout_p=P, dropout_seed=seed)
    for seed in (torch.tensor([1, 2]), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="dropout_seed must be one integer, got"):
            flash_attention(q, k, v, dropout_p=0.0, dropout_seed=seed)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        dropout_mask(1, P, 1, 1, 0, 1)


MUTANTS = {
    "drops the weights before their sum": (
        "            row_sum.add_(weights.sum(dim=-1, keepdim=True))\n            if dropout is not None:\n"
        "                weights.mul_(dropout.keeps(positions, keys))\n",
        "            if dropout is not None:\n                weights.mul_(dropout.keeps(positions, keys))\n"
        "            row_sum.add_(weights.sum(dim=-1, keepdim=True))\n",
    ),
    "does not divide by the probability to keep": ("row_sum = (1 - dropout.p) * row_sum", "pass"),
    "numbers the rows of a tile from 0": (
        "positions.start - self.first_position : positions.stop - self",
        "0 : len(positions) + 0 * self",
    ),
    "numbers the keys of a tile from 0": ("keys.start + first, keys.stop + first", "first, len(keys) + first"),
    "gives all heads one mask": ("heads[:, None], rows[:, None])", "0 * heads[:, None], rows[:, None])"),
    "gives all sequences one mask": ("torch.tensor(part.sequence % b", "torch.tensor(0 * part.sequence % b"),
    "gives the first heads' mask to all": (
        ".view(shape)[part.heads]",
        ".view(shape)[: len(range(shape[0])[part.heads])]",
    ),
    "drops delta in the backward pass": (
        ".mul_(kept).div_(1 - dropout.p).add_(grad_o_and_delta[..., -1:])",
        ".add_(grad_o_and_delta[..., -1:]).mul_(kept).div_(1 - dropout.p)",
    ),
    "does not drop in the gradient of the values": ("dropped.mT, grad_o", "weights.mT, grad_o"),
    "does not scale the gradient of the values": ("beta=beta, alpha=1 / (1 - dropout.p)", "beta=beta"),
    "draws with another constant": ("0xBF58476D1CE4E5B9", "0xBF58476D1CE4E5B7"),
}


@pytest.mark.one_case
@pytest.mark.parametrize(("old", "new"), MUTANTS.values(), ids=MUTANTS)
def test_cases_fail_for_a_wrong_implementation(old, new, tmp_path):
    mutant = mutated_tiled(old, new, tmp_path)

    def attend(q, k, v, rule, **options):
        return attend_with(mutant, q, k, v, rule, 5**-0.5, dropout_p=P, seed=torch.tensor(SEED), **options)[0]

    def check_all():
        kept = dropout_mask(SEED, P, 2, 4, N, M)
        assert_replayed(attend, RULES["causal"], kept)
        assert_replayed(attend, RULES["full"], kept, softcap=2.0)

    with pytest.raises((AssertionError, RuntimeError)):
        check_all()
