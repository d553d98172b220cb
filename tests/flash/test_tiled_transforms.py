"""The tiled backend under ``torch.func``: ``grad``, ``vmap`` and their combinations equal those of attention.

That second derivatives and forward mode raise errors is tested in ``tests/foundations/test_derivatives.py``.
"""

import re

import pytest
import torch
from flash_cases import attend_with, mutated_tiled
from torch.func import functional_call, grad, jacrev, vmap
from torch.testing import assert_close

from lessons_lib.attention.attention import attention
from lessons_lib.attention.rules import Causal, Documents, Full, Padding, Rule, Table, Window
from lessons_lib.flash import as_implementation, flash_attention, tile_shapes
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

N, M, LANES = 21, 37, 3
RULES = {
    "full": Full(),
    "causal": Causal(),
    "window, and other lengths": Causal() & Window(9) & Padding(torch.tensor([37, 20])),
    "table for each sequence": Table(torch.rand(2, 1, N, M, generator=torch.Generator().manual_seed(1)) < 0.5),
}
NAMES = ("q", "k", "v", "alibi_slopes", "sinks", "bias")
ALL = tuple(range(len(NAMES)))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for name, size in {"ROWS": 16, "MASKED_ROWS": 16, "KEYS": 16, "TILE_SCORES": 2 * 16 * 16}.items():
        monkeypatch.setattr(tile_shapes, name, size)


def inputs(*, lanes: tuple[int, ...] = (), bias_of: tuple[int, ...] = (2, 4, N, M)) -> list[torch.Tensor]:
    """Return queries, keys, values, slopes, sinks and a bias, each with the leading axes ``lanes``."""
    shapes = (2, 4, N, 5), (2, 2, M, 5), (2, 2, M, 3), (4,), (4,), bias_of
    return [torch.randn(*lanes, *shape) for shape in shapes]


def losses(rule: Rule, attend=None):
    """Return the same loss of attention's arguments, by tiles and by ``attention``."""
    upstream = torch.randn(2, 4, N, 3)

    def tiled(q, k, v, *terms):
        given = dict(zip(NAMES[3:], terms, strict=False))
        if attend is None:
            out, lse = flash_attention(q, k, v, rule, backend="tiled", return_lse=True, **given)
        else:
            out, lse = attend(q, k, v, rule, 5**-0.5, **given)
        return (out * upstream).sum() + 0 * lse.masked_fill(lse == -torch.inf, 0.0).sum()

    def exact(q, k, v, *terms):
        return (attention(q, k, v, rule, **dict(zip(NAMES[3:], terms, strict=False))) * upstream).sum()

    return tiled, exact


def over(function, lanes_in: tuple[int | None, ...]):
    """Return the gradients of each lane of ``vmap`` by all arguments."""
    return vmap(grad(function, tuple(range(len(lanes_in)))), lanes_in)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("n_arguments", [3, 6], ids=["plain", "with terms"])
def test_grad_and_vmap_equal_attention(rule, n_arguments):
    tiled, exact = losses(rule)
    one, many = inputs()[:n_arguments], inputs(lanes=(LANES,))[:n_arguments]
    each = tuple(range(n_arguments))
    assert_close(grad(tiled, each)(*one), grad(exact, each)(*one))
    assert_close(vmap(tiled)(*many), vmap(exact)(*many))
    assert_close(over(tiled, (0,) * n_arguments)(*many), over(exact, (0,) * n_arguments)(*many))


@pytest.mark.parametrize("bias_of", [(2, 4, N, M), (1, 4, N, M), (4, 1, 1), (1, M)], ids=str)
@pytest.mark.parametrize("batched", ALL, ids=NAMES.__getitem__)
def test_arguments_that_lanes_share_get_a_gradient_for_each_lane(batched, bias_of):
    tiled, exact = losses(RULES["causal"])
    given, axes = inputs(bias_of=bias_of), tuple(0 if i == batched else None for i in ALL)
    given[batched] = torch.randn(LANES, *given[batched].shape)
    assert_close(over(tiled, axes)(*given), over(exact, axes)(*given))


@pytest.mark.parametrize("out_of", [1, -1])
def test_lanes_along_any_axis(out_of):
    tiled, exact = losses(RULES["causal"])
    many = [x.movedim(0, out_of) for x in inputs(lanes=(LANES,))]
    assert_close(over(tiled, (out_of,) * 6)(*many), over(exact, (out_of,) * 6)(*many))


def test_grad_of_vmap_sums_over_lanes():
    tiled, exact = losses(RULES["window, and other lengths"])
    given = [torch.randn(LANES, 2, 4, N, 5), *inputs()[1:]]
    ours, theirs = (
        grad(lambda *x, f=f: vmap(f, (0, *[None] * 5))(*x).square().sum(), ALL)(*given) for f in (tiled, exact)
    )
    assert_close(ours, theirs)


def test_nested_vmap_equals_attention():
    tiled, exact = losses(RULES["window, and other lengths"])
    given = [torch.randn(LANES, 2, 4, N, 5), *inputs(lanes=(2,))[1:]]
    inner, outer = (0, *[None] * 5), (None, *[0] * 5)
    assert_close(vmap(over(tiled, inner), outer)(*given), vmap(over(exact, inner), outer)(*given))


