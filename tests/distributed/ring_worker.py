"""One process of distributed attention: it runs every case and saves its results.

RANK=0 WORLD_SIZE=2 python tests/distributed/ring_worker.py FOLDER, and the same with RANK=1; both wait for each other.
"""

import os
import sys
from pathlib import Path
from unittest import mock

import torch
from torch import distributed

import lessons_lib.distributed
from lessons_lib.attention.rules import Causal, Documents, GlobalTokens, Padding, Window
from lessons_lib.distributed import Ring, positions_of_rank, ring_attention, split_kv_attention
from lessons_lib.flash import flash_attention

N_RANKS = 2
DOCUMENTS = Documents(torch.tensor([[0] * 15 + [1] * 20 + [2] * 6, [4] * 30 + [3] * 11]))
TABLE = torch.rand(29, 29, generator=torch.Generator().manual_seed(5)) < 0.3

# (b, h, g, n, d), options, dtype; many lengths are not divisible by the 2 ranks
RING = {
    "full": ((3, 2, 2, 67, 5), {}, torch.float64),
    "causal": ((3, 2, 2, 67, 5), {"is_causal": True}, torch.float64),
    "equal parts": ((1, 2, 2, 22, 5), {}, torch.float64),
    "grouped, scaled": ((1, 6, 2, 41, 7), {"scale": -0.7}, torch.float64),
    "grouped, causal": ((1, 6, 2, 41, 7), {"is_causal": True}, torch.float64),
    "one key/value head, zigzag": ((2, 3, 1, 53, 4), {"is_causal": True, "zigzag": True}, torch.float64),
    "long, zigzag": ((1, 2, 1, 511, 16), {"is_causal": True, "zigzag": True}, torch.float64),
    "zigzag without a mask": ((1, 2, 2, 23, 3), {"zigzag": True}, torch.float64),
    "two positions a rank": ((1, 1, 1, 4, 3), {"is_causal": True, "zigzag": True}, torch.float64),
    "a window": ((1, 2, 2, 47, 5), {"mask": Causal() & Window(9)}, torch.float64),
    "a window to both sides, zigzag": ((1, 2, 1, 46, 5), {"mask": Window(15), "zigzag": True}, torch.float64),
    "documents": ((2, 2, 2, 41, 5), {"mask": DOCUMENTS, "is_causal": True}, torch.float64),
    "lengths": ((2, 4, 2, 33, 3), {"mask": Padding(torch.tensor([30, 7])), "zigzag": True}, torch.float64),
    "longformer": ((1, 2, 2, 39, 4), {"mask": Window(4) | GlobalTokens([0, 30])}, torch.float64),
    "a table": ((1, 2, 2, 29, 4), {"mask": TABLE, "zigzag": True}, torch.float64),
    "single": ((2, 4, 2, 301, 16), {"is_causal": True}, torch.float32),
    "half": ((2, 4, 2, 301, 16), {"is_causal": True, "zigzag": True}, torch.bfloat16),
}
SPLIT = {
    "one query": ((3, 4, 2, 1, 91, 7), torch.float64),
    "some queries": ((1, 2, 2, 5, 17, 3), torch.float64),
    "in half": ((2, 4, 1, 1, 300, 16), torch.bfloat16),
}
LENGTHS = {0: [3, 0, 45], 1: [0, 0, 7]}  # keys of each sequence in a rank's part, for the case "one query"


def heads(name: str) -> dict[str, torch.Tensor]:
    """Return the whole input of a case: queries, keys, values, and upstream gradients of output and log-sum-exp."""
    generator = torch.Generator().manual_seed(len(name))
    if name in RING:
        (b, h, g, n, d), _, dtype = RING[name]
        m = n
    else:
        (b, h, g, n, m, d), dtype = SPLIT[name]
    shapes = {"q": (b, h, n, d), "k": (b, g, m, d), "v": (b, g, m, d), "grad_out": (b, h, n, d), "grad_lse": (b, h, n)}
    tensors = {key: torch.randn(shape, generator=generator, dtype=torch.float64) for key, shape in shapes.items()}
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    return {key: x.to(wide if key == "grad_lse" else dtype) for key, x in tensors.items()}


