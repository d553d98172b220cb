"""Correct and wrong answers to the exercises on the modern Transformer, the wrong ones with their message."""

import math

import numpy as np
import torch
from torch.nn.functional import gelu, silu

from lessons_lib.checks import modern as check
from lessons_lib.transformer.feedforward import Router, SwiGLU

# --- correct answers --------------------------------------------------------------------------------------------------


def balance_loss(p, k):
    n, n_experts = p.shape
    f = p.topk(k, dim=-1).indices.flatten().bincount(minlength=n_experts) / (n * k)
    return n_experts * (f.to(p) * p.mean(0)).sum()


def balance_in_a_loop(p, k):
    n, n_experts = p.shape
    chosen = [0] * n_experts
    for row in p.tolist():
        for i in sorted(range(n_experts), key=lambda i: -row[i])[:k]:
            chosen[i] += 1
    return n_experts * sum(chosen[i] / (n * k) * p[:, i].mean().item() for i in range(n_experts))


def balance_of_a_router(p, k):
    return Router(p.shape[-1], k, capacity_factor=None, renormalise=False)(p.log()).balance_loss


def tokens_per_call(alpha, k):
    return sum(alpha**j for j in range(k + 1))


def by_probabilities(alpha, k):
    exactly = [alpha**j * (1 - alpha) for j in range(k)] + [alpha**k]
    return sum((j + 1) * chance for j, chance in enumerate(exactly))


def by_formula(alpha, k):
    return k + 1 if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)


def best_draft(alpha, c, most):
    gains = [tokens_per_call(alpha, k) / (1 + k * c) for k in range(most + 1)]
    return gains.index(max(gains))


def best_by_steps(alpha, c, most):
    """Go on while another word pays: it adds alpha to the k, and c, and the gain has one hill."""
    k = 0
    while k < most and alpha ** (k + 1) * (1 + k * c) > c * tokens_per_call(alpha, k):
        k += 1
    return k


def latent_attention(q, c, w_uk, w_uv):
    absorbed = torch.einsum("hd,hdc->hc", q, w_uk)
    weights = (absorbed @ c.T / math.sqrt(q.shape[-1])).softmax(-1)
    return absorbed, torch.einsum("hvc,hc->hv", w_uv, weights @ c)


def head_by_head(q, c, w_uk, w_uv):
    carried = [w.T @ one for w, one in zip(w_uk, q, strict=True)]
    outputs = [w @ (c.T @ torch.softmax(c @ one / q.shape[-1] ** 0.5, 0)) for w, one in zip(w_uv, carried, strict=True)]
    return [torch.stack(carried), torch.stack(outputs)]


def with_keys_made(q, c, w_uk, w_uv):
    keys, values = torch.einsum("mc,hdc->hmd", c, w_uk), torch.einsum("mc,hvc->hmv", c, w_uv)
    out = torch.nn.functional.scaled_dot_product_attention(q[:, None], keys, values)[:, 0]
    return (q[:, None] @ w_uk)[:, 0], out


def swiglu(x, w_gate, w_up, w_down):
    return (silu(x @ w_gate) * (x @ w_up)) @ w_down


def swiglu_by_a_sigmoid(x, w_gate, w_up, w_down):
    gate, up = (torch.einsum("...d,df->...f", x, w) for w in (w_gate, w_up))
    return torch.einsum("...f,fd->...d", gate * torch.sigmoid(gate) * up, w_down)


def swiglu_as_one_product(x, w_gate, w_up, w_down):
    """Both products at once, and the exponential where it cannot overflow."""
    gate, up = (x @ torch.cat([w_gate, w_up], 1)).chunk(2, -1)
    small = torch.exp(-gate.abs())
    sigmoid = torch.where(gate >= 0, 1 / (1 + small), small / (1 + small))
    return (up * gate * sigmoid) @ w_down


def swiglu_as_the_formula_says(x, w_gate, w_up, w_down):
    """The exponential of a large number is infinity, and a number divided by infinity is zero."""
    gate = x @ w_gate
    return (gate / (1 + torch.exp(-gate)) * (x @ w_up)) @ w_down


def swiglu_of_the_library(x, w_gate, w_up, w_down):
    layer = SwiGLU(*w_gate.shape, bias=False).to(x.dtype)
    with torch.no_grad():
        for parameter, w in zip((layer.w_gate, layer.w_up, layer.w_down), (w_gate, w_up, w_down), strict=True):
            parameter.weight.copy_(w.T)
        return layer(x)


