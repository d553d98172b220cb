"""Attention over several processes equals attention in one: outputs, log-sum-exps and gradients.

Two processes are started once, with gloo, and run every case of ``ring_worker``. Their results are compared here with
float64 ``attention`` on the whole input, differentiated by autograd. Tests that need no second process run in a group
of one process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ring_worker import LENGTHS, N_RANKS, RING, SPLIT, heads
from torch import distributed
from torch.testing import assert_close

from lessons_lib.attention.attention import attention
from lessons_lib.attention.masks import causal
from lessons_lib.attention.rules import as_rule
from lessons_lib.attention.softmax import log_sum_exp
from lessons_lib.distributed import positions_of_rank, ring_attention, split_kv_attention
from lessons_lib.flash import flash_attention

WORKER = Path(__file__).with_name("ring_worker.py")

# Measured over all cases, relative to the largest entry: 2e-15 in float64, 4e-7 in float32.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 2e-6}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return the results of each process."""
    folder = tmp_path_factory.mktemp("ring")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(N_RANKS)}
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(folder)], env=environment | {"RANK": str(rank)}, stderr=subprocess.PIPE
        )
        for rank in range(N_RANKS)
    ]
    try:
        errors = [process.communicate(timeout=300)[1].decode() for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), "\n".join(errors)
    return [torch.load(folder / f"{rank}.pt") for rank in range(N_RANKS)]


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Create a process group of this process alone."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def whole(name, dtype=torch.float64):
    """Return the output, log-sum-exp and gradients of q, k and v by attention in one process."""
    q, k, v, grad_out, grad_lse = (x.to(dtype) for x in heads(name).values())
    _, options, _ = RING[name]
    inputs = [x.requires_grad_() for x in (q, k, v)]
    n = q.shape[2]
    mask = as_rule(options["mask"]).to_mask(n) if "mask" in options else None
    if options.get("is_causal"):
        mask = causal(n) if mask is None else mask & causal(n)
    scale = options.get("scale", q.shape[-1] ** -0.5)
    out = attention(q, k, v, mask, scale=scale)
    lse = log_sum_exp(scale * q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT, mask)
    grads = torch.autograd.grad([out, lse], inputs, [grad_out, grad_lse])
    return dict(zip(["out", "lse", "grad_q", "grad_k", "grad_v"], [out.detach(), lse.detach(), *grads], strict=True))


def join_ranks(ranks, kind, name, case):
    """Return the parts of all ranks as one, in the order of the sequence."""
    (_, _, _, n, _), options, _ = RING[case]
    parts = [positions_of_rank(n, rank, N_RANKS, zigzag=options.get("zigzag", False)) for rank in range(N_RANKS)]
    order = torch.cat(parts).argsort()
    results = [rank[kind][name] for rank in ranks]
    return {key: torch.cat([result[key] for result in results], dim=2)[:, :, order] for key in results[0]}


def error(ours, true):
    return {key: ((ours[key].double() - x).abs().max() / x.abs().max()).item() for key, x in true.items()}


# --- the ring -------------------------------------------------------------------------------------------------------


@pytest.mark.another_process
@pytest.mark.parametrize("name", [name for name, (*_, dtype) in RING.items() if dtype != torch.bfloat16])
def test_ring_attention_equals_attention_forward_and_backward(ranks, name):
    errors = error(join_ranks(ranks, "right", name, name), whole(name))
    assert max(errors.values()) < TOLERANCE[RING[name][2]], errors


@pytest.mark.another_process
def test_ring_attention_in_half_precision_has_at_most_twice_the_error(ranks):
    """Largest relative errors measured: output 2.6e-3, gradients 3.8e-3; in one process 2.6e-3 and 2.8e-3."""
    name = "half"
    q, k, v, grad_out, grad_lse = heads(name).values()
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out, lse = flash_attention(*inputs, is_causal=True, return_lse=True)
    grads = torch.autograd.grad([out, lse], inputs, [grad_out, grad_lse])
    one = dict(zip(["out", "lse", "grad_q", "grad_k", "grad_v"], [out, lse, *grads], strict=True))
    ours = join_ranks(ranks, "right", name, name)
    assert {key: x.dtype for key, x in ours.items()} == {key: x.dtype for key, x in one.items()}
    allowed = error(one, whole(name))
    errors = error(ours, whole(name))
    assert all(errors[key] <= 2 * allowed[key] + 1e-6 for key in errors), (errors, allowed)


