"""Correct and wrong answers to the exercises on the block, the wrong ones with the message they must get."""

import torch
from torch.nn.functional import gelu, rms_norm, scaled_dot_product_attention

from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.rules import Causal
from lessons_lib.checks import block as check
from lessons_lib.foundations.norms import RMSNorm
from lessons_lib.transformer.blocks import PreNorm, TransformerBlock
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.feedforward import FeedForward
from lessons_lib.transformer.gpt import GPT

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


def norm(x, gain):
    return rms_norm(x, gain.shape, gain, eps=1e-5)


def attention(x, heads, mask):
    """The notebook's layer."""
    q, k, v = (x.unsqueeze(1) @ w for w in heads[:3])
    return (scaled_dot_product_attention(q, k, v, mask) @ heads[3]).sum(1)


def feedforward(x, layers):
    return gelu(x @ layers[0]) @ layers[1]


def past(x):
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()


def real(x, lengths):
    """The keys that are not padding, for all heads and queries."""
    return (torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None])[:, None, None]


def pre_norm(x, gains, heads, layers, mask):
    x = x + attention(norm(x, gains[0]), heads, mask)
    return x + feedforward(norm(x, gains[1]), layers)


def decoder_block(x, gains, heads, layers):
    return pre_norm(x, gains, heads, layers, past(x))


def encoder_block(x, lengths, gains, heads, layers):
    return pre_norm(x, gains, heads, layers, real(x, lengths))


def library_block(x, gains, heads, layers, mask):
    """The library's block with these weights."""
    h, d, d_head = heads[0].shape
    attend = MultiHeadAttention(d, h, d_head=d_head)
    feed = FeedForward(d, layers[0].shape[1], activation=gelu, bias=False)
    norms = [RMSNorm(d, eps=1e-5) for _ in gains]
    block = TransformerBlock(PreNorm(attend, norms[0]), PreNorm(feed, norms[1])).to(x.dtype)
    with torch.no_grad():
        for layer, w in zip((attend.w_q, attend.w_k, attend.w_v), heads, strict=False):
            layer.weight.copy_(w.transpose(1, 2).flatten(0, 1))
        attend.w_o.weight.copy_(heads[3].flatten(0, 1).T)
        for layer, w in zip((p for p in feed.parameters()), layers, strict=True):
            layer.copy_(w.T)
        for layer, gain in zip(norms, gains, strict=True):
            layer.weight.copy_(gain)
        return block(x, mask=mask)


def position_by_position(x, gains, heads, layers):
    """The output at a position from the positions up to it alone, without a mask."""
    rows = [pre_norm(x[:, : i + 1], gains, heads, layers, None)[:, -1] for i in range(x.shape[1])]
    return torch.stack(rows, 1)


def text_by_text(x, lengths, gains, heads, layers):
    """Each text without its padding, and no output at the padding."""
    out = torch.full_like(x, torch.nan)
    for i, length in enumerate(lengths):
        out[i, :length] = pre_norm(x[i : i + 1, :length], gains, heads, layers, None)
    return out


def with_square_masks(x, lengths, gains, heads, layers):
    """A mask of one matrix for each text, in which the padding attends to itself."""
    allowed = real(x, lengths) | torch.eye(x.shape[1], dtype=torch.bool)
    for i, length in enumerate(lengths):
        allowed[i, :, :length, length:] = False
    return pre_norm(x, gains, heads, layers, allowed)