def gated_width(d_ff, multiple):
    return 2 * d_ff // (3 * multiple) * multiple


def width_by_trying(d_ff, multiple):
    width = 0
    while 3 * (width + multiple) <= 2 * d_ff:
        width += multiple
    return width


def width_in_two_steps(d_ff, multiple):
    width = 2 * d_ff // 3
    return width - width % multiple


RIGHT = {
    check.swiglu: [
        swiglu,
        swiglu_by_a_sigmoid,
        swiglu_as_one_product,
        swiglu_as_the_formula_says,
        swiglu_of_the_library,
        lambda *given: swiglu(*(x.float() for x in given)),
    ],
    check.gated_width: [
        gated_width,
        width_by_trying,
        width_in_two_steps,
        lambda d_ff, multiple: np.int64(gated_width(d_ff, multiple)),
        lambda d_ff, multiple: torch.tensor(float(gated_width(d_ff, multiple))),
    ],
    check.balance_loss: [
        balance_loss,
        balance_in_a_loop,
        balance_of_a_router,
        lambda p, k: balance_loss(p.float(), k),
        lambda p, k: np.float64(balance_loss(p, k)),
    ],
    check.tokens_per_call: [
        tokens_per_call,
        by_probabilities,
        by_formula,
        lambda alpha, k: torch.tensor([alpha**j for j in range(k + 1)], dtype=torch.float64).sum(),
    ],
    check.best_draft: [
        best_draft,
        best_by_steps,
        lambda *given: float(best_draft(*given)),
        lambda alpha, c, most: torch.tensor(
            [tokens_per_call(alpha, k) / (1 + k * c) for k in range(most + 1)]
        ).argmax(),
    ],
    check.latent_attention: [
        latent_attention,
        head_by_head,
        with_keys_made,
        lambda *given: [part.float() for part in latent_attention(*given)],
    ],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------


def gating(way):
    """Another use of the two products."""
    return lambda x, w_gate, w_up, w_down: way(x @ w_gate, x @ w_up) @ w_down


def overflowing(x, w_gate, w_up, w_down):
    gate = x @ w_gate
    return (gate * gate.exp() / (1 + gate.exp()) * (x @ w_up)) @ w_down


WRONG = {}

WRONG[check.swiglu] = [
    (gating(lambda gate, up: gate * silu(up)), "belongs to the gate"),
    (gating(lambda gate, up: gate * up), "the activation is missing"),
    (gating(lambda gate, up: silu(gate * up)), "not to the product"),
    (gating(lambda gate, up: silu(gate) * silu(up)), "only the gate has an activation"),
    (gating(lambda gate, up: gate.sigmoid() * up), "not the sigmoid alone"),
    (gating(lambda gate, up: gelu(gate) * up), "not GELU"),
    (gating(lambda gate, up: gate.relu() * up), "not ReLU"),
    (gating(lambda gate, up: silu(gate) + up), "not added"),
    (gating(lambda gate, up: silu(gate)), "this layer has no gate"),
    (gating(lambda gate, up: silu(up)), "the gate is missing"),
    (lambda x, *w: x + swiglu(x, *w), "does not add its input"),
    (lambda *given: silu(swiglu(*given)), "without an activation"),
    (overflowing, "is not finite"),
    (gating(lambda gate, up: gate.softmax(-1) * up), "wrong values"),
    (lambda x, w_gate, w_up, w_down: silu(x @ w_gate) * (x @ w_up), "must have shape"),
    (lambda *given: swiglu(*given).tolist(), "must be a tensor"),
    (lambda *given: None, "did you forget to return"),
]

WRONG[check.gated_width] = [
    (lambda d_ff, m: math.ceil(2 * d_ff / 3 / m) * m, "round down, not up"),
    (lambda d_ff, m: round(2 * d_ff / 3 / m) * m, "round down, not up"),
    (lambda d_ff, m: 2 * d_ff // 3, "must be a multiple"),
    (lambda d_ff, m: 2 * d_ff / 3, "must be a multiple"),
    (lambda d_ff, m: 2 * d_ff // (3 * m), "not the number of multiples"),
    (lambda d_ff, m: d_ff // m * m, "three matrices"),
    (lambda d_ff, m: d_ff // 2 // m * m, "three matrices"),
    (lambda d_ff, m: 3 * d_ff // 2 // m * m, "three matrices"),
    (lambda d_ff, m: 8 * d_ff // 3 // m * m, "not d "),
    (lambda d_ff, m: (2 * d_ff - 1) // (3 * m) * m, "may be equal"),
    (lambda d_ff, m: 4 * d_ff, ", wanted "),
    (lambda d_ff, m: torch.tensor([gated_width(d_ff, m)]), "a tensor must have shape"),
    (lambda d_ff, m: str(gated_width(d_ff, m)), "must be a number"),
    (lambda d_ff, m: None, "did you forget to return"),
]


def shares(p, k):
    return torch.zeros_like(p).scatter(-1, p.topk(k, dim=-1).indices, 1.0)


def balance_without_those_whom_nobody_chose(p, k):
    f = p.topk(k, dim=-1).indices.flatten().bincount() / (len(p) * k)
    return p.shape[1] * (f.to(p) * p.mean(0)).sum()


WRONG[check.balance_loss] = [
    (lambda p, k: k * balance_loss(p, k), "each token makes k choices"),
    (lambda p, k: balance_loss(p, k) / p.shape[1], "the factor E"),
    (lambda p, k: len(p) * balance_loss(p, k), "not a sum"),
    (lambda p, k: len(p) * k * balance_loss(p, k), "not a count"),
    (lambda p, k: k * balance_loss(p, k) / p.shape[1], "not k"),
    (lambda p, k: p.shape[1] * p.mean(0).square().sum(), "this result squares the mean probabilities"),
    (lambda p, k: p.shape[1] * (shares(p, k).mean(0) / k).square().sum(), "this result squares the shares"),
    (lambda p, k: balance_loss(p, 1), "not one"),
    (
        lambda p, k: p.shape[1] * (shares(p, k).mean(0) / k * (p * shares(p, k)).mean(0)).sum(),
        "that did not choose the expert",
    ),
    (
        lambda p, k: (
            p.shape[1]
            * ((shares(p, k).mean(0) / k) * (p * shares(p, k) / (p * shares(p, k)).sum(-1, keepdim=True)).mean(0)).sum()
        ),
        "renormalised over the chosen experts",
    ),
    (lambda p, k: p.shape[1], "then multiply by E"),
    (lambda p, k: 1.0, ", wanted "),
    (lambda p, k: balance_loss(p, max(k, 2)), ", wanted "),
    (lambda p, k: balance_loss(p, min(k, p.shape[1] - 1)), ", wanted "),
    (lambda p, k: p.shape[1] * p.mean(0) * shares(p, k).mean(0) / k, "must have shape"),
    (lambda p, k: None, "did you forget to return"),
]

WRONG[check.tokens_per_call] = [
    (lambda alpha, k: tokens_per_call(alpha, k) - 1, "the large model adds a token of its own"),
    (lambda alpha, k: tokens_per_call(alpha, k - 1), "all k tokens may be accepted"),
    (lambda alpha, k: 1 + k * alpha, "only if all drafted tokens before it were accepted"),
    (lambda alpha, k: k * alpha, "and the large model adds a token"),
    (lambda alpha, k: 1 / (1 - alpha) if alpha < 1 else math.inf, "the sum is finite"),
    (lambda alpha, k: alpha**k, "the probability that all k tokens are accepted"),
    (lambda alpha, k: 1 + k * alpha**k, "does not discard the accepted tokens"),
    (lambda alpha, k: tokens_per_call(1 - alpha, k), "not rejected"),
    (lambda alpha, k: tokens_per_call(alpha, k + 1), "terms, from the power 0 on"),
    (lambda alpha, k: k + 1, ", wanted "),
    (lambda alpha, k: tokens_per_call(alpha, k) if alpha < 1 else 2.5, ", wanted "),
    (lambda alpha, k: [tokens_per_call(alpha, k)], "must be a number, got list"),
]


def best(gain):
    return lambda alpha, c, most: max(range(most + 1), key=lambda k: gain(tokens_per_call(alpha, k), k, c))


def best_by_a_formula_that_divides(alpha, c, most):
    return max(range(most + 1), key=lambda k: (1 - alpha ** (k + 1)) / (1 - alpha) / (1 + k * c))


def largest_of_equal(alpha, c, most):
    return max(range(most, -1, -1), key=lambda k: tokens_per_call(alpha, k) / (1 + k * c))


WRONG[check.best_draft] = [
    (best(lambda tokens, k, c: tokens), "calls of the small model take time too"),
    (lambda alpha, c, most: max(1, best_draft(alpha, c, most)), "k = 0 is allowed"),
    (best(lambda tokens, k, c: tokens / (k * c) if k else 0.0), "call of the large model takes time too"),
    (best(lambda tokens, k, c: (tokens - 1) / (1 + k * c)), "own token counts too"),
    (best(lambda tokens, k, c: tokens / (1 + c)), "calls of the small model take time too"),
    (best(lambda tokens, k, c: tokens - 1 - k * c), "not a difference"),
    (lambda alpha, c, most: best_draft(alpha, c, most - 1), "the range includes most"),
    (
        lambda alpha, c, most: tokens_per_call(alpha, best_draft(alpha, c, most)),
        "not the tokens or the tokens per unit of time",
    ),
    (best(lambda tokens, k, c: tokens / (1 + (k + 1) * c)), "not k \\+ 1: a round takes 1 \\+ k c"),
    (largest_of_equal, "if two numbers are equally good"),
    (lambda alpha, c, most: best_draft(alpha, c, most) if alpha < 1 else 1, "best_draft is "),
    (lambda alpha, c, most: best_draft(alpha, c, most) if alpha > 0 else 1, ", wanted |k = 0 is allowed"),
    (lambda alpha, c, most: 0, ", wanted "),
    (lambda alpha, c, most: best_draft(alpha, c, 50 * most), ", wanted "),
    (lambda alpha, c, most: [best_draft(alpha, c, most)], "must be a number, got list"),
    (lambda alpha, c, most: best_draft(alpha, c, most) + 1, "best_draft is "),
]


def carried_by(way):
    """Wrong absorbed queries beside right outputs."""
    return lambda q, c, w_uk, w_uv: (way(q, w_uk), latent_attention(q, c, w_uk, w_uv)[1])


def averaged(weights):
    """Right absorbed queries beside outputs of other weights; ``weights`` gets scores, d, d_c."""

    def answer(q, c, w_uk, w_uv):
        absorbed = torch.einsum("hd,hdc->hc", q, w_uk)
        a = weights(absorbed @ c.T, q.shape[-1], c.shape[-1])
        return absorbed, torch.einsum("hm,mc,hvc->hv", a, c, w_uv)

    return answer


WRONG[check.latent_attention] = [
    (
        carried_by(lambda q, w: torch.einsum("hd,hdc->hc", q, w) / q.shape[-1] ** 0.5),
        "divide the scores by the root of d",
    ),
    (carried_by(lambda q, w: q @ w[0]), "its own key matrix"),
    (carried_by(lambda q, w: torch.einsum("d,hdc->hc", q[0], w)), "its own query"),
    (carried_by(lambda q, w: torch.einsum("hd,gdc->hc", q, w)), "the matrix of this head only"),
    (carried_by(lambda q, w: torch.einsum("hd,hdc->hc", q, w).softmax(-1)), "without a softmax"),
    (carried_by(lambda q, w: q), "must have shape"),
    (averaged(lambda s, d, width: s.softmax(-1)), "must be divided by the root of d"),
    (averaged(lambda s, d, width: (s / width**0.5).softmax(-1)), "not of d_c"),
    (averaged(lambda s, d, width: (s / d).softmax(-1)), "not by d"),
    (averaged(lambda s, d, width: (s / len(s) ** 0.5).softmax(-1)), "not of the number of heads"),
    (averaged(lambda s, d, width: (s / d**0.5).softmax(0)), "not over the heads"),
    (averaged(lambda s, d, width: s / d**0.5), "need a softmax"),
    (averaged(lambda s, d, width: torch.full_like(s, 1 / s.shape[-1])), "must not be uniform"),
    (averaged(lambda s, d, width: (s / d**0.5).softmax(-1) / s.shape[-1]), "do not divide by the number"),
    (
        lambda q, c, w_uk, w_uv: (
            latent_attention(q, c, w_uk, w_uv)[0],
            torch.einsum(
                "hm,mc,vc->hv", ((q[:, None] @ w_uk)[:, 0] @ c.T / q.shape[-1] ** 0.5).softmax(-1), c, w_uv[0]
            ),
        ),
        "its own value matrix",
    ),
    (lambda *given: latent_attention(*given)[1], "return the pair"),
    (lambda *given: (*latent_attention(*given), given[1]), "got 3 things"),
    (lambda q, c, w_uk, w_uv: (latent_attention(q, c, w_uk, w_uv)[0], c), "must have shape"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def best_of_one_or_more(alpha, c, most):
    gains = [tokens_per_call(alpha, k) / (1 + k * c) for k in range(1, most + 1)]
    return 1 + gains.index(max(gains)) if max(gains) > 1 else 0


WRONG[check.best_draft] += [(best_of_one_or_more, "empty")]
