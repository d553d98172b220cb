"""Answers to the assignment of Part I: right ones in any style, wrong ones with what they must be told."""

import math

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.attention import attention
from lessons_lib.checks import build_attention as check
from lessons_lib.masks import causal
from lessons_lib.multihead import KVCache, MultiHeadAttention
from lessons_lib.positions import RotaryEmbedding
from lessons_lib.softmax import softmax

# --- right answers ----------------------------------------------------------------------------------------------------


def weights(q, k):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)


def causal_mask(n, m):
    return torch.arange(m) <= torch.arange(m - n, m)[:, None]


def padding_mask(lengths, m):
    return (torch.arange(m)[None] < lengths[:, None]).view(-1, 1, 1, m)


def by_torch(q, k, v, mask=None):
    """PyTorch's own; since 2.5 a row without keys is zero there too."""
    return scaled_dot_product_attention(q, k, v, mask)


def gradients(implementation):
    """Make what the notebook has beside ``attend``: its gradients."""

    def answer(q, k, v, mask):
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(implementation(*given, mask).sum(), given)

    return answer


def split(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def merge(x):
    return torch.cat(x.unbind(1), dim=-1)


def attend_shared(q, k, v, mask):
    return scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def rotate(x, positions, base):
    """As complex numbers."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-torch.arange(half).double() / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def library(w, n_heads, n_kv_heads):
    d_head = w[0].shape[1] // n_heads
    options = {"n_kv_heads": n_kv_heads, "d_head": d_head, "prepare": RotaryEmbedding(d_head).prepare}
    made = MultiHeadAttention(w[0].shape[0], n_heads, **options).double()
    for linear, matrix in zip((made.w_q, made.w_k, made.w_v, made.w_o), w, strict=True):
        linear.weight.data = matrix.T
    return made


def layer(x, w, n_heads, n_kv_heads):
    return library(w, n_heads, n_kv_heads)(x, mask=causal(x.shape[1])).detach()


def decode(x, w, n_heads, n_kv_heads, cache):
    continued = KVCache()
    if cache is not None:
        continued.append(*cache)
    seen = len(continued) + x.shape[1]
    out = library(w, n_heads, n_kv_heads)(x, mask=causal(x.shape[1], seen), cache=continued)
    return out.detach(), tuple(kept.detach() for kept in continued.kept)


RIGHT = {
    check.weights: [weights, lambda q, k: weights(q, k).float()],
    check.causal_mask: [causal_mask],
    check.padding_mask: [padding_mask],
    check.attend: [attention, by_torch],
    check.gradients_of_attend: [gradients(attention)],
    check.split: [split],
    check.merge: [merge],
    check.attend_shared: [attend_shared],
    check.rotate: [rotate],
    check.layer: [layer],
    check.decode: [decode],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


def scores_over(q, k, divisor):
    return q @ k.mT / divisor


def shifted_by_the_whole(q, k):
    s = scores_over(q, k, math.sqrt(q.shape[-1]))
    e = (s - s.max()).exp()
    return e / e.sum(-1, keepdim=True)


def without_shift(q, k):
    e = scores_over(q, k, math.sqrt(q.shape[-1])).exp()
    return e / e.sum(-1, keepdim=True)


def without_sum(q, k):
    s = scores_over(q, k, math.sqrt(q.shape[-1]))
    return (s - s.amax(-1, keepdim=True)).exp()


WRONG[check.weights] = [
    (lambda q, k: softmax(q @ k.mT), "not divided by sqrt"),
    (lambda q, k: softmax(q @ k.mT / q.shape[-1]), "d_k instead of its root"),
    (lambda q, k: softmax(q @ k.mT / math.sqrt(k.shape[-2])), "not the number of keys"),
    (lambda q, k: softmax(q @ k.mT * math.sqrt(q.shape[-1])), "not multiplied"),
    (lambda q, k: softmax(k @ q.mT / math.sqrt(q.shape[-1])).mT, "over the last axis, the keys of each query"),
    (lambda q, k: (q @ k.mT / math.sqrt(q.shape[-1])).flatten().softmax(0).view(*q.shape[:-1], -1), "the whole tensor"),
    (lambda q, k: weights(k, q), "must have shape"),
    (lambda q, k: scores_over(q, k, math.sqrt(q.shape[-1])), "the softmax is missing"),
    (without_sum, "not divided by their sum"),
    (without_shift, "subtract the maximum of each row first"),
    (shifted_by_the_whole, "not of the whole tensor"),
    (lambda q, k: weights(q, k) ** 2, "wrong values"),
    (lambda q, k: weights(q, k).tolist(), "must be a tensor, got list"),
]


WRONG[check.causal_mask] = [
    (lambda n, m: ~causal_mask(n, m), "True means may attend"),
    (lambda n, m: torch.ones(n, m).tril().bool(), "the last n of the m positions"),
    (lambda n, m: torch.ones(n, m).tril(m - n - 1).bool(), "sees itself too"),
    (lambda n, m: torch.ones(n, m).triu(m - n).bool(), "what comes after it"),
    (lambda n, m: torch.ones(n, m).tril(m - n + 1).bool(), "one position too many"),
    (lambda n, m: torch.ones(n, m).bool(), "wrong values"),
    (lambda n, m: causal_mask(n, m).float(), "must be a Boolean tensor, got torch.float32"),
    (lambda n, m: causal_mask(n, m).tolist(), "must be a Boolean tensor, got list"),
    (lambda n, m: causal_mask(n, n), "must have shape"),
]


def sorting(lengths, m):
    lengths += 1
    return padding_mask(lengths - 1, m)


WRONG[check.padding_mask] = [
    (lambda lengths, m: ~padding_mask(lengths, m), "True means may attend"),
    (lambda lengths, m: padding_mask(lengths + 1, m), "0 to l - 1"),
    (lambda lengths, m: padding_mask(lengths - 1, m), "the last real key"),
    (lambda lengths, m: padding_mask(lengths, m).flip(-1), "the real keys come first"),
    (lambda lengths, m: padding_mask(lengths, m)[:, 0, 0], "an axis for the heads and one for the queries"),
    (lambda lengths, m: padding_mask(lengths, m)[:, 0], "must have shape"),
    (lambda lengths, m: padding_mask(lengths, m).int(), "must be a Boolean tensor"),
    (sorting, "changed its argument"),
]


def attending(weigh):
    """Make an answer of a function from scores and mask to weights."""

    def answer(q, k, v, mask=None):
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool) if mask is None else mask
        return weigh(q @ k.mT / math.sqrt(q.shape[-1]), mask) @ v

    return answer


def unshifted(s, mask):
    e = s.exp() * mask
    return e / e.sum(-1, keepdim=True).clamp_min(1e-9)


WRONG[check.attend] = [
    (lambda q, k, v, mask: attention(q, k, v), "the mask is ignored"),
    (lambda q, k, v, mask: attention(q, k, v, mask, scale=1.0), "not divided by sqrt"),
    (attending(lambda s, mask: softmax(s, ~mask if not mask.all() else mask)), "True means may attend"),
    (attending(lambda s, mask: softmax(s) * mask), "the mask comes after the softmax"),
    (attending(lambda s, mask: softmax(s * mask)), "a score of zero is not a weight of zero"),
    (attending(lambda s, mask: softmax(s.masked_fill(~mask, -1e9))), "attends to all that is hidden"),
    (attending(lambda s, mask: s.masked_fill(~mask, -torch.inf).softmax(-1)), "0 / 0 in a row without keys"),
    (attending(unshifted), "the maximum of the visible scores"),
    (lambda q, k, v, mask: attention(q, k, v, mask) * 2, "wrong values"),
    (lambda q, k, v, mask: attention(q, k, v, mask).mT, "must have shape"),
]


WRONG[check.gradients_of_attend] = [
    (gradients(attending(wrong)), says)
    for wrong, says in [
        (lambda s, mask: (s + torch.zeros(()).masked_fill(~mask, -torch.inf)).softmax(-1).nan_to_num(), "hold NaN"),
        (
            lambda s, mask: torch.where(mask, unshifted(s.detach(), mask), 0.0) + 0 * s,
            "gradient of q has the right shape",
        ),
    ]
]


WRONG[check.split] = [
    (lambda x, h: x.reshape(len(x), h, x.shape[1], -1), "a reshape alone mixes positions"),
    (lambda x, h: rearrange(x, "b n (d h) -> b h n d", h=h), "dealt out in turn"),
    (lambda x, h: x.unflatten(-1, (h, -1)), "must have shape"),
    (lambda x, h: split(x, h).flip(1), "wrong values"),
]


WRONG[check.merge] = [
    (lambda x: x.reshape(len(x), x.shape[2], -1), "a reshape alone mixes positions"),
    (lambda x: rearrange(x, "b h n d -> b n (d h)"), "dealt out in turn"),
    (lambda x: x.transpose(1, 2), "must have shape"),
    (lambda x: merge(x.flip(1)), "wrong values"),
]


def sharing(repeat_keys, repeat_values):
    def answer(q, k, v, mask):
        group = q.shape[1] // k.shape[1]
        return attention(q, repeat_keys(k, group), repeat_values(v, group), mask)

    return answer


def by_turns(x, group):
    return x.repeat(1, group, 1, 1)


def in_blocks(x, group):
    return x.repeat_interleave(group, dim=1)


WRONG[check.attend_shared] = [
    (sharing(by_turns, by_turns), "consecutive query heads share"),
    (sharing(in_blocks, by_turns), "the values of a query head"),
    (sharing(by_turns, in_blocks), "the keys of a query head"),
    (lambda q, k, v, mask: attention(q, k[:, :1], v[:, :1], mask), "the first key head"),
    (lambda q, k, v, mask: attend_shared(q, k, v, None), "the mask is ignored"),
    (lambda q, k, v, mask: attend_shared(q, k, v, mask) + 1, "wrong values"),
]


def by_rates(rates):
    """Make an answer of a function from the number of pairs and the base to the rates."""

    def answer(x, positions, base):
        half = x.shape[-1] // 2
        angles = positions[:, None] * rates(torch.arange(half).double(), half, base)
        first, second = x.chunk(2, dim=-1)
        return torch.cat(
            [first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], -1
        )

    return answer


def one_after_the_other(x, positions, base):
    half = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-torch.arange(half).double() / half)
    first, second = x.chunk(2, dim=-1)
    first = first * angles.cos() - second * angles.sin()
    return torch.cat([first, first * angles.sin() + second * angles.cos()], -1)


def in_place(x, positions, base):
    x[:] = rotate(x, positions, base)
    return x


WRONG[check.rotate] = [
    (lambda x, p, base: RotaryEmbedding(x.shape[-1], base=base, pairing="interleaved")(x, p), "neighbours"),
    (lambda x, p, base: rotate(x, -p, base), "it turns backwards"),
    (lambda x, p, base: rotate(x, torch.arange(len(p)), base), "the positions are ignored"),
    (by_rates(lambda i, half, base: base ** (-i / (2 * half))), "the number of the pair"),
    (by_rates(lambda i, half, base: base ** (i / half)), "with a minus"),
    (lambda x, p, base: rotate(x, p, 10_000.0), "the base is ignored"),
    (one_after_the_other, "not as it is after turning"),
    (in_place, "changed its argument"),
    (lambda x, p, base: x, "wrong values"),
]


def a_layer(
    x, w, h, g, *, causal_mask=causal, turn_q=True, turn_k=True, turn_v=False, whole=False, repeat=in_blocks, **options
):
    """A layer with one thing that can be wrong."""

    def turn(y):
        return RotaryEmbedding(y.shape[-1])(y)

    flat = [x @ matrix for matrix in w[:3]]
    flat = [turn(flat[0]), turn(flat[1]), flat[2]] if whole else flat
    q, k, v = (split(y, heads) for y, heads in zip(flat, (h, g, g), strict=True))
    turned = zip((q, k, v), (turn_q and not whole, turn_k and not whole, turn_v), strict=True)
    q, k, v = (turn(y) if yes else y for y, yes in turned)
    mask = causal_mask(x.shape[1]) if causal_mask else None
    return merge(attention(q, repeat(k, h // g), repeat(v, h // g), mask, **options)) @ w[3]


def merged_by_reshape(x, w, h, g):
    q, k, v = (split(x @ matrix, heads) for matrix, heads in zip(w, (h, g, g), strict=False))
    turn = RotaryEmbedding(q.shape[-1])
    out = attention(turn(q), turn(k), v, causal(x.shape[1]))
    return out.reshape(*x.shape[:2], -1) @ w[3]


RIGHT[check.layer].append(a_layer)
WRONG[check.layer] = [
    (lambda *given: a_layer(*given, causal_mask=None), "nothing hides the future"),
    (lambda *given: a_layer(*given, turn_q=False, turn_k=False), "queries and keys are not rotated"),
    (lambda *given: a_layer(*given, turn_k=False), "the keys are not rotated"),
    (lambda *given: a_layer(*given, turn_q=False), "the queries are not rotated"),
    (lambda *given: a_layer(*given, turn_v=True), "values are not"),
    (lambda *given: a_layer(*given, whole=True), "rotate after the split"),
    (lambda *given: a_layer(*given, scale=given[0].shape[-1] ** -0.5), "a head's width"),
    (lambda *given: a_layer(*given, repeat=by_turns), "consecutive query heads share"),
    (merged_by_reshape, "merge the heads before w_o"),
    (lambda *given: a_layer(*given) + given[0], "wrong values"),
]


def a_step(
    x,
    w,
    h,
    g,
    cache,
    *,
    q_from=None,
    k_from=None,
    mask=causal,
    again=False,
    keep=lambda all_so_far, h: all_so_far,
    turn_q=True,
    turn_k=True,
    turn_v=False,
    whole=False,
    repeat=in_blocks,
    join=merge,
    **options,
):
    """A step with one thing that can be wrong; positions and mask are told how many positions were seen."""

    def turn(y, positions):
        return RotaryEmbedding(y.shape[-1])(y, positions)

    seen = 0 if cache is None else cache[0].shape[2]
    here = torch.arange(seen, seen + x.shape[1])
    q, k, v = (x @ matrix for matrix in w[:3])
    q, k = (turn(q, here), turn(k, here)) if whole else (q, k)
    q, k, v = (split(y, heads) for y, heads in ((q, h), (k, g), (v, g)))
    if turn_q and not whole:
        q = turn(q, here if q_from is None else torch.arange(x.shape[1]))
    if turn_k and not whole and not again:
        k = turn(k, here if k_from is None else torch.arange(x.shape[1]))
    v = turn(v, here) if turn_v else v
    if cache is not None:
        k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
    k = turn(k, None) if again else k
    allowed = mask(x.shape[1], seen + x.shape[1])
    out = join(attention(q, repeat(k, h // g), repeat(v, h // g), allowed, **options)) @ w[3]
    return out, (keep(k, h), keep(v, h))


def reshaped(heads):
    b, h, n, d = heads.shape
    return heads.reshape(b, n, h * d)


def forgetful(x, w, h, g, cache):
    """Keeps everything and looks at its own piece alone."""
    return a_step(x, w, h, g, None)[0], a_step(x, w, h, g, cache)[1]


def with_a_memory_outside():
    calls = []

    def answer(*given):
        calls.append(given)
        out, kept = a_step(*given)
        return out + len(calls), kept

    return answer


RIGHT[check.decode].append(a_step)
WRONG[check.decode] = [
    (forgetful, "each piece sees itself alone"),
    (lambda *given: a_step(*given, q_from=0, k_from=0), "yours start at 0 in every piece"),
    (lambda *given: a_step(*given, q_from=0), "the queries stand where the cache ends"),
    (lambda *given: a_step(*given, k_from=0), "the new keys stand where the cache ends"),
    (
        lambda *given: a_step(*given, mask=lambda n, m: torch.ones(n, m).tril().bool()),
        "your mask takes them for the first",
    ),
    (lambda *given: a_step(*given, mask=lambda n, m: None), "within a piece the future is hidden too"),
    (lambda *given: a_step(*given, again=True), "has been rotated already"),
    (lambda *given: a_step(*given[:4], None), "after 4 positions the cached keys must have shape"),
    (
        lambda *given: a_step(*given, keep=lambda kept, h: in_blocks(kept, h // kept.shape[1])),
        "repeat them after you have kept them",
    ),
    (lambda *given: a_step(*given, turn_q=False, turn_k=False), "queries and keys are not rotated"),
    (lambda *given: a_step(*given, turn_k=False), "the keys are not rotated"),
    (lambda *given: a_step(*given, turn_q=False), "the queries are not rotated"),
    (lambda *given: a_step(*given, turn_v=True), "values are not"),
    (lambda *given: a_step(*given, whole=True), "rotate after the split"),
    (lambda *given: a_step(*given, scale=given[0].shape[-1] ** -0.5), "a head's width"),
    (lambda *given: a_step(*given, repeat=by_turns), "consecutive query heads share"),
    (lambda *given: a_step(*given, join=reshaped), "merge the heads before w_o"),
    (with_a_memory_outside(), "keep no state outside"),
    (lambda *given: a_step(*given)[0], "return the pair"),
    (lambda *given: (a_step(*given)[0], None), "the pair \\(keys, values\\)"),
    (lambda *given: (a_step(*given)[0][:, :1], a_step(*given)[1]), "one row for each row of x"),
    (lambda *given: (2 * a_step(*given)[0], a_step(*given)[1]), "wrong values"),
]
