r"""Attention over a sequence on several devices, each of which holds a part of the keys and values.

Both functions rest on :func:`lessons_lib.attention.softmax.merge_attention`: the outputs and log-sum-exps of attention
to each part suffice to compute attention to all keys.

    ring_attention       queries are divided too; keys and values travel; forward and backward [1]_
    split_kv_attention   every device has the queries; only results travel, once: decoding with a long cache

They run on ``torch.distributed``: every process of the group calls the function with its own part, on CPUs with
``gloo`` and on GPUs with ``nccl``. First the processes exchange a few numbers about their inputs. If one process raises
an error, all of them do, and none waits for ever.

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

from lessons_lib.attention.rules import Causal, Coverage, Rule, as_rule, check_fits_scores, fields_of
from lessons_lib.attention.softmax import merge_attention
from lessons_lib.flash import flash_attention
from lessons_lib.flash.validation import BACKENDS, check_inputs
from lessons_lib.foundations.derivatives import check_backward_only, first_derivatives_only
from lessons_lib.foundations.validation import check_size, promote_half


def positions_of_rank(n: int, rank: int, n_ranks: int, *, zigzag: bool = False) -> Int[Tensor, " n_local"]:
    """Return which of ``n`` positions a rank holds: ``x[:, :, positions]`` is its part of ``x``.

    By default these are consecutive. A causal ring is then as slow as its last rank, which attends to every key, while
    the first rank attends to its own keys only. Zigzag cuts the sequence into twice as many chunks, and a rank holds
    the chunks ``rank`` and ``2 * n_ranks - 1 - rank``. All ranks then have equally many pairs to compute, exactly so if
    the chunks are equally long [2]_.

    >>> positions_of_rank(8, 0, 2).tolist(), positions_of_rank(8, 0, 2, zigzag=True).tolist()
    ([0, 1, 2, 3], [0, 1, 6, 7])

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
    r"""Return attention of this rank's queries to the keys of all ranks; keys and values travel round a ring.

    In each of ``R`` rounds a rank attends to one block :math:`s`, merges the result, and sends the block on:

    .. math:: o = \sum_s e^{\ell_s - \ell}\, o_s, \qquad \ell = \log \sum_s e^{\ell_s},

    which is exactly :func:`lessons_lib.flash.interface.flash_attention` on the whole sequence. A rank keeps two blocks
    at a time, and the next block arrives while it computes. In the backward pass the blocks go round again, each
    followed by its gradients: every rank adds to them, and the last round returns them to the rank of the block. With
    the *global* :math:`o` and :math:`\ell` the gradients of a block do not depend on other blocks,

    .. math:: \bar o_s = e^{\ell_s - \ell}\, \bar o, \qquad
              \bar\ell_s = e^{\ell_s - \ell} \big(\bar\ell + \bar o \cdot (o_s - o)\big);

    :math:`o_s` and :math:`\ell_s` are recomputed, so that only ``n`` rows are saved; this takes 7 matrix products
    instead of 5. Gradients travel in at least float32.

    On each of 4 ranks, for a sequence of 4096 positions::

        out = ring_attention(q, k, v, is_causal=True)  # q, k, v and out are over (b, h, 1024, d_k)

    Args:
        q, k, v: this rank's part of the queries, keys and values. Ranks may hold parts of different lengths.
        mask: a rule, or a Boolean table over all positions, for the *whole* sequence, whose parts are in the order of
            the ranks; the same on all ranks. Blocks without a visible pair are sent on without being used.
        is_causal: the rule ``Causal()``, joined with the mask by ``&``.
        zigzag: the first half of the part (the longer one) is chunk ``rank`` of the sequence and the second half is
            chunk ``2 R - 1 - rank``, as in :func:`positions_of_rank`. This balances the work of a causal ring. Without
            a mask the order of the keys does not matter, and zigzag has no effect.
        scale: multiplier of the scores; ``1 / sqrt(d_k)`` when omitted.
        group: the participating processes; all when omitted.
        backend: of ``flash_attention`` for the blocks; the backend must return the log-sum-exp.
        return_lse: return the pair ``(out, lse)``, both differentiable.

    Raises:
        ValueError: as ``flash_attention``, on every rank; if the ranks differ in anything but the lengths of their
            parts; with ``mask`` or ``is_causal`` if a rank has not as many keys as queries, or the mask does not
            broadcast to the whole sequence; or if there is no process group.
        NotImplementedError: in forward mode and in transforms of ``torch.func``, and for a second derivative.
    """
    group = _group_of(group)
    is_masked = is_causal or mask is not None

    def facts() -> list[float]:
        check_inputs(q, k, v, scale, None, backend, equal_widths=True)
        if is_masked and q.shape[2] != k.shape[2]:
            raise ValueError(f"masked, q and k must be equally long on a rank, got {q.shape[2]} and {k.shape[2]}")
        if is_masked and zigzag and k.shape[2] < 2:
            raise ValueError(f"zigzag needs at least 2 positions on a rank, for two chunks, got {k.shape[2]}")
        check_backward_only("ring_attention", q, k, v)
        rule = None if mask is None else as_rule(mask)
        return _facts(q, k, scale, backend, is_causal=is_causal, zigzag=zigzag, mask=rule)

    lengths = _exchange_facts(group, q.device, facts)
    rule = Causal() if is_causal else None
    if mask is not None:
        check_fits_scores(as_rule(mask), (*q.shape[:2], sum(lengths), sum(lengths)))
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
    r"""Return attention of the same queries on every rank to keys and values of which each rank holds a part.

    .. math:: (o, \ell) = (o_1, \ell_1) \oplus \dots \oplus (o_R, \ell_R)

    Every rank attends to its part of the cache. One ``all_gather`` of ``d_k + 1`` numbers a query, in float32,
    exchanges the results, and ``merge_attention`` (:math:`\oplus`) merges them, identically on every rank. The
    communication does not depend on the length of the cache.

    Every query attends to every key, as one new token does in decoding. There is no backward pass.

    On each of 4 ranks, for one query a sequence and a cache of 4096 keys::

        out = split_kv_attention(q, k, v)  # q and out are over (b, h, 1, d_k), k and v over (b, g, 1024, d_k)

    Args:
        q: the queries, equal on all ranks.
        k, v: this rank's part of the keys and values; the parts may differ in length.
        scale: multiplier of the scores; ``1 / sqrt(d_k)`` when omitted.
        key_lengths: the rule ``Padding(key_lengths)`` for this rank's part, 0 to ``m`` keys a sequence.
        group, backend, return_lse: as :func:`ring_attention`.

    Raises:
        ValueError: as ``flash_attention``, on every rank; if the ranks differ in anything but the lengths of their
            parts; if a gradient is wanted; or if there is no process group.
    """
    group = _group_of(group)

    def facts() -> list[float]:
        check_inputs(q, k, v, scale, key_lengths, backend, equal_widths=True)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            raise ValueError("split_kv_attention has no backward pass; call it under torch.no_grad()")
        return _facts(q, k, scale, backend, n_queries=q.shape[2])

    lengths = _exchange_facts(group, q.device, facts)
    out, lse = flash_attention(q, k, v, scale=scale, key_lengths=key_lengths, backend=backend, return_lse=True)
    part = torch.cat([promote_half(out), lse[..., None]], dim=-1)
    parts = [torch.empty_like(part) for _ in lengths]
    distributed.all_gather(parts, part, group=group)
    out, lse = reduce(lambda a, b: merge_attention(*a, *b), [(p[..., :-1], p[..., -1]) for p in parts])
    out = out.to(q.dtype)
    return (out, lse) if return_lse else out