def ring(name: str, rank: int) -> dict[str, torch.Tensor]:
    """Return this rank's rows of output, log-sum-exp and gradients."""
    (_, _, _, n, _), options, _ = RING[name]
    rows = positions_of_rank(n, rank, N_RANKS, zigzag=options.get("zigzag", False))
    q, k, v, grad_out, grad_lse = (x[:, :, rows] for x in heads(name).values())
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out, lse = ring_attention(*inputs, **options, return_lse=True)
    grads = torch.autograd.grad([out, lse], inputs, [grad_out, grad_lse])
    return dict(zip(["out", "lse", "grad_q", "grad_k", "grad_v"], [out.detach(), lse.detach(), *grads], strict=True))


def split(name: str, rank: int) -> dict[str, torch.Tensor]:
    q, k, v, _, _ = heads(name).values()
    part = positions_of_rank(k.shape[2], rank, N_RANKS)
    lengths = torch.tensor(LENGTHS[rank]) if name == "one query" else None
    out, lse = split_kv_attention(q, k[:, :, part], v[:, :, part], key_lengths=lengths, return_lse=True)
    return {"out": out, "lse": lse}


def wrong(rank: int) -> dict[str, dict[str, torch.Tensor]]:
    """Return the results of a few wrong implementations."""

    def average(out_a, lse_a, out_b, lse_b):
        return (out_a + out_b) / 2, torch.logaddexp(lse_a, lse_b)

    def every_block(self, source):
        yield slice(None), slice(None), Causal() if source == self.rank else None

    def keep(self, step, *gradients):
        return gradients

    faults = {
        "averages instead of merging": (
            "causal",
            mock.patch.object(lessons_lib.distributed, "merge_attention", average),
        ),
        "attends to future blocks": ("causal", mock.patch.object(Ring, "pairs", every_block)),
        "does not send the gradients": ("equal parts", mock.patch.object(Ring, "send_gradients", keep)),
    }
    found = {}
    for fault, (name, patch) in faults.items():
        with patch:
            found[fault] = ring(name, rank)
    return found


def work(rank: int) -> dict[str, int]:
    """Return the number of query-key pairs that a causal ring computes in the forward pass."""
    pairs = {}
    for name, zigzag in (("consecutive", False), ("zigzag", True)):
        with mock.patch.object(lessons_lib.distributed, "flash_attention", wraps=flash_attention) as attend:
            ring_attention(*3 * [torch.zeros(1, 1, 8, 2)], is_causal=True, zigzag=zigzag)
        pairs[name] = sum(call.args[0].shape[2] * call.args[1].shape[2] for call in attend.call_args_list)
    return pairs


def in_own_group(rank: int, own: distributed.ProcessGroup) -> torch.Tensor:
    """Return attention within a group of one process."""
    q, k, v, _, _ = (x[:, :, positions_of_rank(67, rank, N_RANKS)] for x in heads("causal").values())
    out = ring_attention(q, k, v, is_causal=True, group=own)
    assert isinstance(out, torch.Tensor)
    return out


def error_messages(rank: int, foreign: distributed.ProcessGroup) -> dict[str, str]:
    """Return the error messages of this rank if one rank has invalid input, or if the inputs of the ranks differ."""
    x = torch.zeros(2, 2, 6, 4, dtype=torch.float64)
    other = rank == 1
    calls = {
        "one has a mask": lambda: ring_attention(x, x, x, is_causal=other),
        "one has another rule": lambda: ring_attention(x, x, x, Window(3 + other)),
        "one has a rule": lambda: ring_attention(x, x, x, Causal() if other else None),
        "a rule for other sizes": lambda: ring_attention(x, x, x, Documents(torch.arange(6))),
        "one has another batch": lambda: ring_attention(*3 * [x[other:]]),
        "one has another type": lambda: ring_attention(*3 * [x.float() if other else x]),
        "one has another scale": lambda: ring_attention(x, x, x, scale=0.5 + other),
        "another's group": lambda: ring_attention(x, x, x, group=foreign),
        "one has another backend": lambda: ring_attention(x, x, x, backend="torch" if other else "auto"),
        "one has invalid input": lambda: ring_attention(x, x, x[:, :, other:]),
        "one has more queries": lambda: split_kv_attention(x[:, :, other:], x, x),
    }
    messages = {}
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            messages[name] = str(error)
    return messages


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=N_RANKS)
    groups = [distributed.new_group([member]) for member in range(N_RANKS)]
    results = {
        "right": {name: ring(name, rank) for name in RING} | {name: split(name, rank) for name in SPLIT},
        "wrong": wrong(rank),
        "work": work(rank),
        "in_own_group": in_own_group(rank, groups[rank]),
        "error_messages": error_messages(rank, groups[1 - rank]),
    }
    torch.save(results, folder / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
