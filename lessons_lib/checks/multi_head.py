"""Checks of the exercises on multi-head attention."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.attention.attention import attention
from lessons_lib.checks import Wrong, ask, check, compare


@check
def contributions(answer: Callable[[Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check the contribution of each head to the output of a layer."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        h, n, d_k, d_model = (2 + torch.randperm(6, generator=generator)[:4]).tolist()
        h, n = {2: (1, n), 3: (h, 1)}.get(case % 4, (h, n))
        heads = torch.randn(h, n, d_k, generator=generator, dtype=torch.float64)
        w_o = torch.randn(h * d_k, d_model, generator=generator, dtype=torch.float64)
        in_turn = w_o.reshape(d_k, h, d_model).transpose(0, 1)
        blocks = w_o.reshape(h, d_k, d_model)
        wanted, whole = heads @ blocks, (_merge(heads) @ w_o).expand(h, n, d_model)
        mistakes = {
            "head i owns the i-th block of consecutive rows of w_o, not every h-th row": heads @ in_turn,
            "each head has its own rows of w_o; your heads all use the first rows": heads @ w_o[:d_k],
            "the blocks of w_o are in the wrong order": heads @ blocks.flip(0),
            "this is the whole output for each head, not the head's own part": whole,
            "the contributions differ; this result divides the whole output evenly": whole / h,
            "this is the output without the head, not the head's contribution": whole - wanted,
            "this is the cumulative sum over the heads, not each contribution": wanted.cumsum(dim=0),
            "contributions are added, not averaged: do not divide by the number of heads": wanted / h,
        }
        where = f"h={h}, n={n}, d_k={d_k}, d_model={d_model}"
        got = ask("contributions", answer, heads, w_o, where=where)
        summed = isinstance(got, Tensor) and got.shape == (n, d_model)
        assert not summed, f"return the contribution of each head, of shape {(h, n, d_model)}, not the sum ({where})"
        compare("contributions", got, wanted, mistakes, where=where)


@check
def multi_head(answer: Callable[..., Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check a multi-head attention layer with four given matrices."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n_heads, width = (torch.randint(0, 3, (2,), generator=generator) + torch.tensor([2, 2])).tolist()
        n_heads, width = {2: (1, width), 3: (n_heads, 1)}.get(case % 4, (n_heads, width))
        n = n_heads * int(
            torch.randint(2, 4, (), generator=generator)
        )  # divisible by n_heads, so that a split along the wrong axis has a valid shape
        d_model = n_heads * width
        x = torch.randn(n, d_model, generator=generator, dtype=torch.float64)
        matrices = torch.randn(4, d_model, d_model, generator=generator, dtype=torch.float64) / math.sqrt(width)
        where = f"n={n}, d_model={d_model}, n_heads={n_heads}"
        got = ask("multi_head", answer, x, *matrices, n_heads, where=where)
        compare("multi_head", got, *_layers(x, matrices, n_heads), where=where)


def _layers(x: Tensor, matrices: Tensor, n_heads: int) -> tuple[Tensor, dict[str, Wrong]]:
    """Return the layer's output, and the output with each likely mistake."""
    (n, d_model), (w_q, w_k, w_v, w_o) = x.shape, matrices
    rows = x @ w_q, x @ w_k, x @ w_v
    width = d_model // n_heads
    heads = attention(*(_split(r, n_heads) for r in rows))
    cut = attention(*(r.reshape(n_heads, n, width) for r in rows))
    every = attention(*(r.reshape(n, width, n_heads).permute(2, 0, 1) for r in rows))
    q, k, v = (_split(r, n_heads) for r in rows)
    over_queries = (q @ k.mT / math.sqrt(width)).softmax(dim=-2) @ v
    return _merge(heads) @ w_o, {
        "the product with w_o is missing": _merge(heads),
        "divide by the square root of the head's width, not of d_model": _merge(attention(q, k, v, scale=d_model**-0.5))
        @ w_o,
        "the scores are not divided by the square root of the head's width": _merge(attention(q, k, v, scale=1.0))
        @ w_o,
        "this is one head of the full width": attention(*rows) @ w_o,
        "the split divides the positions: view (n, h, d_k) first, then transpose": cut.reshape(n, d_model) @ w_o,
        "the split is undone, but it divides the positions: view (n, h, d_k) first, then transpose": _merge(cut) @ w_o,
        "transpose the heads behind the positions before you merge them": heads.reshape(n, d_model) @ w_o,
        "a head owns consecutive columns, not every h-th column": every.permute(1, 2, 0).reshape(n, d_model) @ w_o,
        "the softmax runs over the keys of each query, the last axis": _merge(over_queries) @ w_o,
        "the matrices are multiplied from the right as they are; do not transpose them": _transposed_matrices(
            x, matrices, n_heads
        ),
        "head outputs are concatenated, not averaged or added": [
            pooled.repeat(1, n_heads) @ w_o for pooled in (heads.mean(dim=0), heads.sum(dim=0))
        ]
        + [pooled @ w_o[:width] for pooled in (heads.mean(dim=0), heads.sum(dim=0))],
    }


