"""Correct and wrong answers to the exercises on the block, the wrong ones with the message they must get."""

import torch
from torch.nn.functional import rms_norm

from lessons_lib.checks import block as check
from lessons_lib.transformer.gpt import GPT, GPTConfig

# --- correct answers --------------------------------------------------------------------------------------------------


def n_weights(vocab, n_context, d, n_layers, d_ff, tied):
    block = (4 * d * d + 4 * d) + (2 * d * d_ff + d_ff + d) + 4 * d
    return vocab * d * (1 if tied else 2) + n_context * d + n_layers * block + 2 * d


def built(vocab, n_context, d, n_layers, d_ff, tied):
    model = GPT(GPTConfig(vocab, n_context, d, n_layers, 2, d_ff=d_ff, tied=tied))
    return sum(p.numel() for p in model.parameters())


def logit_parts(added, gain, head, eps):
    stream = added.sum(0)
    return added / (stream.square().mean(-1, keepdim=True) + eps).sqrt() * gain @ head.T


def in_a_loop(added, gain, head, eps):
    stream = sum(added)
    scale = gain * (stream.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    return torch.stack([torch.einsum("nd,vd->nv", scale * one, head) for one in added])


def as_a_difference(added, gain, head, eps):
    """The logits are linear in the stream once the scale is fixed, so a part is what disappears without it."""
    stream = added.sum(0)
    scale = (stream.square().mean(-1, keepdim=True) + eps).sqrt()
    return stream / scale * gain @ head.T - (stream - added) / scale * gain @ head.T


def norm_backward(x, gain, grad, eps):
    root = (x.square().mean(-1, keepdim=True) + eps).sqrt()
    hat, g = x / root, grad * gain
    return (g - hat * (g * hat).mean(-1, keepdim=True)) / root, (grad * hat).sum(0)


def by_matrices(x, gain, grad, eps):
    root = (x.square().mean(-1) + eps).sqrt()
    d = x.shape[-1]
    rows = [
        (torch.eye(d, dtype=x.dtype) / r - torch.outer(row, row) / (d * r**3)) @ (gain * one)
        for row, r, one in zip(x, root, grad, strict=True)
    ]
    return [torch.stack(rows), torch.einsum("nd,nd,n->d", grad, x, 1 / root)]


def by_the_chain_rule(x, gain, grad, eps):
    """The row reaches the loss directly and through its own scale: two terms, each by its own derivative."""
    inverse = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    to_hat = grad * gain
    to_inverse = (to_hat * x).sum(-1, keepdim=True)
    return to_hat * inverse - to_inverse * inverse**3 * x / x.shape[-1], (grad * x * inverse).sum(0)


RIGHT = {
    check.n_weights: [
        n_weights,
        built,
        lambda *given: float(n_weights(*given)),
        lambda *g: torch.tensor(n_weights(*g)),
    ],
    check.logit_parts: [logit_parts, in_a_loop, as_a_difference, lambda *given: logit_parts(*given).float()],
    check.norm_backward: [
        norm_backward,
        by_matrices,
        by_the_chain_rule,
        lambda *given: [part.float() for part in norm_backward(*given)],
    ],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}

WRONG[check.n_weights] = [
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, False), "do not count them twice"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, True), "an untied head has as many weights"),
    (lambda v, n, d, m, f, tied: n_weights(v, 0, d, m, f, tied), "each position has a learned vector"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, tied) - 2 * d, "the norm before the head"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, tied) - 2 * m * d, "two norms"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, tied) - (2 * m + 1) * d, "a gain and a bias"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, tied) - m * (5 * d + f), "the matrices have biases"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, tied) - m * (d + f), "biases of the feed-forward layers"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, tied) - m * 4 * d, "biases of the attention layers"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, tied) - m * d * (d + 1), "count W_O too"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, tied) - m * d * f, "two matrices, up and down"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, 1, f, tied), "each block has its own weights"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, 4 * d, tied), "need not be 4 d"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, tied) + v, "the head has no bias"),
    (lambda v, n, d, m, f, tied: v * d + 12 * m * d * d, ", wanted "),
    (lambda v, n, d, m, f, tied: [n_weights(v, n, d, m, f, tied)], "must be a number, got list"),
]


def scaled(added, gain, head, root):
    return added / root * gain @ head.T


def mean_square(stream):
    return stream.square().mean(-1, keepdim=True)


