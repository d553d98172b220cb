"""Checks of the assignment of Part I: attention from an empty file, in stages."""

import math
from collections.abc import Callable, Sequence

import torch
from einops import rearrange
from torch import Tensor

from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention
from lessons_lib.attention.positions import RotaryEmbedding
from lessons_lib.attention.softmax import softmax
from lessons_lib.checks import ask, check, compare, compare_mask, is_finite, normal
from lessons_lib.checks.masks import masking_mistakes
from lessons_lib.checks.positions import rotation_mistakes
from lessons_lib.checks.scaling import denominator_mistakes

Weights = tuple[Tensor, Tensor, Tensor, Tensor]
Cache = tuple[Tensor, Tensor]

# --- scores and softmax ---------------------------------------------------------------------------------------------


@check
def attention_weights(answer: Callable[[Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check the weights of scaled dot-product attention, for small scores and for scores that overflow ``exp``."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n, m, d_k = _distinct_sizes(4, generator)
        b, n = {2: (b, 1), 3: (1, n)}.get(case % 4, (b, n))
        leading = [(), (b,), (b, 3), (b,)][case % 4]
        q, k = normal(*leading, n, d_k, generator=generator), normal(*leading, m, d_k, generator=generator)
        where = f"n={n}, m={m}, d_k={d_k}, leading axes {leading}"
        _check_weights(answer, q, k, f"scores near 0, {where}")
        high_q, high_k = (torch.cat([torch.full_like(x[..., :1], 60.0), x], dim=-1) for x in (q, k))
        _check_weights(answer, high_q, high_k, f"scores in the thousands, {where}")
        q[..., 0, :] *= 3000
        _check_weights(answer, q, k, f"one long query, {where}")


def _check_weights(answer: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor, where: str) -> None:
    scores = q @ k.mT
    d_k, m = k.shape[-1], k.shape[-2]
    s = scores / math.sqrt(d_k)
    mistakes = {
        "the scores are not divided by sqrt(d_k)": softmax(scores),
        "did you divide by d_k instead of its square root?": softmax(scores / d_k),
        "divide by the square root of the width d_k, not of the number of keys": softmax(scores / math.sqrt(m)),
        "the scores are divided by sqrt(d_k), not multiplied": softmax(scores * math.sqrt(d_k)),
        "this is the matrix of scores; the softmax is missing": s,
    } | denominator_mistakes(s)
    got = ask("attention_weights", answer, q, k, where=where)
    cause = "subtract the maximum of each row" + (", not of the whole tensor" if "one long" in where else " first")
    assert is_finite(got), f"exp overflowed or underflowed: {cause} ({where})"
    compare("attention_weights", got, softmax(s), mistakes, where=where, scores=s)


# --- masks ----------------------------------------------------------------------------------------------------------


@check
def causal_mask(answer: Callable[[int, int], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check the causal mask of the last ``n`` of ``m`` positions."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n = 1 if case % 5 == 4 else int(torch.randint(2, 7, (), generator=generator))
        m = n + (int(torch.randint(1, 6, (), generator=generator)) if case else 0)
        everything = torch.ones(n, m, dtype=torch.bool)
        wanted = everything.tril(m - n)
        mistakes = {
            "the mask is inverted: True means may attend": ~wanted,
            "the queries are the last n of the m positions, not the first": everything.tril(),
            "a position attends to itself too": everything.tril(m - n - 1),
            "a position attends to later positions": everything.triu(m - n),
            "one position too many is visible": everything.tril(m - n + 1),
        }
        where = f"n={n}, m={m}"
        compare_mask("causal_mask", ask("causal_mask", answer, n, m, where=where), wanted, mistakes, where=where)


@check
def padding_mask(answer: Callable[[Tensor, int], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check the mask that hides the padding of sequences of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b = 1 if case % 5 == 4 else int(torch.randint(2, 5, (), generator=generator))
        m = b + int(torch.randint(3, 7, (), generator=generator))
        lengths = torch.randperm(m + 1, generator=generator)[:b]
        if case % 3 == 1:  # a sequence of padding only, and one without padding
            lengths[0], lengths[-1] = 0, m
        where = f"lengths={lengths.tolist()}, m={m}"
        got = ask("padding_mask", answer, lengths, m, where=where)
        place = torch.arange(m)
        length = lengths[:, None, None, None]
        mistakes = {
            "the mask is inverted: True means may attend": place >= length,
            "a sequence of length l has the keys 0 to l - 1": place <= length,
            "the last real key is visible too": place < length - 1,
            "the real keys come first, the padding last": place >= m - length,
        }
        flat = isinstance(got, Tensor) and got.shape == (b, m)
        assert not flat, f"padding_mask must have an axis for the heads and one for the queries, (b, 1, 1, m) ({where})"
        compare_mask("padding_mask", got, place < length, mistakes, where=where)


@check
def attend(answer: Callable[..., Tensor], *, seed: int = 0, cases: int = 3) -> None:
    """Check attention under a mask, also with rows that are fully masked."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        q, k, v, mask, later, where = _masked_attention_case(case, generator)
        _check_attention(answer, q, k, v, None, f"no mask, {where}")
        _check_attention(answer, q, k, v, mask[0, 0], f"a mask over (n, m), {where}")
        _check_attention(answer, q, k, v, mask, f"a mask over (b, 1, n, m), {where}")
        _check_attention(answer, q, k, v, mask[..., -1:, :], f"a mask over (b, 1, 1, m), {where}")
        each = mask ^ (torch.arange(q.shape[1])[:, None, None] % 2 == 1)
        _check_attention(answer, q, k, v, each, f"a mask over (b, h, n, m), {where}")
        _check_attention(answer, 3000 * q, k, v, mask, f"scores in the thousands, {where}")
        _check_attention(answer, q, k, v, mask & later, f"row 0 without keys, {where}")


@check
def gradients_of_attend(answer: Callable[..., tuple[Tensor, Tensor, Tensor]], *, seed: int = 0, cases: int = 3) -> None:
    """Check that the gradients of the sum of all outputs are finite and correct, with and without fully masked rows."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        q, k, v, mask, later, where = _masked_attention_case(case, generator)
        for allowed, kind in ((mask, "every row sees a key"), (mask & later, "row 0 without keys")):
            given = tuple(tensor.clone().requires_grad_() for tensor in (q, k, v))
            wanted = torch.autograd.grad(attention(given[0], given[1], given[2], allowed).sum(), given)
            returns, with_kind = "the gradients of q, k and v", f"{kind}, {where}"
            got = ask("gradients_of_attend", answer, q, k, v, allowed, where=with_kind, returns=returns, parts=3)
            assert is_finite(*got), (
                "the gradients contain NaN: a 0 / 0 that is replaced after the division is still a 0 / 0 in the "
                f"backward pass ({with_kind})"
            )
            for name, one, right in zip("qkv", got, wanted, strict=True):
                compare(f"the gradient of {name}", one, right, {}, where=with_kind)


def _masked_attention_case(case: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, str]:
    """Return queries, keys, values, a mask without empty rows, a mask that empties row 0, and a description."""
    b, h, n, m, d_k, d_v = _distinct_sizes(6, generator)
    b, h, n = {1: (1, h, n), 2: (b, 1, 1)}.get(case % 3, (b, h, n))
    q, k, v = (normal(b, h, *size, generator=generator) for size in ((n, d_k), (m, d_k), (m, d_v)))
    mask = torch.rand(b, 1, n, m, generator=generator) < 0.5
    mask[..., 0], mask[..., -1] = True, False  # every row has visible and hidden keys
    later = torch.arange(n)[:, None] > 0
    return q, k, v, mask, later, f"b={b}, h={h}, n={n}, m={m}, d_k={d_k}, d_v={d_v}"


def _check_attention(
    answer: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, where: str
) -> None:
    allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool) if mask is None else mask
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    wanted = softmax(scores, allowed) @ v
    mistakes = {
        "the mask is ignored": softmax(scores) @ v,
        "the scores are not divided by sqrt(d_k)": softmax(q @ k.mT, allowed) @ v,
    } | {why: wrong @ v for why, wrong in masking_mistakes(scores, allowed).items()}
    got = ask("attend", answer, q, k, v, mask, where=where)
    cause = (
        "0 / 0 in a row without visible keys: replace the sum before you divide"
        if "row 0" in where
        else "subtract the maximum of the visible scores, row by row"
    )
    assert is_finite(got), f"attend is not finite: {cause} ({where})"
    compare("attend", got, wanted, mistakes, where=where, scores=scores)


# --- heads ----------------------------------------------------------------------------------------------------------


@check
def split_heads(answer: Callable[[Tensor, int], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check the split of the last axis into heads, which become an axis before the positions."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n, h, d = _distinct_sizes(4, generator)
        b, n, h = {2: (b, n, 1), 3: (1, 1, h)}.get(case % 4, (b, n, h))
        x = normal(b, n, h * d, generator=generator)
        mistakes = {
            "a reshape alone mixes positions: split the last axis, then swap two axes": x.reshape(b, h, n, d),
            "the first d columns belong to head 0; here consecutive columns go to different heads": rearrange(
                x, "b n (d h) -> b h n d", h=h
            ),
        }
        where = f"b={b}, n={n}, n_heads={h}, d_head={d}"
        got = ask("split_heads", answer, x, h, where=where)
        compare("split_heads", got, rearrange(x, "b n (h d) -> b h n d", h=h), mistakes, where=where)


@check
def merge_heads(answer: Callable[[Tensor], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check the inverse of the split: the heads of each position are concatenated to one vector."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n, h, d = _distinct_sizes(4, generator)
        b, n, h = {2: (b, n, 1), 3: (1, 1, h)}.get(case % 4, (b, n, h))
        x = normal(b, h, n, d, generator=generator)
        mistakes = {
            "a reshape alone mixes positions: swap two axes first": x.reshape(b, n, h * d),
            "head 0 belongs in the first d columns; here consecutive columns come from different heads": rearrange(
                x, "b h n d -> b n (d h)"
            ),
        }
        where = f"b={b}, n={n}, n_heads={h}, d_head={d}"
        got = ask("merge_heads", answer, x, where=where)
        compare("merge_heads", got, rearrange(x, "b h n d -> b n (h d)"), mistakes, where=where)


@check
def grouped_query_attention(answer: Callable[..., Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check attention of query heads that share key/value heads, consecutive ones together."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n, m, d = _distinct_sizes(4, generator)
        g, group = (2 + torch.randperm(3, generator=generator)[:2]).tolist()
        g, group = {1: (1, group), 3: (g, 1)}.get(case % 5, (g, group))
        q, k, v = (normal(b, *size, d, generator=generator) for size in ((g * group, n), (g, m), (g, m)))
        mask = (torch.rand(b, g * group, n, m, generator=generator) < 0.6) | (torch.arange(m) == 0)
        mask = [mask[0, 0], mask[:, :1], mask, mask[:, :1], None][case % 5]
        by_turns, in_blocks = ([x.repeat(1, group, 1, 1), x.repeat_interleave(group, dim=1)] for x in (k, v))
        (turned_k, right_k), (turned_v, right_v) = by_turns, in_blocks
        wanted = attention(q, right_k, right_v, mask)
        mistakes = {
            "consecutive query heads share a key head; here every g-th query head shares one": attention(
                q, turned_k, turned_v, mask
            ),
            "a query head must use the values of the head whose keys it uses": attention(q, right_k, turned_v, mask),
            "a query head must use the keys of the head whose values it uses": attention(q, turned_k, right_v, mask),
            "all query heads use the first key head": attention(q, k[:, :1], v[:, :1], mask),
            "the mask is ignored": attention(q, right_k, right_v),
        }
        over = "no mask" if mask is None else f"mask over {tuple(mask.shape)}"
        where = f"{g * group} query heads, {g} key heads, {over}"
        got = ask("grouped_query_attention", answer, q, k, v, mask, where=where)
        compare("grouped_query_attention", got, wanted, mistakes, where=where)


# --- positions ------------------------------------------------------------------------------------------------------


@check
def rotate(answer: Callable[[Tensor, Tensor, float], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check RoPE with entry i paired with entry i + d/2, at any positions."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, h, n, pairs = _distinct_sizes(4, generator)
        n, pairs = {2: (1, pairs), 3: (n, 1)}.get(case % 4, (n, pairs))
        base = 10.0 ** float(1 + 3 * torch.rand((), generator=generator))
        positions = torch.randperm(50, generator=generator)[:n] + 1
        x = normal(*[(b, h), (), (b, h), (b,)][case % 4], n, 2 * pairs, generator=generator)
        where = f"shape {tuple(x.shape)}, base {base:.3g}, positions {positions.tolist()}"
        got = ask("rotate", answer, x, positions, base, where=where)
        right = RotaryEmbedding(2 * pairs, base=base)
        other_pairs = "these pairs are neighbours, 2i and 2i + 1; here i is paired with i + d/2"
        mistakes = rotation_mistakes(x, positions, right, other_pairs)
        compare("rotate", got, right(x, positions), mistakes, where=where, rounding=1e-5)


# --- the layer, and its cache ---------------------------------------------------------------------------------------


@check
def layer(answer: Callable[[Tensor, Weights, int, int], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check causal self-attention with several heads, grouped keys and values, and RoPE."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        x, w, h, g = _layer_case(case, generator)
        where = f"{tuple(x.shape)}, n_heads={h}, n_kv_heads={g}, d_head={w[0].shape[-1] // h}"
        wanted, mistakes = _layer(x, w, h, g), _layer_mistakes(x, w, h, g)
        got = ask("layer", answer, x, w, h, g, where=where)
        compare("layer", got, wanted, mistakes, where=where, rounding=1e-5)


@check
def decode(
    answer: Callable[[Tensor, Weights, int, int, Cache | None], tuple[Tensor, Cache]], *, seed: int = 0, cases: int = 4
) -> None:
    """Check that decoding in pieces with a KV cache equals one pass of the layer, and the contents of the cache."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        x, w, h, g = _layer_case(case, generator)
        sizes = [3, 1, *[2] * ((x.shape[1] - 4) // 2), *[1] * (x.shape[1] % 2)]
        where = f"{tuple(x.shape)} in pieces of {sizes}, n_heads={h}, n_kv_heads={g}"
        wanted = _layer(x, w, h, g)
        outs, cache, seen = [], None, 0
        for piece in x.split(sizes, dim=1):
            seen += piece.shape[1]
            out, following = _run_decode_step(answer, piece, w, h, g, cache, where)
            twin, _ = _run_decode_step(answer, piece, w, h, g, cache, where)
            stateless = out.shape == twin.shape and torch.allclose(out, twin, rtol=1e-5, atol=1e-5, equal_nan=True)
            assert stateless, (
                f"the same step with the same cache gives another result: store no state outside the cache ({where})"
            )
            cache = following
            _check_cache(cache, (x.shape[0], g, seen, w[0].shape[-1] // h), h, where)
            outs.append(out)
        joined = torch.cat(outs, dim=1)
        right = joined.dtype == wanted.dtype and torch.allclose(joined, wanted, rtol=0.0, atol=1e-9)
        mistakes = {} if right else _decode_mistakes(x, w, h, g, sizes)  # they take most of the time
        compare("decode", joined, wanted, mistakes, where=where, rounding=1e-5)


def _run_decode_step(
    answer: Callable[[Tensor, Weights, int, int, Cache | None], tuple[Tensor, Cache]],
    piece: Tensor,
    w: Weights,
    h: int,
    g: int,
    cache: Cache | None,
    where: str,
) -> tuple[Tensor, Cache]:
    returns = "the pair (out, cache)"
    out, kept = ask("decode", answer, piece, w, h, g, cache, where=where, returns=returns, parts=2)
    assert isinstance(out, Tensor), f"out must be a tensor, got {type(out).__name__}"
    assert out.shape == piece.shape, f"out must have one row for each row of x, {tuple(piece.shape)}, got {out.shape}"
    tensors = isinstance(kept, (tuple, list)) and len(kept) == 2 and all(isinstance(part, Tensor) for part in kept)
    assert tensors, f"the cache must be the pair (keys, values), got {type(kept).__name__}"
    return out, (kept[0], kept[1])


def _check_cache(cache: Cache, wanted: tuple[int, ...], h: int, where: str) -> None:
    b, g, seen, d_head = wanted
    for name, kept in zip(("keys", "values"), cache, strict=True):
        repeated = h != g and kept.shape == (b, h, seen, d_head)
        assert not repeated, f"the cache stores the {name} of {g} heads; repeat them after you store them ({where})"
        assert kept.shape == wanted, (
            f"after {seen} positions the cached {name} must have shape {wanted}, got {tuple(kept.shape)} ({where})"
        )


def _layer_case(case: int, generator: torch.Generator) -> tuple[Tensor, Weights, int, int]:
    """Draw inputs and matrices with axes of different sizes, even head widths and any number of positions.

    Some cases have a batch size of one, one key head, or as many key heads as query heads.
    """
    b, g, group = (2 + torch.randperm(3, generator=generator)[:3]).tolist()
    b, g, group = {1: (1, g, group), 2: (b, 1, group), 3: (b, g, 1)}.get(case % 4, (b, g, group))
    n = int(torch.randint(7, 11, (), generator=generator))
    d_head, d_model = 2 * int(torch.randint(2, 4, (), generator=generator)), 11
    h = g * group
    shapes = (d_model, h * d_head), (d_model, g * d_head), (d_model, g * d_head), (h * d_head, d_model)
    w_q, w_k, w_v, w_o = (normal(*shape, generator=generator) / math.sqrt(shape[0]) for shape in shapes)
    return 2 * normal(b, n, d_model, generator=generator), (w_q, w_k, w_v, w_o), h, g


def _heads(x: Tensor, w: Weights, h: int, g: int) -> tuple[Tensor, Tensor, Tensor]:
    split_into = zip(w[:3], (h, g, g), strict=True)
    q, k, v = (rearrange(x @ matrix, "b n (h d) -> b h n d", h=heads) for matrix, heads in split_into)
    return q, k, v


def _merge_heads(heads: Tensor) -> Tensor:
    return rearrange(heads, "b h n d -> b n (h d)")


def _layer(x: Tensor, w: Weights, h: int, g: int) -> Tensor:
    q, k, v = _heads(x, w, h, g)
    turn = RotaryEmbedding(q.shape[-1])
    return _merge_heads(attention(turn(q), turn(k), v, masks.causal(x.shape[1]))) @ w[3]


def _layer_mistakes(x: Tensor, w: Weights, h: int, g: int) -> dict[str, Tensor]:
    """Return the output of the layer with each likely mistake."""
    q, k, v = _heads(x, w, h, g)
    past, turn = masks.causal(x.shape[1]), RotaryEmbedding(q.shape[-1])
    turned = turn(q), turn(k)
    right = attention(*turned, v, past)
    whole_q, whole_k = (RotaryEmbedding(y.shape[-1])(y) for y in (x @ w[0], x @ w[1]))
    k_by_turns, v_by_turns = (y.repeat(1, h // g, 1, 1) for y in (turned[1], v))
    in_wrong_order = {
        "no mask hides later positions": attention(*turned, v),
        "queries and keys are not rotated": attention(q, k, v, past),
        "the keys are not rotated": attention(turned[0], k, v, past),
        "the queries are not rotated": attention(q, turned[1], v, past),
        "rotate only queries and keys, not values": attention(*turned, turn(v), past),
        "rotate after the split into heads: each head has all the frequencies": attention(
            rearrange(whole_q, "b n (h d) -> b h n d", h=h), rearrange(whole_k, "b n (g d) -> b g n d", g=g), v, past
        ),
        "divide by the square root of a head's width, not of the model's width": attention(
            *turned, v, past, scale=11**-0.5
        ),
        "consecutive query heads share a key head; here every g-th query head shares one": attention(
            turned[0], k_by_turns, v_by_turns, past
        ),
    }
    return {why: _merge_heads(heads) @ w[3] for why, heads in in_wrong_order.items()} | {
        "merge the heads before w_o; a reshape alone mixes positions": right.reshape(_merge_heads(right).shape) @ w[3],
    }


def _decode_mistakes(x: Tensor, w: Weights, h: int, g: int, sizes: Sequence[int]) -> dict[str, Tensor]:
    """Return the concatenated output of decoding with each likely mistake."""

    def in_pieces(
        *,
        restart_q: bool = False,
        restart_k: bool = False,
        top_left: bool = False,
        blind: bool = False,
        again: bool = False,
        unmerged: bool = False,
    ) -> Tensor:
        turn, outs, seen = RotaryEmbedding(w[0].shape[-1] // h), [], 0
        kept_k, kept_v = (x.new_zeros(x.shape[0], g, 0, turn.d_head) for _ in range(2))
        for piece in x.split(list(sizes), dim=1):
            q, k, v = _heads(piece, w, h, g)
            n, m = piece.shape[1], seen + piece.shape[1]
            here, start = torch.arange(seen, m), torch.arange(n)
            q = turn(q, start if restart_q else here)
            kept_v = torch.cat([kept_v, v], dim=-2)
            if again:  # the whole cache is rotated again in every step
                kept_k = turn(torch.cat([kept_k, k], dim=-2))
            else:
                kept_k = torch.cat([kept_k, turn(k, start if restart_k else here)], dim=-2)
            mask = masks.bidirectional(n, m) if blind else masks.causal(n, m)
            mask = masks.bidirectional(n, m).tril() if top_left else mask
            heads = attention(q, kept_k, kept_v, mask)
            rows = _merge_heads(heads)
            outs.append((heads.reshape(rows.shape) if unmerged else rows) @ w[3])
            seen = m
        return torch.cat(outs, dim=1)

    alone = [_layer(piece, w, h, g) for piece in x.split(list(sizes), dim=1)]
    mistakes = {
        "each piece attends only to itself; attend to the cached keys too": torch.cat(alone, dim=1),
        "positions continue where the cache ends; here they start at 0 in every piece": in_pieces(
            restart_q=True, restart_k=True
        ),
        "the positions of the queries start where the cache ends, not at 0": in_pieces(restart_q=True),
        "the positions of the new keys start where the cache ends, not at 0": in_pieces(restart_k=True),
        "the queries have the last of the keys' positions; this mask gives them the first": in_pieces(top_left=True),
        "within a piece later positions are hidden too": in_pieces(blind=True),
        "the cached keys are rotated already; rotate only the new keys": in_pieces(again=True),
        "merge the heads before w_o; a reshape alone mixes positions": in_pieces(unmerged=True),
    }
    of_layers = {why: wrong for why, wrong in _layer_mistakes(x, w, h, g).items() if "no mask hides" not in why}
    return of_layers | mistakes


# --- parts ----------------------------------------------------------------------------------------------------------


def _distinct_sizes(n_axes: int, generator: torch.Generator) -> list[int]:
    """Draw different sizes of at least 2."""
    return (2 + torch.randperm(n_axes + 2, generator=generator)[:n_axes]).tolist()