@pytest.mark.another_process
@pytest.mark.parametrize(
    ("fault", "case", "affected"),
    [
        ("averages instead of merging", "causal", {"out"}),
        ("attends to future blocks", "causal", {"out", "lse", "grad_q", "grad_k", "grad_v"}),
        ("does not send the gradients", "equal parts", {"grad_k", "grad_v"}),
    ],
)
def test_comparison_fails_for_a_wrong_ring(ranks, fault, case, affected):
    errors = error(join_ranks(ranks, "wrong", fault, case), whole(case))
    assert {key for key, size in errors.items() if size > 0.05} >= affected, errors


@pytest.mark.another_process
def test_ring_attention_skips_hidden_blocks_and_zigzag_balances_work(ranks):
    """16 positions. Consecutive: 8 x 8 pairs, and twice that on the last rank. Zigzag: 5 times 4 x 4 pairs on each."""
    assert [rank["work"] for rank in ranks] == [
        {"consecutive": 64, "zigzag": 80},
        {"consecutive": 128, "zigzag": 80},
    ]


@pytest.mark.another_process
def test_ring_attention_in_a_process_group(ranks):
    q, k, v, _, _ = heads("causal").values()
    for rank in range(N_RANKS):
        part = positions_of_rank(67, rank, N_RANKS)
        assert_close(ranks[rank]["in_own_group"], attention(*(x[:, :, part] for x in (q, k, v)), causal(len(part))))


@pytest.mark.another_process
def test_error_on_one_rank_raises_on_all(ranks):
    expected = {
        "one has a mask": "is_causal must be the same on all ranks, got {} here and {} on rank {}",
        "one has another rule": "mask, as a hash of it, must be the same on all ranks",
        "one has a rule": "mask, as a hash of it, must be the same on all ranks",
        "a rule for other sizes": "ids must name the document of each of 12 keys",
        "one has another batch": "batch size must be the same on all ranks",
        "one has another type": "machine epsilon must be the same on all ranks",
        "one has another scale": "scale must be the same on all ranks, got ",
        "one has another backend": "backend, as its index in BACKENDS, must be the same on all ranks",
        "another's group": "group must contain the calling process",
        "one has more queries": "number of queries must be the same on all ranks",
    }
    for rank, results in enumerate(ranks):
        messages = results["error_messages"]
        for name, message in expected.items():
            assert message.format(rank, 1 - rank, 1 - rank) in messages[name]
    assert "k and v must have one shape" in ranks[1]["error_messages"]["one has invalid input"]
    assert "rank 1 must be given valid input" in ranks[0]["error_messages"]["one has invalid input"]


# --- decoding with a divided cache ----------------------------------------------------------------------------------


@pytest.mark.another_process
@pytest.mark.parametrize("name", SPLIT)
def test_split_kv_attention_equals_attention(ranks, name):
    q, k, v, _, _ = (x.double() for x in heads(name).values())
    m = k.shape[2]
    seen = torch.ones(len(q), m, dtype=torch.bool)
    if name == "one query":
        for rank, lengths in LENGTHS.items():
            part = positions_of_rank(m, rank, N_RANKS)
            seen[:, part] = torch.arange(len(part)) < torch.tensor(lengths)[:, None]
        assert not seen[1].any(), "a sequence without a key on any rank is among them"
    mask = seen[:, None, None, :]
    true = attention(q, k, v, mask)
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT / q.shape[-1] ** 0.5
    dtype = SPLIT[name][1]
    tolerance = {torch.float64: 1e-14, torch.bfloat16: 4e-3}[dtype]  # half: one rounding of a part, one of the whole
    for rank in ranks:
        out, lse = rank["right"][name]["out"], rank["right"][name]["lse"]
        assert out.dtype == dtype
        assert_close(out.double(), true, rtol=tolerance, atol=tolerance)
        assert_close(lse.double(), log_sum_exp(scores, mask), rtol=0, atol=1e-6 if dtype == torch.bfloat16 else 1e-14)
        assert torch.equal(out, ranks[0]["right"][name]["out"]), "all ranks have the same result, to the last bit"


# --- one process ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_ring_attention_with_one_rank_equals_flash_attention(alone, is_causal, zigzag):
    q, k, v = (torch.randn(2, heads, 13, 5).transpose(1, 2).contiguous().transpose(1, 2) for heads in (6, 3, 3))
    options = {"is_causal": is_causal, "return_lse": True}
    assert_close(ring_attention(q, k, v, zigzag=zigzag, **options), flash_attention(q, k, v, **options))


