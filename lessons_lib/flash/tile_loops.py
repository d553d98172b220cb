"""The loops over the tiles of one sequence, forward and backward; their results are written into given memory.

Queries and results are over ``(g, h / g, n, …)``, keys and values over ``(g, m, …)``.
"""

import torch
from torch import Tensor

from lessons_lib.attention.rules import Coverage, Rule, tiles
from lessons_lib.flash import tile_shapes
from lessons_lib.flash.dropout import Dropout
from lessons_lib.flash.tile_scores import Scorer
from lessons_lib.flash.tile_shapes import (
    TileBuffer,
    block_of,
    flatten_group,
    kv_blocks,
    query_blocks,
    split_rows,
    tile_size,
    unflatten_group,
    with_ones,
)


def attend_tiles(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    rule: Rule,
    scorer: Scorer,
    dropout: Dropout | None,
) -> None:
    """Fill ``out`` and ``lse``."""
    unit, small = scorer.unit, scorer.small
    queries = flatten_group(query)
    row_sums = torch.zeros_like(queries[..., :1])
    # The initial maximum is finite, so that exp(-inf - maximum) is 0 as long as a row has had no key.
    row_maxima = torch.full_like(row_sums, 0.0 if small else torch.finfo(row_sums.dtype).min)
    if scorer.sinks is not None:  # a sink counts as the first key of each row, without a value
        sinks = scorer.sinks.expand(-1, query.shape[2], -1, -1).reshape(row_maxima.shape)
        row_maxima = torch.maximum(row_maxima, sinks)
        row_sums += unit.exp_(sinks - row_maxima)
    size = tile_size(rule, query, key, tile_shapes.TILE_SCORES)
    buffer, kv_block = TileBuffer(query, size), kv_blocks(key, value)
    for rows, positions, block in query_blocks(query, key, size):
        q, row_sum, row_max = (x[:, rows] for x in (queries, row_sums, row_maxima))
        average = q.new_zeros(*q.shape[:2], value.shape[-1])
        for keys, coverage in tiles(rule, positions, key.shape[1], size.keys):
            k, v = kv_block(keys)
            scores = scorer.scores(q, k, positions, keys, scorer.product_scale, out=buffer)
            if not small:
                if coverage is Coverage.PARTIAL:
                    scorer.mask_(scores, rule, positions, keys)
                new_max = torch.maximum(row_max, scores.amax(dim=-1, keepdim=True))
                scores.sub_(new_max)
                shrink = unit.exp_(row_max.sub_(new_max))
                row_sum.mul_(shrink)
                average.mul_(shrink)
                row_max.copy_(new_max)
            weights = unit.exp_(scores)
            if small and coverage is Coverage.PARTIAL:
                scorer.mask_(weights, rule, positions, keys)
            row_sum.add_(weights.sum(dim=-1, keepdim=True))
            if dropout is not None:
                weights.mul_(dropout.keeps(positions, keys))
            average.baddbmm_(weights, v)
        row_sum = row_sum.clamp_min(torch.finfo(row_sum.dtype).tiny)
        if dropout is not None:
            row_sum = (1 - dropout.p) * row_sum
        torch.div(split_rows(average, positions), split_rows(row_sum, positions), out=block_of(out, block))
    unflatten_group((row_maxima + unit.log(row_sums)) / unit.per_nat, lse)


