r"""Attention over a sequence that lies on several devices, each of which holds a part of the keys and values.

Both functions rest on :func:`lessons_lib.softmax.merge_attention`: attention to each part by itself, as the pair of
output and log-sum-exp, is enough to know attention to all.

    ring_attention       queries are divided too; keys and values travel; forward and backward [1]_
    split_kv_attention   every device has the queries; only results travel, once: decoding with a long cache

They run on ``torch.distributed``: every process of the group calls the function with its own part, on CPUs with
``gloo`` and on GPUs with ``nccl``. They begin by telling one another a few numbers: what one process has to refuse,
all of them refuse, and none waits for ever.

.. [1] Liu et al., *Ring Attention with Blockwise Transformers*, 2023. arXiv:2310.01889.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from lessons_lib.derivatives import check_backward_only, first_derivatives_only
from lessons_lib.flash import flash_attention
from lessons_lib.flash.inputs import BACKENDS, check_inputs
from lessons_lib.rules import Causal, Rule, Seen, as_rule, check_over, parts_of
from lessons_lib.shapes import at_least_single, check_size
from lessons_lib.softmax import merge_attention


def positions_of_rank(n: int, rank: int, n_ranks: int, *, zigzag: bool = False) -> Int[Tensor, " n_local"]:
    """Return which of ``n`` positions a rank holds: ``x[:, :, positions]`` is its part of ``x``.

    By default these are consecutive, and a causal ring is as slow as its last rank, which sees every key while the
    first sees only its own. Zigzag cuts the sequence into twice as many chunks and pairs an early with a late one,
    ``rank`` with ``2 * n_ranks - 1 - rank``; then all ranks have equally many pairs to compute, exactly so if the
    chunks are equally long [2]_.

    Raises:
        ValueError: if a chunk would be empty, or ``rank`` is not in ``0 .. n_ranks - 1``.

    .. [2] Brandon et al., *Striped Attention*, 2023, gives each rank every ``n_ranks``-th position to the same end.
       arXiv:2311.09431.
    """
    check_size("n_ranks", n_ranks, at_least=1)
    check_size("rank", rank, at_least=0, at_most=n_ranks - 1)
    n_chunks = n_ranks * (2 if zigzag else 1)
    check_size("n", n, at_least=n_chunks)
    chunks = torch.arange(n).tensor_split(n_chunks)
    return torch.cat([chunks[i] for i in _chunks_of(rank, n_ranks, zigzag)])


def ring_attention(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b g m d_k"],
    v: Float[Tensor, "b g m d_k"],
    mask: Rule | Bool[Tensor, "*#batch #whole #whole"] | None = None,
    *,
    is_causal: bool = False,
    zigzag: bool = False,
    scale: float | None = None,
    group: ProcessGroup | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Float[Tensor, "b h n d_k"] | tuple[Float[Tensor, "b h n d_k"], Float[Tensor, "b h n"]]:
    r"""Attend from this rank's queries to the keys of all ranks, while keys and values travel round the ring.

    In each of ``R`` rounds a rank attends to the block :math:`s` that is visiting, merges, and passes the block on:

    .. math:: o = \sum_s e^{\ell_s - \ell}\, o_s, \qquad \ell = \log \sum_s e^{\ell_s},

    which is :func:`lessons_lib.flash.flash_attention` on the whole sequence, exactly. A rank keeps two blocks at a
    time, and the next one arrives while it computes. On the way back the blocks go round again, each followed by its
    gradients, which every rank adds to and the last round brings home. With the *global* :math:`o` and :math:`\ell`
    the gradients of a block need nothing from another,

    .. math:: \bar o_s = e^{\ell_s - \ell}\, \bar o, \qquad
              \bar\ell_s = e^{\ell_s - \ell} \big(\bar\ell + \bar o \cdot (o_s - o)\big);

    :math:`o_s` and :math:`\ell_s` are computed again, so that only ``n`` rows are kept: 7 matrix products where 5
    would do. Gradients travel in at least float32.

    Args:
        q, k, v: this rank's part of the queries, keys and values. Ranks may hold parts of different lengths.
        mask: who sees whom in the *whole* sequence, whose parts are in the order of the ranks; the same on all ranks: a
            rule, or a Boolean table over all positions. Blocks that nobody here sees are passed on unread.
        is_causal: hide what comes after a query, too: the rule ``Causal()``.
        zigzag: the first half of the part (the longer one) is chunk ``rank`` of the sequence and the second chunk
            ``2 R - 1 - rank``, as :func:`positions_of_rank` cuts it. It balances the work of a causal ring; where all
            see all the order of the keys does not matter, and zigzag changes nothing.
        scale: multiplier of the scores; ``1 / sqrt(d_k)`` when omitted.
        group: the processes that take part; all when omitted.
        backend: for the blocks, as in ``flash_attention``; it has to return the log-sum-exp.
        return_lse: return the pair ``(out, lse)``, both differentiable.

    Raises:
        ValueError: as ``flash_attention``, on every rank; if the ranks differ in anything but the lengths of their
            parts; with ``mask`` or ``is_causal`` if a rank has not as many keys as queries, or the mask does not fit
            the whole sequence; or if there is no process group.
        NotImplementedError: in forward mode and in transforms of ``torch.func``, and for a second derivative.
    """
    group = _group_of(group)
    is_masked = is_causal or mask is not None

    def facts() -> list[float]:
        check_inputs(q, k, v, None, scale, None, backend)
        if is_masked and q.shape[2] != k.shape[2]:
            raise ValueError(f"masked, q and k must be equally long on a rank, got {q.shape[2]} and {k.shape[2]}")
        if is_masked and zigzag and k.shape[2] < 2:
            raise ValueError(f"zigzag needs at least 2 positions on a rank, for two chunks, got {k.shape[2]}")
        check_backward_only("ring_attention", q, k, v)
        rule = None if mask is None else as_rule(mask)
        return _facts(q, k, scale, backend, is_causal=is_causal, zigzag=zigzag, mask=rule)

    lengths = _agree(group, q.device, facts)
    rule = Causal() if is_causal else None
    if mask is not None:
        check_over(as_rule(mask), (*q.shape[:2], sum(lengths), sum(lengths)))
        rule = as_rule(mask) if rule is None else rule & mask
    ring = Ring(group, lengths, rule, zigzag, scale, backend)
    out, lse = RingAttention.apply(q, k, v, ring)
    return (out, lse) if return_lse else out


def split_kv_attention(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b g m d_k"],
    v: Float[Tensor, "b g m d_k"],
    *,
    scale: float | None = None,
    key_lengths: Int[Tensor, " b"] | None = None,
    group: ProcessGroup | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Float[Tensor, "b h n d_k"] | tuple[Float[Tensor, "b h n d_k"], Float[Tensor, "b h n"]]:
    r"""Attend from the same queries on every rank to keys and values of which each rank holds a part.

    .. math:: (o, \ell) = (o_1, \ell_1) \oplus \dots \oplus (o_R, \ell_R)

    Every rank attends to its part of the cache and one ``all_gather`` of ``d_k + 1`` numbers a query, in float32,
    brings the results together; ``merge_attention`` (:math:`\oplus`) makes one of them, the same on every rank. What
    travels does not depend on the length of the cache.

    Every query sees every key, as one new token does when decoding. There is no backward pass.

    Args:
        q: the queries, equal on all ranks.
        k, v: this rank's part of the keys and values; the parts may differ in length.
        scale: multiplier of the scores; ``1 / sqrt(d_k)`` when omitted.
        key_lengths: how many keys of this rank's part each sequence has, 0 to ``m``.
        group, backend, return_lse: as :func:`ring_attention`.

    Raises:
        ValueError: as ``flash_attention``, on every rank; if the ranks differ in anything but the lengths of their
            parts; if a gradient is wanted; or if there is no process group.
    """
    group = _group_of(group)

    def facts() -> list[float]:
        check_inputs(q, k, v, None, scale, key_lengths, backend)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            raise ValueError("split_kv_attention has no backward pass; call it under torch.no_grad()")
        return _facts(q, k, scale, backend, n_queries=q.shape[2])

    lengths = _agree(group, q.device, facts)
    out, lse = flash_attention(q, k, v, scale=scale, key_lengths=key_lengths, backend=backend, return_lse=True)
    part = torch.cat([at_least_single(out), lse[..., None]], dim=-1)
    parts = [torch.empty_like(part) for _ in lengths]
    distributed.all_gather(parts, part, group=group)
    out, lse = reduce(lambda a, b: merge_attention(*a, *b), [(p[..., :-1], p[..., -1]) for p in parts])
    out = out.to(q.dtype)
    return (out, lse) if return_lse else out


# --- the ring -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ring:
    """What all ranks compute, how many keys each holds, and how blocks pass from one to the next."""

    group: ProcessGroup
    lengths: tuple[int, ...]
    rule: Rule | None
    zigzag: bool
    scale: float | None
    backend: str

    @property
    def rank(self) -> int:
        """This process's place."""
        return distributed.get_rank(self.group)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule | None) -> tuple[Tensor, Tensor]:
        """Attend to one block alone."""
        out, lse = flash_attention(q, k, v, rule, scale=self.scale, backend=self.backend, return_lse=True)
        return at_least_single(out), lse

    def pairs(self, source: int) -> Iterator[tuple[slice, slice, Rule | None]]:
        """Which rows of this rank see which keys of the source, and by what rule, where it is not all of them."""
        if self.rule is None:
            yield slice(None), slice(None), None
            return
        for rows, places in self._chunks(self.rank):
            for keys, key_places in self._chunks(source):
                seen = self.rule.sees(places, key_places)
                if seen is Seen.NONE:
                    continue
                last_together = len(key_places) - len(places)  # attention lets the last query stand at the last key
                part = self.rule.part(places.start - last_together, key_places.start)
                yield rows, keys, part if seen is Seen.SOME else None

    def rounds(self, *blocks: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """Yield each rank's blocks with that rank, one's own first; the next ones arrive in the meantime."""
        last = len(self.lengths) - 1
        for turn in range(last + 1):
            arriving, transfers = ((), []) if turn == last else self._pass_on(turn, blocks)
            yield self._source(turn), blocks
            _wait(transfers)
            blocks = arriving

    def follow(self, turn: int, *gradients: Tensor) -> tuple[Tensor, ...]:
        """Pass gradients on behind their blocks; after the last turn those of one's own block are home."""
        arriving, transfers = self._pass_on(turn, gradients)
        _wait(transfers)
        return arriving

    def _pass_on(self, turn: int, blocks: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], list[distributed.Work]]:
        """Begin to send to the next rank and to receive what the previous one has."""
        if len(self.lengths) == 1:
            return blocks, []
        length = self.lengths[self._source(turn + 1)]
        arriving = tuple(block.new_empty(*block.shape[:2], length, block.shape[3]) for block in blocks)
        send, receive = ((self.rank + step) % len(self.lengths) for step in (1, -1))
        transfers = []
        for block, place in zip(blocks, arriving, strict=True):
            transfers.append(distributed.P2POp(distributed.isend, block, group=self.group, group_peer=send))
            transfers.append(distributed.P2POp(distributed.irecv, place, group=self.group, group_peer=receive))
        return arriving, distributed.batch_isend_irecv(transfers)

    def _source(self, turn: int) -> int:
        return (self.rank - turn) % len(self.lengths)

    def _chunks(self, rank: int) -> list[tuple[slice, range]]:
        """The chunks of the sequence that a rank holds: where each lies in the rank's part, and in the whole."""
        n_ranks = len(self.lengths)
        first = [(length + 1) // 2 if self.zigzag else length for length in self.lengths]
        second = [length - start for length, start in zip(self.lengths, first, strict=True)]
        ends = list(accumulate([*first, *reversed(second)]))
        numbers = _chunks_of(rank, n_ranks, self.zigzag)
        sizes = (first[rank], second[rank])[: len(numbers)]
        starts = (0, first[rank])
        return [
            (slice(start, start + size), range(ends[number] - size, ends[number]))
            for number, size, start in zip(numbers, sizes, starts, strict=False)
        ]


class RingAttention(torch.autograd.Function):
    """``apply(q, k, v, ring)`` returns ``(out, lse)``; both carry gradients."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, ring: Ring) -> tuple[Tensor, Tensor]:
        """Merge attention to every block that comes by."""
        out = torch.zeros_like(at_least_single(q))
        lse = torch.full_like(out[..., 0], -torch.inf)
        for source, (key, value) in ring.rounds(k.contiguous(), v.contiguous()):
            for rows, keys, rule in ring.pairs(source):
                part = ring.attend(q[:, :, rows], key[:, :, keys], value[:, :, keys], rule)
                out[:, :, rows], lse[:, :, rows] = merge_attention(out[:, :, rows], lse[:, :, rows], *part)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ring = ring
        return out, lse

    @staticmethod
    @first_derivatives_only("ring_attention")
    def backward(ctx, saved: tuple[Any, ...], grad_out: Tensor, grad_lse: Tensor):
        """Carry the gradients back through each block as it comes by again."""
        q, k, v, out, lse = saved
        out, grad_out = at_least_single(out), at_least_single(grad_out)
        grad_q, grad_k, grad_v = (torch.zeros(x.shape, dtype=out.dtype, device=x.device) for x in (q, k, v))
        for turn, (source, (key, value)) in enumerate(ctx.ring.rounds(k.contiguous(), v.contiguous())):
            for rows, keys, rule in ctx.ring.pairs(source):
                heads = [x.detach().requires_grad_() for x in (q[:, :, rows], key[:, :, keys], value[:, :, keys])]
                with torch.enable_grad():
                    part, part_lse = ctx.ring.attend(*heads, rule)
                    share = (part_lse - lse[:, :, rows]).exp()
                    moved = share[..., None] * (part - out[:, :, rows])
                    # A number whose derivatives by part and part_lse are those in ring_attention's docstring.
                    inner = (grad_out[:, :, rows] * moved).sum() + (grad_lse[:, :, rows] * share).sum()
                grads = torch.autograd.grad(inner, heads)
                for total, place, grad in zip((grad_q, grad_k, grad_v), (rows, keys, keys), grads, strict=True):
                    total[:, :, place] += grad
            grad_k, grad_v = ctx.ring.follow(turn, grad_k, grad_v)
        return *(grad.to(q.dtype) for grad in (grad_q, grad_k, grad_v)), None


# --- parts ----------------------------------------------------------------------------------------------------------

# What each rank tells the others: they may differ in the first alone.
FACTS = (
    "number of keys",
    "batch size",
    "number of query heads",
    "number of key/value heads",
    "width",
    "scale",
    "machine epsilon",
    "number of queries",
    "is_causal",
    "zigzag",
    "backend, as its place in BACKENDS,",
    "mask, as a number made of it,",
)


def _facts(
    q: Tensor,
    k: Tensor,
    scale: float | None,
    backend: str,
    *,
    n_queries: int = 0,
    is_causal: bool = False,
    zigzag: bool = False,
    mask: Rule | None = None,
) -> list[float]:
    (b, h, _, d), (_, g, m, _) = q.shape, k.shape
    scale = 1 / math.sqrt(d) if scale is None else scale
    eps, place = torch.finfo(q.dtype).eps, BACKENDS.index(backend)
    facts = (m, b, h, g, d, scale, eps, n_queries, is_causal, zigzag, place, 0 if mask is None else _fingerprint(mask))
    return [float(fact) for fact in facts]


def _fingerprint(rule: Rule) -> int:
    """A number that equal rules share and others all but certainly do not; small enough for float64 to hold."""
    return int.from_bytes(hashlib.sha256(_spelled(rule)).digest()[:6], "big")


def _spelled(part: object) -> bytes:
    if isinstance(part, Rule):
        return type(part).__name__.encode() + b"(" + b",".join(map(_spelled, parts_of(part))) + b")"
    if isinstance(part, Tensor):
        return f"{tuple(part.shape)}".encode() + part.cpu().numpy().tobytes()
    return repr(part).encode()


def _agree(group: ProcessGroup, device: torch.device, facts: Callable[[], list[float]]) -> tuple[int, ...]:
    """Tell the others this rank's facts, or that it refuses its input; return how many keys each rank holds.

    Whatever is wrong somewhere is raised everywhere: a rank that left alone would let the others wait for its blocks.
    """
    refusal, mine = None, [-1.0] * len(FACTS)
    try:
        mine = facts()
    except (ValueError, NotImplementedError) as error:
        refusal = error
    here = torch.tensor(mine, dtype=torch.float64, device=device)
    everywhere = [torch.empty_like(here) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(everywhere, here, group=group)
    if refusal is not None:
        raise refusal
    for rank, theirs in enumerate(told.tolist() for told in everywhere):
        if theirs[0] < 0:
            raise ValueError(f"rank {rank} must be given what fits, but refused its input; its own error says why")
        for name, own, other in zip(FACTS[1:], mine[1:], theirs[1:], strict=True):
            if own != other:
                raise ValueError(f"{name} must be the same on all ranks, got {own:g} here and {other:g} on rank {rank}")
    return tuple(int(told[0]) for told in everywhere)


def _chunks_of(rank: int, n_ranks: int, zigzag: bool) -> tuple[int, ...]:
    return (rank, 2 * n_ranks - 1 - rank) if zigzag else (rank,)


def _wait(transfers: list[distributed.Work]) -> None:
    for transfer in transfers:
        transfer.wait()


def _group_of(group: ProcessGroup | None) -> ProcessGroup:
    if not distributed.is_initialized():
        raise ValueError("there must be a process group, call torch.distributed.init_process_group first; got none")
    group = distributed.group.WORLD if group is None else group
    if group is None or distributed.get_rank(group) < 0:
        raise ValueError("group must hold the process that calls, got one that does not")
    return group