def test_ring_attention_with_one_rank_passes_gradcheck(alone):
    q, k, v = (torch.randn(1, heads, 5, 3, requires_grad=True) for heads in (2, 1, 1))

    def function(q, k, v):
        return ring_attention(q, k, v, is_causal=True, zigzag=True, return_lse=True)

    assert torch.autograd.gradcheck(function, (q, k, v))


def test_split_kv_attention_with_one_rank_equals_flash_attention(alone):
    q, k, v = torch.randn(2, 4, 1, 5), torch.randn(2, 2, 11, 5), torch.randn(2, 2, 11, 5)
    lengths = torch.tensor([11, 4])
    assert_close(split_kv_attention(q, k, v, key_lengths=lengths), flash_attention(q, k, v, key_lengths=lengths))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        ([(2, 3, 4), (2, 3, 4), (2, 3, 4)], {}, r"q must be \(batch, heads, sequence, width\)"),
        ([(1, 4, 6, 2), (1, 3, 6, 2), (1, 3, 6, 2)], {}, "heads of k must divide those of q, got 3 and 4"),
        ([(1, 2, 6, 2), (1, 2, 6, 2), (1, 2, 5, 2)], {}, "k and v must have one shape"),
        ([(1, 2, 6, 2), (1, 2, 6, 2), (1, 2, 6, 3)], {}, "k and v must have one shape here"),
        ([(1, 2, 4, 2), (1, 2, 6, 2), (1, 2, 6, 2)], {"is_causal": True}, "equally long on a rank, got 4 and 6"),
        ([(1, 2, 1, 2)] * 3, {"is_causal": True, "zigzag": True}, "at least 2 positions on a rank.*got 1"),
        ([(1, 2, 4, 2)] * 3, {"scale": float("inf")}, "scale must be finite"),
        ([(1, 2, 4, 2)] * 3, {"backend": "cudnn"}, "backend must be one of"),
        ([(1, 2, 4, 2)] * 3, {"backend": "torch"}, "does not return the log-sum-exp"),
    ],
)
def test_invalid_arguments_raise(alone, shapes, options, message):
    with pytest.raises(ValueError, match=message):
        ring_attention(*map(torch.zeros, shapes), **options)


def test_ring_attention_without_mask_accepts_more_keys_than_queries(alone):
    q, k, v = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 7, 5), torch.randn(2, 3, 7, 5)
    assert_close(ring_attention(q, k, v), attention(q, k, v))


def test_missing_derivatives_raise(alone):
    q, k, v = (torch.randn(1, 2, 3, 4, requires_grad=True) for _ in range(3))
    with pytest.raises(ValueError, match=r"no backward pass; call it under torch\.no_grad\(\)"):
        split_kv_attention(q, k, v)
    with torch.no_grad():
        split_kv_attention(q, k, v)


@pytest.mark.parametrize("function", [ring_attention, split_kv_attention])
def test_missing_process_group_raises(function):
    with pytest.raises(ValueError, match=r"process group, call torch\.distributed\.init_process_group first"):
        function(*torch.zeros(3, 1, 1, 2, 2))


# --- who holds what -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize(("n", "n_ranks"), [(2, 1), (7, 1), (12, 2), (13, 3), (29, 4)])
def test_positions_of_rank_partition_the_sequence(n, n_ranks, zigzag):
    parts = [positions_of_rank(n, rank, n_ranks, zigzag=zigzag) for rank in range(n_ranks)]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(n))
    for part in parts:
        first = (len(part) + 1) // 2 if zigzag else len(part)
        for chunk in (part[:first], part[first:]):
            assert (chunk.diff() == 1).all()


def test_zigzag_gives_every_rank_equally_many_visible_pairs():
    n, n_ranks = 24, 4
    seen = causal(n)
    shares = {
        zigzag: [seen[positions_of_rank(n, rank, n_ranks, zigzag=zigzag)].sum().item() for rank in range(n_ranks)]
        for zigzag in (False, True)
    }
    assert shares == {False: [21, 57, 93, 129], True: [75] * 4}


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 2, 2), "rank must be at most 1, got 2"),
        ((5, -1, 2), "rank must be at least 0"),
        ((5, 0, 0), "n_ranks must be at least 1"),
        ((1, 0, 2), "n must be at least 2, got 1"),
        ((3.0, 0, 2), "n must be an integer"),
    ],
)
def test_positions_of_rank_invalid_arguments_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        positions_of_rank(*arguments)