# --- the ring -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ring:
    """The options of a call of :func:`ring_attention`, the number of keys of each rank, and the communication."""

    group: ProcessGroup
    lengths: tuple[int, ...]  # the number of keys of each rank
    rule: Rule | None  # for the whole sequence; None hides nothing
    zigzag: bool
    scale: float | None
    backend: str

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""
        return distributed.get_rank(self.group)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rule: Rule | None) -> tuple[Tensor, Tensor]:
        """Return the output, in at least float32, and the log-sum-exp of attention to one block."""
        out, lse = flash_attention(q, k, v, rule, scale=self.scale, backend=self.backend, return_lse=True)
        return promote_half(out), lse

    def pairs(self, source: int) -> Iterator[tuple[slice, slice, Rule | None]]:
        """Yield chunks of rows of this rank and of keys of the source, with their rule, None if all is visible."""
        if self.rule is None:
            yield slice(None), slice(None), None
            return
        for rows, positions in self._chunks(self.rank):
            for keys, key_positions in self._chunks(source):
                coverage = self.rule.coverage(positions, key_positions)
                if coverage is Coverage.EMPTY:
                    continue
                offset = len(key_positions) - len(positions)  # attention puts the last query at the last key
                part = self.rule.shifted(positions.start - offset, key_positions.start)
                yield rows, keys, part if coverage is Coverage.PARTIAL else None

    def rounds(self, *blocks: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """Yield each rank with its blocks, this rank first; the next blocks arrive in the meantime."""
        last = len(self.lengths) - 1
        for step in range(last + 1):
            arriving, transfers = ((), []) if step == last else self._send_on(step, blocks)
            yield self._source(step), blocks
            _wait(transfers)
            blocks = arriving

    def send_gradients(self, step: int, *gradients: Tensor) -> tuple[Tensor, ...]:
        """Send gradients after their blocks; after the last step each rank has the gradients of its own block."""
        arriving, transfers = self._send_on(step, gradients)
        _wait(transfers)
        return arriving

    def _send_on(self, step: int, blocks: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], list[distributed.Work]]:
        """Start sending blocks to the next rank and receiving those of the previous one."""
        if len(self.lengths) == 1:
            return blocks, []
        length = self.lengths[self._source(step + 1)]
        arriving = tuple(block.new_empty(*block.shape[:2], length, block.shape[3]) for block in blocks)
        send, receive = ((self.rank + offset) % len(self.lengths) for offset in (1, -1))
        transfers = []
        for block, received in zip(blocks, arriving, strict=True):
            transfers.append(distributed.P2POp(distributed.isend, block, group=self.group, group_peer=send))
            transfers.append(distributed.P2POp(distributed.irecv, received, group=self.group, group_peer=receive))
        return arriving, distributed.batch_isend_irecv(transfers)

    def _source(self, step: int) -> int:
        """Return the rank whose block this rank has in a step."""
        return (self.rank - step) % len(self.lengths)

    def _chunks(self, rank: int) -> list[tuple[slice, range]]:
        """Return the chunks of a rank: the slice of the rank's part, and the positions in the whole sequence."""
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
        """Attend to every block in turn and merge the results."""
        out = torch.zeros_like(promote_half(q))
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
        """Send the blocks round once more and add up the gradients of each block."""
        q, k, v, out, lse = saved
        out, grad_out = promote_half(out), promote_half(grad_out)
        grad_q, grad_k, grad_v = (torch.zeros(x.shape, dtype=out.dtype, device=x.device) for x in (q, k, v))
        for step, (source, (key, value)) in enumerate(ctx.ring.rounds(k.contiguous(), v.contiguous())):
            for rows, keys, rule in ctx.ring.pairs(source):
                heads = [x.detach().requires_grad_() for x in (q[:, :, rows], key[:, :, keys], value[:, :, keys])]
                with torch.enable_grad():
                    part, part_lse = ctx.ring.attend(*heads, rule)
                    weight = (part_lse - lse[:, :, rows]).exp()
                    difference = weight[..., None] * (part - out[:, :, rows])
                    # A scalar whose derivatives by part and part_lse are the gradients in ring_attention's docstring.
                    scalar = (grad_out[:, :, rows] * difference).sum() + (grad_lse[:, :, rows] * weight).sum()
                grads = torch.autograd.grad(scalar, heads)
                for total, chunk, grad in zip((grad_q, grad_k, grad_v), (rows, keys, keys), grads, strict=True):
                    total[:, :, chunk] += grad
            grad_k, grad_v = ctx.ring.send_gradients(step, grad_k, grad_v)
        return *(grad.to(q.dtype) for grad in (grad_q, grad_k, grad_v)), None


