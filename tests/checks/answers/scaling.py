"""Answers to the exercises on scaling: correct answers in any style, wrong answers with their messages."""

import math

import numpy as np
import torch

from lessons_lib.checks import scaling as check

# --- right answers ----------------------------------------------------------------------------------------------------


def right_scale(d_k, var_q, var_k):
    return 1 / math.sqrt(d_k * var_q * var_k)


def stable_softmax(scores, temperature):
    e = ((scores - scores.amax(-1, keepdim=True)) / temperature).exp()
    return e / e.sum(-1, keepdim=True)


def attention_backward(q, k, v, grad_out):
    root = math.sqrt(q.shape[-1])
    a = (q @ k.mT / root).softmax(-1)
    return backward(q, k, v, grad_out, a, lambda g: a * (g - (a * g).sum(-1, keepdim=True)), 1 / root)


def backward(q, k, v, grad_out, a, to_scores, scale):
    """The frame that right and wrong backward passes share."""
    grad_s = to_scores(grad_out @ v.mT)
    return scale * grad_s @ k, scale * grad_s.mT @ q, a.mT @ grad_out


def with_a_full_jacobian(q, k, v, grad_out):
    a = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    jacobian = a.diag_embed() - a[..., :, None] * a[..., None, :]
    return backward(q, k, v, grad_out, a, lambda g: (jacobian @ g[..., None])[..., 0], 1 / math.sqrt(q.shape[-1]))