def tile_gradients(
    query: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    key: Tensor,
    value: Tensor,
    grad_query: Tensor,
    grad_key: Tensor,
    grad_value: Tensor,
    rule: Rule,
    scorer: Scorer,
    dropout: Dropout | None,
) -> None:
    """Fill ``grad_query``, ``grad_key`` and ``grad_value``."""
    unit, small = scorer.unit, scorer.small
    row_lse = unit.per_nat * flatten_group(lse)
    queries, grads_out = flatten_group(query), flatten_group(grad_out)
    delta = (grads_out * flatten_group(out)).sum(dim=-1, keepdim=True) - flatten_group(grad_lse)
    scorer.accumulate_sink_grad(row_lse, delta)
    # A number that is subtracted from a whole row of a product is appended to the left factor, and a one to the right
    # factor, so that the product subtracts it. The log-sum-exp is not subtracted from small scores: their exponentials
    # are the weights up to one factor a row, and the gradients of the row are multiplied by that factor instead.
    grads_out = torch.cat([grads_out, -delta], dim=-1)
    product_scale, prescale = (scorer.product_scale, 1.0) if small else (1.0, scorer.product_scale)
    if small:
        grads_out *= unit.exp_(-row_lse)
    else:
        queries = torch.cat([queries * prescale, -row_lse], dim=-1)
    size = tile_size(rule, query, key, tile_shapes.TILE_SCORES // 2)
    weight_buffer, score_buffer = TileBuffer(query, size), TileBuffer(query, size)
    cap_grad_buffer = None if scorer.softcap is None else TileBuffer(query, size)
    kv_block = kv_blocks(key, key if small else with_ones(key), with_ones(value), grad_key, grad_value)
    if size.is_masked:
        grad_key.zero_()
        grad_value.zero_()
    for rows, positions, block in query_blocks(query, key, size):
        # Without a mask the first block of queries meets every key, and its product overwrites the empty gradients.
        beta = float(size.is_masked or block.start > 0)
        q_and_lse, grad_o_and_delta = queries[:, rows], grads_out[:, rows]
        q, grad_o = q_and_lse[..., : key.shape[-1]], grad_o_and_delta[..., : value.shape[-1]]
        grad_q = q.new_zeros(q.shape)
        for keys, coverage in tiles(rule, positions, key.shape[1], size.keys):
            k, k_and_one, v_and_one, grad_k, grad_v = kv_block(keys)
            if cap_grad_buffer is None:
                scores = scorer.scores(q_and_lse, k_and_one, positions, keys, product_scale, out=weight_buffer)
            else:
                scores = scorer.scores(q, k, positions, keys, out=weight_buffer, cap_grad=cap_grad_buffer)
                scores.add_(q_and_lse[..., -1:])
            if coverage is Coverage.PARTIAL and not small:
                scorer.mask_(scores, rule, positions, keys)
            weights = unit.exp_(scores)
            if coverage is Coverage.PARTIAL and small:
                scorer.mask_(weights, rule, positions, keys)
            grad_scores = score_buffer.tile(q, keys)
            if dropout is None:
                torch.baddbmm(grad_v, weights.mT, grad_o, beta=beta, out=grad_v)
                torch.bmm(grad_o_and_delta, v_and_one.mT, out=grad_scores)
            else:  # delta is not dropped
                kept = dropout.keeps(positions, keys)
                dropped = torch.mul(weights, kept, out=grad_scores)
                torch.baddbmm(grad_v, dropped.mT, grad_o, beta=beta, alpha=1 / (1 - dropout.p), out=grad_v)
                torch.bmm(grad_o, v_and_one[..., :-1].mT, out=grad_scores)
                grad_scores.mul_(kept).div_(1 - dropout.p).add_(grad_o_and_delta[..., -1:])
            grad_scores.mul_(weights)
            scorer.accumulate_slope_grad(grad_scores, positions, keys)
            scorer.accumulate_bias_grad(grad_scores, positions, keys)
            if cap_grad_buffer is not None:
                grad_scores.mul_(cap_grad_buffer.tile(q, keys))
            left, right = q, k
            if scorer.may_have_nan and coverage is Coverage.PARTIAL:
                # A hidden score has no gradient. Zero times NaN would be NaN, so NaN is replaced in both factors.
                scorer.fill_hidden_(grad_scores, rule, positions, keys, 0.0)
                left, right = (x.nan_to_num(0.0, 0.0, 0.0) for x in (q, k))
            torch.baddbmm(grad_k, grad_scores.mT, left, beta=beta, alpha=scorer.scale / prescale, out=grad_k)
            grad_q.baddbmm_(grad_scores, right, alpha=scorer.scale)
        block_of(grad_query, block).copy_(split_rows(grad_q, positions))
