"""Correct and wrong answers to the assignment of Part I, the wrong ones with the message they must get."""

import math

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.attention.attention import attention
from lessons_lib.attention.cache import KVCache
from lessons_lib.attention.masks import causal
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.positions import RotaryEmbedding
from lessons_lib.attention.softmax import softmax
from lessons_lib.checks import build_attention as check

# --- correct answers --------------------------------------------------------------------------------------------------


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


def grouped_query_attention(q, k, v, mask):
    return scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def rotate(x, positions, base):
    """As complex numbers."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-torch.arange(half).double() / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def library(w, n_heads, n_kv_heads):
    d_head = w[0].shape[1] // n_heads
    options = {"n_kv_heads": n_kv_heads, "d_head": d_head, "process_qk": RotaryEmbedding(d_head).process_qk}
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
    return out.detach(), tuple(kept.detach() for kept in continued.tensors)


RIGHT = {
    check.attention_weights: [weights, lambda q, k: weights(q, k).float()],
    check.causal_mask: [causal_mask],
    check.padding_mask: [padding_mask],
    check.attend: [attention, by_torch],
    check.gradients_of_attend: [gradients(attention)],
    check.split_heads: [split],
    check.merge_heads: [merge],
    check.grouped_query_attention: [grouped_query_attention],
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


WRONG[check.attention_weights] = [
    (lambda q, k: softmax(q @ k.mT), "not divided by sqrt"),
    (lambda q, k: softmax(q @ k.mT / q.shape[-1]), "d_k instead of its square root"),
    (lambda q, k: softmax(q @ k.mT / math.sqrt(k.shape[-2])), "not of the number of keys"),
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
    (lambda n, m: torch.ones(n, m).tril(m - n - 1).bool(), "attends to itself too"),
    (lambda n, m: torch.ones(n, m).triu(m - n).bool(), "attends to later positions"),
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
    (attending(lambda s, mask: s.masked_fill(~mask, -torch.inf).softmax(-1)), "0 / 0 in a row without visible keys"),
    (attending(unshifted), "the maximum of the visible scores"),
    (lambda q, k, v, mask: attention(q, k, v, mask) * 2, "wrong values"),
    (lambda q, k, v, mask: attention(q, k, v, mask).mT, "must have shape"),
]


WRONG[check.gradients_of_attend] = [
    (gradients(attending(wrong)), says)
    for wrong, says in [
        (lambda s, mask: (s + torch.zeros(()).masked_fill(~mask, -torch.inf)).softmax(-1).nan_to_num(), "contain NaN"),
        (
            lambda s, mask: torch.where(mask, unshifted(s.detach(), mask), 0.0) + 0 * s,
            "gradient of q has the right shape",
        ),
    ]
]


WRONG[check.split_heads] = [
    (lambda x, h: x.reshape(len(x), h, x.shape[1], -1), "a reshape alone mixes positions"),
    (lambda x, h: rearrange(x, "b n (d h) -> b h n d", h=h), "consecutive columns go to different heads"),
    (lambda x, h: x.unflatten(-1, (h, -1)), "must have shape"),
    (lambda x, h: split(x, h).flip(1), "wrong values"),
]


WRONG[check.merge_heads] = [
    (lambda x: x.reshape(len(x), x.shape[2], -1), "a reshape alone mixes positions"),
    (lambda x: rearrange(x, "b h n d -> b n (d h)"), "consecutive columns come from different heads"),
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


WRONG[check.grouped_query_attention] = [
    (sharing(by_turns, by_turns), "consecutive query heads share"),
    (sharing(in_blocks, by_turns), "must use the values of the head"),
    (sharing(by_turns, in_blocks), "must use the keys of the head"),
    (lambda q, k, v, mask: attention(q, k[:, :1], v[:, :1], mask), "the first key head"),
    (lambda q, k, v, mask: grouped_query_attention(q, k, v, None), "the mask is ignored"),
    (lambda q, k, v, mask: grouped_query_attention(q, k, v, mask) + 1, "wrong values"),
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
    (lambda *given: a_layer(*given, causal_mask=None), "no mask hides later positions"),
    (lambda *given: a_layer(*given, turn_q=False, turn_k=False), "queries and keys are not rotated"),
    (lambda *given: a_layer(*given, turn_k=False), "the keys are not rotated"),
    (lambda *given: a_layer(*given, turn_q=False), "the queries are not rotated"),
    (lambda *given: a_layer(*given, turn_v=True), "not values"),
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
    (forgetful, "each piece attends only to itself"),
    (lambda *given: a_step(*given, q_from=0, k_from=0), "here they start at 0 in every piece"),
    (lambda *given: a_step(*given, q_from=0), "the positions of the queries start where the cache ends"),
    (lambda *given: a_step(*given, k_from=0), "the positions of the new keys start where the cache ends"),
    (
        lambda *given: a_step(*given, mask=lambda n, m: torch.ones(n, m).tril().bool()),
        "this mask gives them the first",
    ),
    (lambda *given: a_step(*given, mask=lambda n, m: None), "within a piece later positions are hidden too"),
    (lambda *given: a_step(*given, again=True), "are rotated already"),
    (lambda *given: a_step(*given[:4], None), "after 4 positions the cached keys must have shape"),
    (
        lambda *given: a_step(*given, keep=lambda kept, h: in_blocks(kept, h // kept.shape[1])),
        "repeat them after you store them",
    ),
    (lambda *given: a_step(*given, turn_q=False, turn_k=False), "queries and keys are not rotated"),
    (lambda *given: a_step(*given, turn_k=False), "the keys are not rotated"),
    (lambda *given: a_step(*given, turn_q=False), "the queries are not rotated"),
    (lambda *given: a_step(*given, turn_v=True), "not values"),
    (lambda *given: a_step(*given, whole=True), "rotate after the split"),
    (lambda *given: a_step(*given, scale=given[0].shape[-1] ** -0.5), "a head's width"),
    (lambda *given: a_step(*given, repeat=by_turns), "consecutive query heads share"),
    (lambda *given: a_step(*given, join=reshaped), "merge the heads before w_o"),
    (with_a_memory_outside(), "store no state outside"),
    (lambda *given: a_step(*given)[0], "return the pair"),
    (lambda *given: (a_step(*given)[0], None), "the pair \\(keys, values\\)"),
    (lambda *given: (a_step(*given)[0][:, :1], a_step(*given)[1]), "one row for each row of x"),
    (lambda *given: (2 * a_step(*given)[0], a_step(*given)[1]), "wrong values"),
]


# --- further ones -----------------------------------------------------------------------------------------------------


def by_loops(n, m):
    return torch.tensor([[j <= i + m - n for j in range(m)] for i in range(n)])


def padding_by_loops(lengths, m):
    return torch.tensor([[[[j < length for j in range(m)]]] for length in lengths.tolist()])


def by_fancy_rows(q, k, v, mask=None):
    """Row by row, over the visible keys alone."""
    *leading, n, m = (q @ k.mT).shape
    allowed = (torch.ones(n, m) > 0 if mask is None else mask).expand(*leading, n, m).reshape(-1, n, m)
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)]
    out = q.new_zeros(len(flat[0]), n, v.shape[-1])
    for one, (a, b, c) in enumerate(zip(*flat, strict=True)):
        for i in range(n):
            seen = allowed[one, i]
            if seen.any():
                out[one, i] = (b[seen] @ a[i] / math.sqrt(len(a[i]))).softmax(0) @ c[seen]
    return out.view(*leading, n, -1)


def gradients_by_hand(q, k, v, mask):
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -torch.inf)
    a = scores.softmax(-1).nan_to_num()
    to_a = v.sum(-1)[..., None, :].expand_as(a)
    to_scores = a * (to_a - (a * to_a).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
    return to_scores @ k, to_scores.mT @ q, a.sum(-2)[..., None].expand_as(v)


def rotate_as_the_text_says(x, positions, base):
    """The obvious line, whose angles are in single precision."""
    d = x.shape[-1]
    angles = positions[:, None] * base ** (-2 * torch.arange(d // 2) / d)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([x1 * angles.cos() - x2 * angles.sin(), x1 * angles.sin() + x2 * angles.cos()], dim=-1)


def rotate_with_a_swap(x, positions, base):
    d = x.shape[-1]
    angles = torch.outer(positions.double(), base ** (-torch.arange(0, d, 2).double() / d)).repeat(1, 2)
    return x * angles.cos() + torch.cat([-x[..., d // 2 :], x[..., : d // 2]], dim=-1) * angles.sin()


def rotate_row_by_row(x, positions, base):
    out, half = x.clone(), x.shape[-1] // 2
    for row, t in enumerate(positions.tolist()):
        for i in range(half):
            c, s = math.cos(t * base ** (-i / half)), math.sin(t * base ** (-i / half))
            out[..., row, i] = c * x[..., row, i] - s * x[..., row, i + half]
            out[..., row, i + half] = s * x[..., row, i] + c * x[..., row, i + half]
    return out


def shared_by_groups(q, k, v, mask):
    g = k.shape[1]
    scores = torch.einsum("bgpnd,bgmd->bgpnm", q.unflatten(1, (g, -1)), k).flatten(1, 2) / math.sqrt(q.shape[-1])
    weights = softmax(scores, None if mask is None else mask.expand_as(scores)).unflatten(1, (g, -1))
    return torch.einsum("bgpnm,bgmd->bgpnd", weights, v).flatten(1, 2)


def shared_head_by_head(q, k, v, mask):
    heads = []
    for head in range(q.shape[1]):
        own = head * k.shape[1] // q.shape[1]
        mask_here = mask if mask is None or mask.dim() < 4 else mask[:, head % mask.shape[1]]
        heads.append(attention(q[:, head], k[:, own], v[:, own], mask_here))
    return torch.stack(heads, dim=1)


def single(answer):
    """The same answer, computed in single precision from the start."""

    def in_single(*given):
        return answer(*(x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given))

    return in_single


def layer_head_by_head(x, w, n_heads, n_kv_heads):
    d, turn = w[0].shape[1] // n_heads, RotaryEmbedding(w[0].shape[1] // n_heads)
    total = torch.zeros_like(x)
    for head in range(n_heads):
        own = head * n_kv_heads // n_heads
        q, k, v = (x @ matrix[:, at * d : (at + 1) * d] for matrix, at in zip(w[:3], (head, own, own), strict=True))
        total = total + attention(turn(q), turn(k), v, causal(x.shape[1])) @ w[3][head * d : (head + 1) * d]
    return total


def layer_with_single_angles(x, w, n_heads, n_kv_heads):
    q, k, v = (split(x @ m, heads) for m, heads in zip(w, (n_heads, n_kv_heads, n_kv_heads), strict=False))
    q, k = (rotate_as_the_text_says(y, torch.arange(x.shape[1]), 10_000.0) for y in (q, k))
    return merge(grouped_query_attention(q, k, v, causal(x.shape[1]))) @ w[3]


def decode_with_all_inputs(x, w, n_heads, n_kv_heads, cache):
    """Position by position, each with its own step."""
    outs = []
    for row in x.split(1, dim=1):
        out, cache = a_step(row, w, n_heads, n_kv_heads, cache)
        outs.append(out)
    return torch.cat(outs, dim=1), list(cache)


RIGHT[check.attention_weights] += [
    lambda q, k: (q @ k.mT / k.shape[-1] ** 0.5).log_softmax(-1).exp(),
    lambda q, k: softmax(q @ k.mT * q.shape[-1] ** -0.5),
]
RIGHT[check.causal_mask] += [
    by_loops,
    lambda n, m: ~torch.ones(n, m, dtype=torch.bool).triu(m - n + 1),
    lambda n, m: torch.ones(m, m).tril().bool()[m - n :],
]
RIGHT[check.padding_mask] += [
    padding_by_loops,
    lambda lengths, m: (torch.ones(len(lengths), m).cumsum(-1) <= lengths[:, None])[:, None, None],
    lambda lengths, m: torch.stack([torch.arange(m) < length for length in lengths]).unsqueeze(1).unsqueeze(1),
]
RIGHT[check.attend] += [by_fancy_rows, lambda q, k, v, mask: softmax(q @ k.mT / q.shape[-1] ** 0.5, mask) @ v]
RIGHT[check.gradients_of_attend] += [gradients_by_hand, gradients(by_torch), single(gradients(attention))]
RIGHT[check.split_heads] += [
    lambda x, h: torch.stack(x.chunk(h, dim=-1), dim=1),
    lambda x, h: rearrange(x, "b n (h d) -> b h n d", h=h).contiguous(),
    lambda x, h: x.view(*x.shape[:2], h, -1).permute(0, 2, 1, 3).float(),
]
RIGHT[check.merge_heads] += [
    lambda x: rearrange(x, "b h n d -> b n (h d)"),
    lambda x: x.permute(0, 2, 1, 3).flatten(2),
    lambda x: torch.stack([torch.cat(list(rows), dim=-1) for rows in x]),
]
RIGHT[check.grouped_query_attention] += [shared_by_groups, shared_head_by_head, single(grouped_query_attention)]
RIGHT[check.rotate] += [rotate_as_the_text_says, rotate_with_a_swap, rotate_row_by_row]
RIGHT[check.layer] += [layer_head_by_head, layer_with_single_angles]
RIGHT[check.decode] += [
    decode_with_all_inputs,
    lambda x, w, h, g, cache: a_step(x, w, h, g, cache and tuple(kept.clone() for kept in cache)),
]
WRONG[check.attention_weights] += [(lambda q, k: weights(q, k) * (1 + 1e-4), "right shape and wrong values")]
WRONG[check.causal_mask] += [
    (lambda n, m: by_loops(m, m)[:n], "wrong values|not the first"),
    (lambda n, m: torch.eye(n, m).bool(), "wrong values, in"),
]
WRONG[check.padding_mask] += [
    (lambda lengths, m: padding_mask(lengths.sort().values, m), "wrong values, in", 9),
    (lambda lengths, m: padding_mask(lengths, m).expand(-1, 1, m, m), "must have shape"),
    (lambda lengths, m: padding_mask(lengths.clamp_min(1), m), "wrong values, in", 9),
]
WRONG[check.attend] += [(attending(lambda s, mask: softmax(s - 1e4 * ~mask)), "attends to all|wrong values|in row 0")]
WRONG[check.gradients_of_attend] += [
    (gradients(lambda q, k, v, mask: attention(q, k, v)), "gradient of q has the right shape"),
    (gradients(lambda q, k, v, mask: attention(q, k, v, mask, scale=1.0)), "gradient of q has the right shape"),
    (gradients(lambda q, k, v, mask: attention(q, k, v, ~mask)), "gradient of q has the right shape"),
    (gradients(attending(lambda s, mask: softmax(s) * mask)), "gradient of q has the right shape"),
    (lambda *given: gradients(attention)(*given)[:2], "the gradients of q, k and v, got 2 things"),
    (lambda *given: gradients(attention)(*given)[::-1], "the gradient of q must have shape"),
    (lambda *given: gradients(attention)(*given)[1], "got one Tensor"),
    (lambda *given: [2 * grad for grad in gradients(attention)(*given)], "gradient of q has the right shape"),
]
WRONG[check.split_heads] += [
    (lambda x, h: split(x, h).mT, "must have shape"),
    (lambda x, h: split(x, h)[:, :-1], "must have shape"),
    (lambda x, h: split(x.flip(-1), h), "wrong values"),
    (lambda x, h: x.mT.reshape(len(x), h, -1, x.shape[1]).mT.flip(2), "wrong values"),
    (lambda x, h: x.chunk(h, dim=-1), "must be a tensor, got tuple"),
    (lambda x, h: split(x, h).flip(2), "wrong values"),
]
WRONG[check.merge_heads] += [
    (lambda x: x.flatten(1, 2), "must have shape"),
    (lambda x: x.mean(1), "must have shape"),
    (lambda x: merge(x.flip(2)), "wrong values"),
    (lambda x: x.permute(0, 3, 1, 2).flatten(1, 2), "must have shape"),
    (lambda x: merge(x).flip(-1), "wrong values"),
    (lambda x: list(x.unbind(1)), "must be a tensor, got list"),
]
WRONG[check.grouped_query_attention] += [
    (lambda q, k, v, mask: grouped_query_attention(q, k.flip(1), v.flip(1), mask), "wrong values"),
    (lambda q, k, v, mask: grouped_query_attention(q, k, v, ~mask), "wrong values|NaN"),
    (lambda q, k, v, mask: grouped_query_attention(q, k, v, mask)[:, : k.shape[1]], "must have shape"),
    (
        lambda q, k, v, mask: grouped_query_attention(q, k.mean(1, keepdim=True), v.mean(1, keepdim=True), mask),
        "wrong values",
    ),
    (lambda q, k, v, mask: grouped_query_attention(q * q.shape[-1] ** 0.5, k, v, mask), "wrong values"),
]
WRONG[check.rotate] += [
    (lambda x, p, base: rotate(x, p - p[0], base), "wrong values"),
    (lambda x, p, base: rotate(x, p, base) / 2**0.5, "wrong values"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def weights_with_one_leading_axis(q, k):
    return weights(q, k) if q.dim() < 4 else weights(q[0], k[0])[None]


def with_the_heads_in_one(q, k, v, mask):
    """Takes the mask of the first head for all heads."""
    return grouped_query_attention(q, k, v, mask if mask is None or mask.dim() < 4 else mask[:, :1])


WRONG[check.attention_weights] += [(weights_with_one_leading_axis, "must have shape")]
WRONG[check.attend] += [
    (
        lambda q, k, v, mask: attention(q, k, v, mask if mask is None else mask.view(-1, 1, q.shape[2], k.shape[2])),
        "shape",
    ),
    (lambda q, k, v, mask: attention(q, k, v, mask if mask is None or mask.dim() < 4 else mask[:, :1]), "wrong values"),
]
WRONG[check.grouped_query_attention] += [
    (with_the_heads_in_one, "wrong values"),
    (lambda q, k, v, mask: grouped_query_attention(q, k, v, mask & True), "unsupported operand"),
]
WRONG[check.rotate] += [
    (lambda x, p, base: torch.stack([rotate(row, p, base) for row in x]) if x.dim() > 2 else x, "wrong")
]