RIGHT = {
    check.right_scale: [right_scale, lambda d_k, var_q, var_k: torch.tensor(d_k * var_q * var_k).rsqrt()],
    check.stable_softmax: [
        stable_softmax,
        lambda scores, temperature: (scores / temperature).softmax(-1),
        lambda scores, temperature: (scores / temperature).softmax(-1).float(),
        lambda scores, temperature: (scores.float() / temperature).softmax(-1),
    ],
    check.attention_backward: [attention_backward, with_a_full_jacobian, lambda *x: list(attention_backward(*x))],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


WRONG[check.right_scale] = [
    (lambda d, a, b: 1 / (d * a * b), "the square root is missing"),
    (lambda d, a, b: math.sqrt(d * a * b), "the inverse of the standard deviation"),
    (lambda d, a, b: d**-0.5, "var_q and var_k are ignored"),
    (lambda d, a, b: (d * (a + b)) ** -0.5, "do not add them"),
    (lambda d, a, b: 1 / (d * math.sqrt(a * b)), "square root of d_k too"),
    (lambda d, a, b: 1 / (math.sqrt(d) * a * b), "not standard deviations"),
    (lambda d, a, b: 1.0, "is 1, wanted 0.0"),
]


def in_place(scores, temperature):
    scores -= scores.amax(-1, keepdim=True)
    return (scores / temperature).softmax(-1)


def without_shift(scores, temperature):
    e = (scores / temperature).exp()
    return e / e.sum(-1, keepdim=True)


def one_shift_for_all(scores, temperature):
    e = ((scores - scores.max()) / temperature).exp()
    return e / e.sum(-1, keepdim=True)


WRONG[check.stable_softmax] = [
    (without_shift, "subtract the maximum of each row first"),
    (one_shift_for_all, "subtract the maximum of each row, not of the whole tensor"),
    (in_place, "changed its argument"),
    (lambda s, t: s.softmax(-1), "temperature is ignored"),
    (lambda s, t: (s * t).softmax(-1), "divide the scores by the temperature; do not multiply"),
    (lambda s, t: s.softmax(-1) / t, "before the softmax"),
    (lambda s, t: (s / t).softmax(-2), "over the last axis"),
    (lambda s, t: ((s - s.amax(-1, keepdim=True)) / t).exp(), "not divided by their sum"),
    (lambda s, t: (s / t).flatten().softmax(0).view(s.shape), "not over the whole tensor"),
    (lambda s, t: (s / t).softmax(-1) ** 2, "wrong values"),
    (lambda s, t: (s / t).softmax(-1)[..., :1], "must have shape"),
    (lambda s, t: (s / t).softmax(-1).tolist(), "must be a tensor, got list"),
]


def variant(*, forward=lambda d: d**-0.5, to_scores=None, factor=None):
    """A backward pass with one ingredient replaced."""

    def answer(q, k, v, grad_out):
        d = q.shape[-1]
        a = (q @ k.mT * forward(d)).softmax(-1)
        through = to_scores or (lambda a, g: a * (g - (a * g).sum(-1, keepdim=True)))
        return backward(q, k, v, grad_out, a, lambda g: through(a, g), (factor or forward)(d))

    return answer


def scaled_values(q, k, v, grad_out):
    grad_q, grad_k, grad_v = attention_backward(q, k, v, grad_out)
    return grad_q, grad_k, grad_v / math.sqrt(q.shape[-1])


WRONG[check.attention_backward] = [
    (variant(to_scores=lambda a, g: g), "the softmax Jacobian is missing"),
    (variant(to_scores=lambda a, g: a * (1 - a) * g), "off-diagonal part of the softmax Jacobian"),
    (variant(to_scores=lambda a, g: a * g), "is not subtracted"),
    (variant(to_scores=lambda a, g: a * (g - (a * g).sum(-2, keepdim=True))), "over the keys of each query"),
    (variant(forward=lambda d: 1.0), "not divided by sqrt"),
    (variant(forward=lambda d: 1 / d), "divided by d_k instead of sqrt"),
    (variant(factor=lambda d: 1.0), "is missing in this gradient"),
    (variant(factor=lambda d: 1 / d), "the factor of the forward pass, 1/sqrt\\(d_k\\), not 1/d_k"),
    (scaled_values, "this gradient has no factor"),
    (lambda *x: attention_backward(*x)[::-1], "in the order grad_q, grad_k, grad_v"),
    (lambda *x: attention_backward(*x)[0], "three gradients, grad_q, grad_k, grad_v, got one Tensor"),
    (lambda *x: attention_backward(*x)[:2], "grad_v, got 2"),
    (lambda q, k, v, g: (q, k, v), "wrong values"),
]


# --- further ones -----------------------------------------------------------------------------------------------------


def in_logarithms(scores, temperature):
    s = scores / temperature
    return (s - s.logsumexp(-1, keepdim=True)).exp()


def shifted_by(shift):
    """A softmax that subtracts something else than the largest score of each row."""

    def answer(scores, temperature):
        e = ((scores - shift(scores)) / temperature).exp()
        return e / e.sum(-1, keepdim=True)

    return answer


def query_by_query(q, k, v, grad_out):
    """With the Jacobian of each row spelled out, for leading axes or none."""
    if q.dim() > 2:
        return [torch.stack(part) for part in zip(*map(query_by_query, q, k, v, grad_out), strict=True)]
    grads = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for i in range(len(q)):
        a = (k @ q[i] * q.shape[-1] ** -0.5).softmax(0)
        to_scores = (torch.diag(a) - torch.outer(a, a)) @ v @ grad_out[i] * q.shape[-1] ** -0.5
        grads[0][i] = to_scores @ k
        grads[1].add_(torch.outer(to_scores, q[i]))
        grads[2].add_(torch.outer(a, grad_out[i]))
    return grads


def by_a_single_precision_root(q, k, v, grad_out):
    root = torch.sqrt(torch.tensor(q.shape[-1]))
    a = (q @ k.mT / root).softmax(-1)
    return backward(q, k, v, grad_out, a, lambda g: a * (g - (a * g).sum(-1, keepdim=True)), 1 / root)


RIGHT[check.right_scale] += [
    lambda d, a, b: np.float32((d * a * b) ** -0.5),
    lambda d, a, b: torch.rsqrt(torch.tensor([d * a * b], dtype=torch.float64))[0],
]
RIGHT[check.stable_softmax] += [in_logarithms]
RIGHT[check.attention_backward] += [
    query_by_query,
    by_a_single_precision_root,
    lambda *given: attention_backward(*(x.float() for x in given)),
]
WRONG[check.right_scale] += [
    (lambda d, a, b: ((d - 1) * a * b) ** -0.5, "is 0.0[0-9]+, wanted 0.0"),
    (lambda d, a, b: (d * a) ** -0.5, "is 0.0[0-9]+, wanted 0.0"),
    (lambda d, a, b: f"1/sqrt({d * a * b})", "must be a number, got str"),
    (lambda d, a, b: torch.tensor([(d * a * b) ** -0.5]), r"must have shape \(\), got \(1,\)"),
    (lambda d, a, b: math.nan, "is nan, wanted"),
    (lambda d, a, b: right_scale(d, a, b) * (1 + 5e-6), "was a part computed in single precision"),
]
WRONG[check.stable_softmax] += [
    (shifted_by(lambda s: s.mean(-1, keepdim=True)), "each row, not its mean"),
    (shifted_by(lambda s: s.median(-1, keepdim=True).values), "each row, not its mean"),
    (shifted_by(lambda s: s[..., -1:]), "each row, not its m"),
    (shifted_by(lambda s: s.amin(-1, keepdim=True)), "each row, not its minimum"),
    (lambda s, t: (s.double().half().double() / t).softmax(-1), "single precision|wrong values"),
]
WRONG[check.attention_backward] += [
    (variant(to_scores=lambda a, g: a * (g - g.mean(-1, keepdim=True))), "not the plain mean"),
    (variant(to_scores=lambda a, g: a * (g - (a * g).mean(-1, keepdim=True))), "wrong values"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def with_one_leading_axis_at_most(q, k, v, grad_out):
    a = (q @ (k.transpose(1, 2) if k.dim() > 2 else k.T) / math.sqrt(q.shape[-1])).softmax(-1)
    return backward(q, k, v, grad_out, a, lambda g: a * (g - (a * g).sum(-1, keepdim=True)), q.shape[-1] ** -0.5)


WRONG[check.stable_softmax] += [
    (lambda s, t: stable_softmax(s, t) if s.dim() > 1 else stable_softmax(s[None], t), "must have shape"),
    (
        shifted_by(lambda s: s.amax((0, -1), keepdim=True) if s.dim() > 2 else s.amax(-1, keepdim=True)),
        "exp overflowed",
    ),
    (lambda s, t: stable_softmax(s, t).squeeze(), "must have shape"),
]
WRONG[check.attention_backward] += [(with_one_leading_axis_at_most, "size|dimension|shape")]
