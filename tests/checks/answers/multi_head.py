"""Answers to the exercises on several heads: correct ones in any style, wrong ones with the expected message."""

import math

import torch

from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.checks import multi_head as check

# --- right answers ----------------------------------------------------------------------------------------------------


def head_by_head(x, w_q, w_k, w_v, w_o, n_heads):
    width = x.shape[-1] // n_heads
    total = torch.zeros_like(x)
    for head in range(n_heads):
        own = slice(head * width, (head + 1) * width)
        scores = (x @ w_q[:, own]) @ (x @ w_k[:, own]).T / math.sqrt(width)
        total = total + scores.softmax(-1) @ x @ w_v[:, own] @ w_o[own]
    return total


def by_layer(x, w_q, w_k, w_v, w_o, n_heads):
    layer = MultiHeadAttention(x.shape[-1], n_heads).to(x.dtype)
    for linear, matrix in zip((layer.w_q, layer.w_k, layer.w_v, layer.w_o), (w_q, w_k, w_v, w_o), strict=True):
        linear.weight.data = matrix.T
    return layer(x[None])[0].detach()


def by_cutting(x, w_q, w_k, w_v, w_o, n_heads, scale=None, dim=-1):
    n, d_model = x.shape
    q, k, v = ((x @ w).view(n, n_heads, -1).transpose(0, 1) for w in (w_q, w_k, w_v))
    weights = (q @ k.mT * (scale or (d_model // n_heads) ** -0.5)).softmax(dim)
    return (weights @ v).transpose(0, 1).reshape(n, d_model) @ w_o


def by_query_head(q, past_k, past_v, k, v):
    rows = []
    for head in range(len(q)):
        group = head * len(k) // len(q)
        keys, values = torch.vstack([past_k[group], k[group]]), torch.vstack([past_v[group], v[group]])
        rows.append((keys @ q[head] / math.sqrt(q.shape[-1])).softmax(-1) @ values)
    return torch.stack(rows)


def by_group(q, past_k, past_v, k, v, scale=None):
    keys, values = torch.cat([past_k, k[:, None]], 1), torch.cat([past_v, v[:, None]], 1)
    grouped = q.view(len(k), -1, q.shape[-1])
    weights = (grouped @ keys.mT * (scale or q.shape[-1] ** -0.5)).softmax(-1)
    return (weights @ values).flatten(0, 1)


RIGHT = {
    check.multi_head: [head_by_head, by_layer, by_cutting, lambda x, *rest: by_cutting(x, *rest).float()],
    check.decode_step: [by_query_head, by_group],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


def without_output(x, w_q, w_k, w_v, w_o, n_heads):
    return by_cutting(x, w_q, w_k, w_v, torch.eye(x.shape[-1], dtype=x.dtype), n_heads)


def full_width(x, w_q, w_k, w_v, w_o, n_heads):
    return by_cutting(x, w_q, w_k, w_v, w_o, 1)


def cut_sequence(x, w_q, w_k, w_v, w_o, n_heads, undo=False):
    n, d_model = x.shape
    q, k, v = ((x @ w).view(n_heads, n, -1) for w in (w_q, w_k, w_v))
    out = (q @ k.mT / math.sqrt(d_model // n_heads)).softmax(-1) @ v
    return (out.transpose(0, 1) if undo else out).reshape(n, d_model) @ w_o


def badly_joined(x, w_q, w_k, w_v, w_o, n_heads):
    n, d_model = x.shape
    q, k, v = ((x @ w).view(n, n_heads, -1).transpose(0, 1) for w in (w_q, w_k, w_v))
    return ((q @ k.mT / math.sqrt(d_model // n_heads)).softmax(-1) @ v).reshape(n, d_model) @ w_o


def interleaved(x, w_q, w_k, w_v, w_o, n_heads):
    total = torch.zeros(len(x), x.shape[-1], dtype=x.dtype)
    for head in range(n_heads):
        q, k, v = (x @ w[:, head::n_heads] for w in (w_q, w_k, w_v))
        total[:, head::n_heads] = (q @ k.T / math.sqrt(q.shape[-1])).softmax(-1) @ v
    return total @ w_o


def in_place(x, w_q, w_k, w_v, w_o, n_heads):
    x += 1
    return x


WRONG[check.multi_head] = [
    (without_output, "the product with w_o is missing"),
    (lambda x, *rest: by_cutting(x, *rest, scale=x.shape[-1] ** -0.5), "not of d_model"),
    (lambda *all_: by_cutting(*all_, scale=1.0), "not divided by the square root"),
    (full_width, "one head of the full width"),
    (cut_sequence, "the split divides the positions"),
    (lambda *all_: cut_sequence(*all_, undo=True), "but it divides the positions"),
    (badly_joined, "transpose the heads behind the positions"),
    (interleaved, "consecutive columns"),
    (lambda *all_: by_cutting(*all_, dim=-2), "the last axis"),
    (in_place, "changed its arguments"),
    (lambda x, *_: x[:1], "must have shape"),
    (lambda x, *_: x, "wrong values"),
]


def only_the_past(q, past_k, past_v, k, v):
    weights = (q.view(len(k), -1, q.shape[-1]) @ past_k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return (weights @ past_v).flatten(0, 1)


def tiled(q, past_k, past_v, k, v):
    order = torch.arange(len(q)) % len(k)
    keys, values = torch.cat([past_k, k[:, None]], 1)[order], torch.cat([past_v, v[:, None]], 1)[order]
    return ((q[:, None] @ keys.mT / math.sqrt(q.shape[-1])).softmax(-1) @ values)[:, 0]


def one_query_per_group(q, past_k, past_v, k, v):
    mean = q.view(len(k), -1, q.shape[-1]).mean(1, keepdim=True).expand(-1, len(q) // len(k), -1)
    return by_group(mean.reshape(q.shape), past_k, past_v, k, v)


def key_in_front(q, past_k, past_v, k, v):
    keys, values = torch.cat([k[:, None], past_k], 1), torch.cat([past_v, v[:, None]], 1)
    weights = (q.view(len(k), -1, q.shape[-1]) @ keys.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return (weights @ values).flatten(0, 1)


def fills_the_cache(q, past_k, past_v, k, v):
    past_k[:, 0] = k
    return by_group(q, past_k, past_v, k, v)


WRONG[check.decode_step] = [
    (only_the_past, "attends to itself too"),
    (tiled, "repeat_interleave, not repeat"),
    (one_query_per_group, "only keys and values are shared"),
    (lambda *all_: by_group(*all_, scale=1.0), "not divided by the square root of d_k"),
    (lambda *all_: by_group(*all_, scale=all_[2].shape[-1] ** -0.5), "the width of a query"),
    (key_in_front, "append both the new key and the new value"),
    (fills_the_cache, "changed its arguments"),
    (lambda *all_: by_group(*all_).T, "must have shape"),
    (lambda *all_: by_group(*all_) + 1, "wrong values"),
]


# --- further ones -----------------------------------------------------------------------------------------------------


def by_sums_over_indices(q, past_k, past_v, k, v):
    keys, values = torch.cat([past_k, k.unsqueeze(1)], 1), torch.cat([past_v, v.unsqueeze(1)], 1)
    grouped = q.unflatten(0, (len(k), -1))
    weights = torch.einsum("gpd,gmd->gpm", grouped, keys).div(q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("gpm,gmd->gpd", weights, values).flatten(0, 1)


def by_the_old_average(q, past_k, past_v, k, v):
    """The average over the cache, and the new value mixed in by its share."""
    rows = []
    for head, query in enumerate(q):
        g = head // (len(q) // len(k))
        past, own = past_k[g] @ query / math.sqrt(len(query)), k[g] @ query / math.sqrt(len(query))
        share = torch.sigmoid(own - past.logsumexp(0))
        rows.append((1 - share) * (past.softmax(0) @ past_v[g]) + share * v[g])
    return torch.stack(rows)


def overwriting(at):
    def answer(q, past_k, past_v, k, v):
        past_k, past_v = past_k.clone(), past_v.clone()
        past_k[:, at], past_v[:, at] = k, v
        return only_the_past(q, past_k, past_v, k, v)

    return answer


def transposed(x, w_q, w_k, w_v, w_o, n_heads):
    return by_cutting(x, w_q.T, w_k.T, w_v.T, w_o.T, n_heads)


def pooled(x, w_q, w_k, w_v, w_o, n_heads):
    width = x.shape[-1] // n_heads
    heads = without_output(x, w_q, w_k, w_v, w_o, n_heads).unflatten(-1, (n_heads, width))
    return heads.mean(1).repeat(1, n_heads) @ w_o


RIGHT[check.decode_step] += [
    by_sums_over_indices,
    by_the_old_average,
    lambda *given: by_group(*(x.float() for x in given)),
    lambda *given: by_group(*given, scale=1 / torch.sqrt(torch.tensor(given[0].shape[-1]))),
]
RIGHT[check.multi_head] += [
    lambda *given: by_cutting(*given, scale=1 / torch.sqrt(torch.tensor(given[0].shape[-1] // given[-1])))
]
WRONG[check.multi_head] += [
    (transposed, "do not transpose them"),
    (pooled, "not averaged or added"),
    (lambda x, a, b, c, o, h: by_cutting(x, b, a, c, o, h), "wrong values"),
]
WRONG[check.decode_step] += [
    (overwriting(-1), "do not overwrite a cached one"),
    (overwriting(0), "do not overwrite a cached one"),
    (lambda q, *rest: by_group(q.flip(0), *rest), "wrong values"),
]


# --- what each head adds ----------------------------------------------------------------------------------------------


def contributions(heads, w_o, *, order=lambda blocks: blocks):
    return heads @ order(w_o.reshape(len(heads), heads.shape[-1], -1))


def by_slices(heads, w_o):
    width = heads.shape[-1]
    return torch.stack([head @ w_o[i * width : (i + 1) * width] for i, head in enumerate(heads)])


def with_the_others_at_zero(heads, w_o):
    parts = []
    for i in range(len(heads)):
        alone = torch.zeros_like(heads)
        alone[i] = heads[i]
        parts.append(torch.cat(list(alone), dim=-1) @ w_o)
    return torch.stack(parts)


def whole(heads, w_o):
    return (torch.cat(list(heads), dim=-1) @ w_o).expand(len(heads), -1, -1)


RIGHT[check.contributions] = [
    contributions,
    by_slices,
    with_the_others_at_zero,
    lambda heads, w_o: torch.einsum("hnd,hdm->hnm", heads, w_o.unflatten(0, (len(heads), -1))),
    lambda heads, w_o: contributions(heads.float(), w_o.float()),
]
WRONG[check.contributions] = [
    (
        lambda heads, w_o: heads @ w_o.view(heads.shape[-1], len(heads), -1).transpose(0, 1),
        "consecutive rows of w_o, not every h-th row",
    ),
    (lambda heads, w_o: heads @ w_o[: heads.shape[-1]], "your heads all use the first rows"),
    (lambda heads, w_o: contributions(heads, w_o, order=lambda blocks: blocks.flip(0)), "in the wrong order"),
    (whole, "the whole output for each head"),
    (lambda heads, w_o: whole(heads, w_o) / len(heads), "divides the whole output evenly"),
    (lambda heads, w_o: whole(heads, w_o) - contributions(heads, w_o), "the output without the head"),
    (lambda heads, w_o: contributions(heads, w_o).cumsum(0), "the cumulative sum over the heads"),
    (lambda heads, w_o: contributions(heads, w_o) / len(heads), "contributions are added, not averaged"),
    (
        lambda heads, w_o: contributions(heads, w_o).sum(0),
        "return the contribution of each head, of shape .* not the sum",
    ),
    (lambda heads, w_o: contributions(heads, w_o).transpose(0, 1), "must have shape"),
    (lambda heads, w_o: contributions(heads, w_o, order=lambda blocks: blocks.roll(1, 0)), "wrong values"),
    (lambda heads, w_o: contributions(heads - heads.mean(0), w_o), "wrong values"),
    (lambda heads, w_o: list(contributions(heads, w_o)), "must be a tensor, got list"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def without_an_axis_of_one(q, past_k, past_v, k, v):
    return by_group(q, past_k.squeeze(1) if past_k.shape[1] == 1 else past_k, past_v, k, v)


WRONG[check.decode_step] += [
    (without_an_axis_of_one, "dimensions|size"),
]