# --- parts ----------------------------------------------------------------------------------------------------------

# The numbers that the ranks exchange. Only the first one may differ between ranks.
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
    "backend, as its index in BACKENDS,",
    "mask, as a hash of it,",
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
    """Return a hash of a rule that float64 represents exactly."""
    return int.from_bytes(hashlib.sha256(_to_bytes(rule)).digest()[:6], "big")


def _to_bytes(part: object) -> bytes:
    if isinstance(part, Rule):
        return type(part).__name__.encode() + b"(" + b",".join(map(_to_bytes, fields_of(part))) + b")"
    if isinstance(part, Tensor):
        return f"{tuple(part.shape)}".encode() + part.cpu().numpy().tobytes()
    return repr(part).encode()


def _exchange_facts(group: ProcessGroup, device: torch.device, facts: Callable[[], list[float]]) -> tuple[int, ...]:
    """Exchange this rank's facts, or the fact that its input is invalid; return the number of keys of each rank.

    An error on one rank is raised on all ranks: otherwise the others would wait for the blocks of that rank.
    """
    own_error, own_facts = None, [-1.0] * len(FACTS)
    try:
        own_facts = facts()
    except (ValueError, NotImplementedError) as error:
        own_error = error
    here = torch.tensor(own_facts, dtype=torch.float64, device=device)
    everywhere = [torch.empty_like(here) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(everywhere, here, group=group)
    if own_error is not None:
        raise own_error
    for rank, other_facts in enumerate(received.tolist() for received in everywhere):
        if other_facts[0] < 0:
            raise ValueError(
                f"rank {rank} must be given valid input, but raised an error; its own message gives the reason"
            )
        for name, own, other in zip(FACTS[1:], own_facts[1:], other_facts[1:], strict=True):
            if own != other:
                raise ValueError(f"{name} must be the same on all ranks, got {own:g} here and {other:g} on rank {rank}")
    return tuple(int(received[0]) for received in everywhere)


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
        raise ValueError("group must contain the calling process, got a group without it")
    return group