RIGHT = {
    check.decoder_block: [
        decoder_block,
        lambda x, *weights: library_block(x, *weights, Causal()),
        position_by_position,
        lambda x, g, a, f: pre_norm(x, g, a, f, past(x).expand(len(x), len(a[0]), -1, -1)),
        lambda x, g, a, f: decoder_block(x.float(), *([w.float() for w in one] for one in (g, a, f))),
    ],
    check.encoder_block: [
        encoder_block,
        lambda x, lengths, *weights: library_block(x, *weights, real(x, lengths)),
        text_by_text,
        with_square_masks,
        lambda x, n, g, a, f: encoder_block(x.float(), n, *([w.float() for w in one] for one in (g, a, f))),
    ],
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


def other_block(way):
    """A block of the same parts in another order, for both exercises; ``way`` gets x, two norms and two layers."""

    def build(x, gains, heads, layers, mask):
        norms = [lambda x, gain=gain: norm(x, gain) for gain in gains]
        return way(x, *norms, lambda x: attention(x, heads, mask), lambda x: feedforward(x, layers))

    return build


def one_after_the_other(x, first, second, a, f):
    x = first(x)
    x = x + a(x)
    x = second(x)
    return x + f(x)


def post_norm(x, first, second, a, f):
    x = first(x + a(x))
    return second(x + f(x))


def exchanged(x, first, second, a, f):
    x = x + f(first(x))
    return x + a(second(x))


def after_the_layers(x, first, second, a, f):
    x = x + first(a(x))
    return x + second(f(x))


OTHER_BLOCKS = [
    (lambda x, p, q, a, f: a(p(x)) + f(q(a(p(x)))), "residual connection of the attention layer"),
    (lambda x, p, q, a, f: f(q(x + a(p(x)))), "residual connection of the feed-forward layer"),
    (lambda x, p, q, a, f: f(q(a(p(x)))), "both residual connections"),
    (post_norm, "this is a post-norm block"),
    (one_after_the_other, "not the normed stream"),
    (lambda x, p, q, a, f: x + a(p(x)) + f(q(x)), "not the input of the block"),
    (lambda x, p, q, a, f: x + a(p(x)) + f(p(x)), "not both to the block's input"),
    (lambda x, p, q, a, f: x + a(p(x)) + f(p(x + a(p(x)))), "has a norm with a gain of its own"),
    (lambda x, p, q, a, f: x + a(q(x)) + f(p(x + a(q(x)))), "has a norm with a gain of its own"),
    (exchanged, "attention comes first"),
    (lambda x, p, q, a, f: x + a(x) + f(x + a(x)), "the norms are missing"),
    (lambda x, p, q, a, f: x + a(x) + f(q(x + a(x))), "norm before the attention layer is missing"),
    (lambda x, p, q, a, f: x + a(p(x)) + f(x + a(p(x))), "norm before the feed-forward layer is missing"),
    (after_the_layers, "input of a layer, not to its output"),
    (lambda x, p, q, a, f: q(x + a(p(x)) + f(q(x + a(p(x))))), "the block ends with a sum"),
]


def as_decoder(block):
    return lambda x, *weights: block(x, *weights, past(x))


def as_encoder(block):
    return lambda x, lengths, *weights: block(x, *weights, real(x, lengths))


def masked_by(mask):
    return lambda x, *weights: pre_norm(x, *weights, mask(x))


def padded_by(mask):
    return lambda x, lengths, *weights: pre_norm(x, *weights, mask(x, lengths))


def one_more(x, lengths):
    return real(x, [length + 1 for length in lengths])


WRONG = {}

WRONG[check.decoder_block] = [
    *((as_decoder(other_block(way)), says) for way, says in OTHER_BLOCKS),
    (masked_by(lambda x: None), "the causal mask is missing"),
    (masked_by(lambda x: past(x).T), "the mask is transposed"),
    (masked_by(lambda x: ~past(x)), "True allows a query"),
    (masked_by(lambda x: past(x).tril(-1)), "wrong values"),
    (lambda *given: decoder_block(*given) * 1.001, "decoder_block"),
    (lambda *given: decoder_block(*given)[:, -1], "must have shape"),
    (lambda *given: decoder_block(*given).tolist(), "must be a tensor"),
    (lambda *given: None, "did you forget to return"),
]

WRONG[check.encoder_block] = [
    *((as_encoder(other_block(way)), says) for way, says in OTHER_BLOCKS),
    (padded_by(lambda x, n: real(x, n) & past(x)), "an encoder has no causal mask"),
    (padded_by(lambda x, n: past(x)), "an encoder has no causal mask"),
    (padded_by(lambda x, n: None), "no position may attend to padding"),
    (padded_by(lambda x, n: real(x, n).mT), "no position may attend to padding"),
    (padded_by(one_more), "the first one of the padding"),
    (padded_by(lambda x, n: real(x, n)[:1]), "each text has its own length"),
    (padded_by(lambda x, n: ~real(x, n)), "True allows a query"),
    (lambda *given: encoder_block(*given) * 1.001, "encoder_block"),
    (lambda *given: encoder_block(*given)[0], "must have shape"),
    (lambda *given: encoder_block(*given).tolist(), "must be a tensor"),
    (lambda *given: None, "did you forget to return"),
]

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
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, tied) - m * 3 * d, "not only one of them"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, tied) - m * d, "has two biases"),
    (lambda v, n, d, m, f, tied: n_weights(v, n, d, m, f, tied) - m * f, "has two biases"),
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