def test_gradients_outside_vmap_reach_leaves():
    tiled, exact = losses(RULES["causal"])
    results = []
    for function in (tiled, exact):
        torch.manual_seed(4)
        leaves = [x.requires_grad_() for x in inputs(lanes=(LANES,))]
        results.append(torch.autograd.grad(vmap(function)(*leaves).square().sum(), leaves))
    assert_close(*results)


def test_jacobian_equals_attention():
    q, k, v = (torch.randn(1, 2, 6, 3) for _ in range(3))

    def tiled(q):
        return flash_attention(q, k, v, is_causal=True, window=3, backend="tiled")

    assert_close(jacrev(tiled)(q), jacrev(lambda q: attention(q, k, v, Causal() & Window(3)))(q))


def test_vmap_over_upstream_gradients_equals_attention():
    q, k, v = (x.requires_grad_() for x in inputs()[:3])
    upstream = torch.randn(LANES, 2, 4, N, 3)
    found = []
    for attend in (as_implementation(backend="tiled"), attention):
        out = attend(q, k, v, Causal())
        found.append(vmap(lambda g, out=out: torch.autograd.grad(out, (q, k, v), g, retain_graph=True))(upstream))
    assert_close(*found)


def test_rules_and_lengths_made_inside_a_transform():
    q, k, v = inputs()[:3]

    def loss(attend, q):
        rule = Documents(torch.arange(M) // 10 + 0 * torch.tensor(1)) & Causal()
        queries = torch.cat([k[:, :, : M - N].repeat_interleave(2, 1), q], dim=2)
        return attend(queries, k, v, rule & Padding(torch.tensor([30, M]))).square().sum()

    ours, theirs = (lambda q, f=f: loss(f, q) for f in (as_implementation(backend="tiled"), attention))
    assert_close(grad(ours)(q), grad(theirs)(q))
    assert_close(vmap(grad(ours))(torch.stack([q, -q])), vmap(grad(theirs))(torch.stack([q, -q])))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_per_sample_gradients_of_a_windowed_gpt():
    config = GPTConfig(17, 8, 16, 2, 2)
    model = GPT(config, implementation=as_implementation(window=4))
    parameters, tokens = dict(model.named_parameters()), torch.randint(17, (3, 8))

    def loss(parameters, row):
        return functional_call(model, parameters, (row[None],)).square().sum()

    together = vmap(grad(loss), in_dims=(None, 0))(parameters, tokens)
    for i, row in enumerate(tokens):
        assert_close({name: x[i] for name, x in together.items()}, grad(loss)(parameters, row))


@pytest.mark.rejects
def test_masks_that_differ_between_lanes_raise():
    q, k, v = inputs()[:3]
    lengths = torch.tensor([[3, 4], [5, 6]])
    with pytest.raises(NotImplementedError, match=re.escape("one mask for all entries of an axis of torch.func.vmap")):
        vmap(lambda own: flash_attention(q, k, v, Causal() & Padding(own), backend="tiled"))(lengths)
    for name in ("key_lengths", "cache_lengths", "cache_starts"):
        with pytest.raises(ValueError, match=f"{name} must be the same for all entries of an axis of torch.func.vmap"):
            vmap(lambda own, name=name: flash_attention(q, k, v, **{name: own}, backend="tiled"))(lengths)


MUTANTS = {
    "repeats the tensors in another order": ("x.expand(size, *x.shape)", "x.expand(size, *x.shape).transpose(0, 1)"),
    "takes the first axis for that of vmap": ("x.movedim(axis, 0)", "x"),
    "does not repeat what sequences have of their own": ("i not in shared or len(x) > 1", "i not in shared"),
    "sums the gradients of terms over lanes": ("if not wanted)]", ")]"),
    "gives each sequence the entry of the first": ("self.sequence * len(shared) // self.n_sequences", "0"),
    "pairs entries with sequences in turn": (
        "self.sequence * len(shared) // self.n_sequences",
        "self.sequence % len(shared)",
    ),
    "gives further sequences the last rule": ("[rules[b % len(spans)]", "[rules[min(b, len(spans) - 1)]"),
}


@pytest.mark.one_case
@pytest.mark.parametrize(("old", "new"), MUTANTS.values(), ids=MUTANTS)
def test_cases_fail_for_a_wrong_implementation(old, new, tmp_path):
    mutant = mutated_tiled(old, new, tmp_path)
    tiled, exact = losses(RULES["window, and other lengths"], lambda *at, **terms: attend_with(mutant, *at, **terms))

    def check_all():
        together = [torch.randn(LANES, 2, 4, N, 5), *inputs()[1:]]
        second = [x.movedim(0, 1) for x in inputs(lanes=(LANES,))]
        for axes, given in {
            (0,) * 6: inputs(lanes=(LANES,)),
            (1,) * 6: second,
            (0, *[None] * 5): together,
        }.items():
            assert_close(over(tiled, axes)(*given), over(exact, axes)(*given))

    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        check_all()