def _transposed_matrices(x: Tensor, matrices: Tensor, n_heads: int) -> list[Tensor]:
    """Return the output with all four matrices transposed, with the first three, and with the last."""
    w_q, w_k, w_v, w_o = matrices
    ways = ((w_q.T, w_k.T, w_v.T, w_o.T), (w_q.T, w_k.T, w_v.T, w_o), (w_q, w_k, w_v, w_o.T))
    return [_merge(attention(*(_split(x @ w, n_heads) for w in way[:3]))) @ way[3] for way in ways]


def _split(rows: Tensor, n_heads: int) -> Tensor:
    return rows.reshape(len(rows), n_heads, -1).transpose(0, 1)


def _merge(heads: Tensor) -> Tensor:
    return heads.transpose(0, 1).reshape(heads.shape[1], -1)


@check
def decode_step(answer: Callable[..., Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check a decoding step with grouped heads: a new token's queries attend to the cache and to its own key."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        g, per_group, d_k, m = (torch.randint(0, 3, (4,), generator=generator) + torch.tensor([2, 2, 3, 4])).tolist()
        g, per_group, m = {2: (1, per_group, m), 3: (g, 1, 1)}.get(case % 4, (g, per_group, m))
        d_v = d_k + 1
        shapes = (g * per_group, d_k), (g, m, d_k), (g, m, d_v), (g, d_k), (g, d_v)
        arguments = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        where = f"h={g * per_group}, g={g}, d_k={d_k}, {m} tokens in the cache"
        got = ask("decode_step", answer, *arguments, where=where)
        compare("decode_step", got, *_decode_and_mistakes(*arguments), where=where)


def _decode_and_mistakes(
    q: Tensor, past_k: Tensor, past_v: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, dict[str, Wrong]]:
    """Return the output of each head, and the output with each likely mistake."""
    all_k, all_v = torch.cat([past_k, k[:, None]], dim=1), torch.cat([past_v, v[:, None]], dim=1)
    per_group = len(q) // len(k)

    def step(keys: Tensor, values: Tensor, scale: float | None = None) -> Tensor:
        keys, values = (kept.repeat_interleave(per_group, dim=0) for kept in (keys, values))
        return attention(q[:, None], keys, values, scale=scale).squeeze(1)

    def other_order(kept: Tensor) -> Tensor:
        return kept.repeat(per_group, 1, 1)

    by_group = q.reshape(len(k), per_group, -1).mean(dim=1, keepdim=True)
    return step(all_k, all_v), {
        "the new token attends to itself too: append its key and value to the cached ones": step(past_k, past_v),
        "consecutive query heads share a key/value head: repeat_interleave, not repeat": attention(
            q[:, None], other_order(all_k), other_order(all_v)
        ).squeeze(1),
        "each query head keeps its own weights; only keys and values are shared": attention(by_group, all_k, all_v)
        .expand(-1, per_group, -1)
        .reshape(len(q), -1),
        "the scores are not divided by the square root of d_k": step(all_k, all_v, 1.0),
        "divide by the square root of d_k, the width of a query, not of d_v": step(
            all_k, all_v, all_v.shape[-1] ** -0.5
        ),
        "append the new key and value to the cached ones; do not overwrite a cached one": [
            step(_with_overwritten_cache(past_k, k, at), _with_overwritten_cache(past_v, v, at)) for at in (-1, 0)
        ],
        "append both the new key and the new value after the cached ones": step(
            torch.cat([k[:, None], past_k], dim=1), all_v
        ),
    }


def _with_overwritten_cache(kept: Tensor, new: Tensor, at: int) -> Tensor:
    kept = kept.clone()
    kept[:, at] = new
    return kept