WRONG[check.logit_parts] = [
    (lambda a, g, h, e: scaled(a, g, h, (mean_square(a) + e).sqrt()), "divide every contribution by the same number"),
    (
        lambda a, g, h, e: scaled(a.cumsum(0), g, h, (mean_square(a.sum(0)) + e).sqrt()),
        "a contribution belongs to one addition",
    ),
    (
        lambda a, g, h, e: scaled(a.cumsum(0), g, h, (mean_square(a.cumsum(0)) + e).sqrt()),
        "a contribution belongs to one addition",
    ),
    (lambda a, g, h, e: logit_parts(a, 1.0, h, e), "the gain of the norm is missing"),
    (lambda a, g, h, e: logit_parts(a, g, h, 0.0), "eps is missing"),
    (lambda a, g, h, e: scaled(a, g, h, mean_square(a.sum(0)).sqrt() + e), "inside the root"),
    (lambda a, g, h, e: scaled(a, g, h, (a.sum(0).square().sum(-1, True) + e).sqrt()), "not of their sum"),
    (lambda a, g, h, e: scaled(a, g, h, mean_square(a.sum(0)) + e), "the root is missing"),
    (lambda a, g, h, e: a * g @ h.T, "the norm is missing"),
    (lambda a, g, h, e: a @ h.T, "the norm is missing"),
    (lambda a, g, h, e: logit_parts(a - a.mean(-1, keepdim=True), g, h, e), "does not subtract the mean"),
    (lambda a, g, h, e: scaled(a, g, h, (a.sum(0).square().mean() + e).sqrt()), "its own root mean square"),
    (lambda a, g, h, e: logit_parts(a, g, h, e).sum(0), "must have shape"),
    (lambda a, g, h, e: logit_parts(a, g, h, e).softmax(-1), "wrong values"),
    (lambda a, g, h, e: None, "did you forget to return"),
]


def with_x(way):
    """A wrong gradient of the input beside a right one of the gain; ``way`` gets normed vector, gradient, root."""

    def answer(x, gain, grad, eps):
        root = (mean_square(x) + eps).sqrt()
        return way(x / root, grad, gain, root), norm_backward(x, gain, grad, eps)[1]

    return answer


def across(hat, g):
    return g - hat * (g * hat).mean(-1, keepdim=True)


def with_gain(way):
    """A right gradient of the input beside a wrong one of the gain."""
    return lambda x, gain, grad, eps: (norm_backward(x, gain, grad, eps)[0], way(x, gain, grad, eps))


def normed(x, eps):
    return x / (mean_square(x) + eps).sqrt()


def by_autograd(x, gain, grad, eps):
    x, gain = x.detach().requires_grad_(), gain.detach().requires_grad_()
    return torch.autograd.grad(rms_norm(x, gain.shape, gain, eps), (x, gain), grad)


WRONG[check.norm_backward] = [
    (with_x(lambda hat, grad, gain, root: grad * gain / root), "subtract the component along"),
    (with_x(lambda hat, grad, gain, root: (2 * grad * gain - across(hat, grad * gain)) / root), "not added"),
    (
        with_x(lambda hat, g, gain, root: (g * gain - hat * (g * gain * hat).sum(-1, keepdim=True)) / root),
        "a mean over the d entries",
    ),
    (with_x(lambda hat, grad, gain, root: across(hat, grad) / root), "the gain is missing"),
    (with_x(lambda hat, grad, gain, root: across(hat, grad) * gain / root), "before the projection"),
    (by_autograd, "write the backward pass by hand"),
    (lambda x, gain, grad, eps: norm_backward(x, gain, grad, 0.0), "eps is missing"),
    (with_x(lambda hat, grad, gain, root: across(hat, grad * gain)), "the division by the root is missing"),
    (
        lambda x, gain, grad, eps: (
            across(normed(x, 0.0), grad * gain) / (mean_square(x) + eps).sqrt(),
            (grad * normed(x, eps)).sum(0),
        ),
        "eps is missing in the normed vector",
    ),
    (with_x(lambda hat, grad, gain, root: across(hat * root, grad * gain) / root), "not x"),
    (
        with_x(lambda hat, g, gain, root: (across(hat, g * gain) - (g * gain).mean(-1, keepdim=True)) / root),
        "does not subtract the mean",
    ),
    (with_x(lambda hat, grad, gain, root: across(hat, grad * gain) * root), "wrong values"),
    (with_gain(lambda x, gain, grad, eps: grad * normed(x, eps)), "sum over the positions"),
    (with_gain(lambda x, gain, grad, eps: (grad * normed(x, eps)).mean(0)), "not a mean"),
    (with_gain(lambda x, gain, grad, eps: (grad * x).sum(0)), "not x"),
    (with_gain(lambda x, gain, grad, eps: (grad * gain * normed(x, eps)).sum(0)), "does not contain the gain"),
    (with_gain(lambda x, gain, grad, eps: (grad * normed(x, 0.0)).sum(0)), "eps is missing"),
    (with_gain(lambda x, gain, grad, eps: (grad * normed(x, eps)).sum(-1)), "must have shape"),
    (lambda x, gain, grad, eps: norm_backward(x, gain, grad, eps)[0], "return the pair"),
    (lambda x, gain, grad, eps: (*norm_backward(x, gain, grad, eps), x), "got 3 things"),
]
