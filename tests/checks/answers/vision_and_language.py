"""Answers to the exercises on vision and language: correct answers in several styles, wrong ones with their message."""

import math

import numpy as np
import torch
from einops import rearrange
from torch import nn
from torch.nn.functional import cross_entropy, fold, normalize, unfold

from lessons_lib.applications import vision
from lessons_lib.attention.attention import attention
from lessons_lib.checks import vision_and_language as check

# --- right answers ----------------------------------------------------------------------------------------------------


def patches(images, p):
    b, height, width = images.shape
    squares = images.reshape(b, height // p, p, width // p, p).permute(0, 1, 3, 2, 4)
    return squares.reshape(b, -1, p * p)


def by_slices(images, p):
    _, height, width = images.shape
    corners = [(i, j) for i in range(0, height, p) for j in range(0, width, p)]
    return torch.stack([images[:, i : i + p, j : j + p].flatten(1) for i, j in corners], dim=1)


def by_unfold(images, p):
    return unfold(images[:, None], p, stride=p).transpose(1, 2)


def by_windows(images, p):
    return images.unfold(1, p, p).unfold(2, p, p).flatten(3).flatten(1, 2)


def picture(pieces, height, width):
    p = math.isqrt(pieces.shape[-1])
    squares = pieces.reshape(len(pieces), height // p, width // p, p, p)
    return squares.permute(0, 1, 3, 2, 4).reshape(len(pieces), height, width)


def laid_down(pieces, height, width):
    p = int(pieces.shape[-1] ** 0.5)
    out = torch.zeros(len(pieces), height, width, dtype=pieces.dtype)
    for k in range(pieces.shape[1]):
        i, j = k // (width // p) * p, k % (width // p) * p
        out[:, i : i + p, j : j + p] = pieces[:, k].view(-1, p, p)
    return out


def by_fold(pieces, height, width):
    p = math.isqrt(pieces.shape[-1])
    return fold(pieces.transpose(1, 2), (height, width), p, stride=p)[:, 0]


def in_strips(pieces, height, width):
    p = math.isqrt(pieces.shape[-1])
    strips = pieces.split(width // p, dim=1)
    return torch.cat([torch.cat([s.unflatten(-1, (p, p)) for s in strip.unbind(1)], -1) for strip in strips], 1)


def clip_loss(f, g, scale):
    scores = scale * normalize(f, dim=-1) @ normalize(g, dim=-1).T
    own = torch.arange(len(f))
    return (cross_entropy(scores, own) + cross_entropy(scores.T, own)) / 2


def by_logsumexp(f, g, scale):
    f, g = f / f.norm(dim=-1, keepdim=True), g / g.norm(dim=-1, keepdim=True)
    scores = scale * f @ g.T
    return (scores.logsumexp(0) + scores.logsumexp(1)).mean() / 2 - scores.diagonal().mean()


def pair_by_pair(f, g, scale):
    cosines = nn.functional.cosine_similarity(f[:, None], g[None], dim=-1)
    summed = 0.0
    for i in range(len(f)):
        own, rest = scale * cosines[i, i], [scale * cosines[i], scale * cosines[:, i]]
        summed += sum(float((scores - own).logsumexp(0)) for scores in rest)
    return summed / (2 * len(f))


def by_numpy(f, g, scale):
    f, g = (np.array(x.tolist()) for x in (f, g))
    scores = scale * (f @ g.T) / np.outer(np.linalg.norm(f, axis=1), np.linalg.norm(g, axis=1))
    rows, columns = (np.log(np.exp(scores - scores.max(k, keepdims=True)).sum(k)) + scores.max(k) for k in (1, 0))
    return ((rows + columns) / 2 - np.diag(scores)).mean()


def clip_loss_gradient(cosines, scale):
    whole = (scale * cosines).softmax(0) + (scale * cosines).softmax(1) - 2 * torch.eye(len(cosines))
    return scale * whole / (2 * len(cosines))


def by_transposing(cosines, scale):
    n = len(cosines)

    def one_way(c):
        probabilities = torch.softmax(scale * c, dim=-1)
        probabilities[range(n), range(n)] -= 1
        return probabilities * scale / n

    return (one_way(cosines) + one_way(cosines.T).T) / 2


def entry_by_entry(cosines, scale):
    n, scores = len(cosines), (scale * cosines).double()
    out = torch.empty(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            share = torch.exp(scores[i, j] - scores[i].logsumexp(0)) + torch.exp(
                scores[i, j] - scores[:, j].logsumexp(0)
            )
            out[i, j] = scale / (2 * n) * (share - 2 * (i == j))
    return out


def shifted(cosines, scale):
    scores, n = scale * cosines, len(cosines)
    rows = (scores - scores.max(1, keepdim=True)[0]).exp()
    columns = (scores - scores.max(0, keepdim=True)[0]).exp()
    whole = rows / rows.sum(1, keepdim=True) + columns / columns.sum(0)
    whole.diagonal().sub_(2)
    return whole * scale / n / 2


def pooled(x, q, w):
    return (x @ q).softmax(-1) @ (x @ w)


def occlusion(x, q, w, filler):
    drops = []
    for i in range(len(x)):
        changed = x.clone()
        changed[i] = filler
        drops.append(pooled(x, q, w) - pooled(changed, q, w))
    return torch.stack(drops)


def all_at_once(x, q, w, filler):
    n = len(x)
    changed = torch.where(torch.eye(n, dtype=torch.bool)[..., None], filler, x.expand(n, -1, -1))
    return pooled(x, q, w) - ((changed @ q).softmax(-1) * (changed @ w)).sum(-1)


def by_the_library(x, q, w, filler):
    def logit(x):
        return attention(q[None], x, (x @ w)[:, None], scale=1.0).squeeze()

    swapped = [torch.cat([x[:i], filler[None], x[i + 1 :]]) for i in range(len(x))]
    return logit(x) - torch.stack([logit(s) for s in swapped])


def through_the_others(x, q, w, filler):
    """By the mean of the others' values, which one patch cannot change."""
    out = torch.zeros(len(x), dtype=x.dtype)
    for i in range(len(x)):
        rest = torch.cat([x[:i], x[i + 1 :]])
        level = (rest @ q).logsumexp(0)
        before, after = torch.sigmoid(x[i] @ q - level), torch.sigmoid(filler @ q - level)
        mean = pooled(rest, q, w)
        out[i] = before * (x[i] @ w - mean) - after * (filler @ w - mean)
    return out


RIGHT = {
    check.patchify: [
        patches,
        by_slices,
        by_unfold,
        by_windows,
        vision.patchify,
        lambda images, p: patches(images.float(), p),
    ],
    check.unpatchify: [picture, laid_down, by_fold, in_strips, lambda x, *size: vision.unpatchify(x.float(), size)],
    check.clip_loss: [
        clip_loss,
        by_logsumexp,
        pair_by_pair,
        by_numpy,
        lambda f, g, scale: clip_loss(f.float(), g.float(), scale),
        lambda f, g, scale: clip_loss(f.float(), g.float(), scale).item(),
    ],
    check.clip_loss_gradient: [
        clip_loss_gradient,
        by_transposing,
        entry_by_entry,
        shifted,
        lambda c, scale: clip_loss_gradient(c.float(), scale),
    ],
    check.occlusion: [
        occlusion,
        all_at_once,
        by_the_library,
        through_the_others,
        lambda *given: occlusion(*(x.float() for x in given)),
    ],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------


def cut(pattern):
    return lambda images, p: rearrange(images, pattern, p=p, q=p)


def turned(images, p):
    b, height, width = images.shape
    return patches(images.reshape(b, width, height), p)


def joined(pattern):
    return lambda pieces, height, width: rearrange(
        pieces, pattern, r=height // math.isqrt(pieces.shape[-1]), p=math.isqrt(pieces.shape[-1])
    )


def scores_of(f, g, scale):
    return scale * normalize(f, dim=-1) @ normalize(g, dim=-1).T


def raw(f, g, scale):
    return (by_scores(scale * f @ g.T)).sum() / 2


def by_scores(scores):
    own = torch.arange(len(scores))
    return torch.stack([cross_entropy(scores, own), cross_entropy(scores.T, own)])


def with_shares(read):
    """Make an answer of the own ones' probabilities, one row for each direction."""

    def answer(f, g, scale):
        scores = scores_of(f, g, scale)
        return read(torch.stack([scores.softmax(k).diagonal() for k in (0, 1)]))

    return answer


def naive(f, g, scale):
    e = scores_of(f, g, scale).exp()
    return -((e.diagonal() / e.sum(0)).log() + (e.diagonal() / e.sum(1)).log()).mean() / 2


def without_own(f, g, scale):
    scores = scores_of(f, g, scale)
    e = scores.exp() - scores.diagonal().exp().diag()
    return (e.sum(0).log() + e.sum(1).log()).mean() / 2 - scores.diagonal().mean()


def two_softmaxes(cosines, scale):
    return (scale * cosines).softmax(1), (scale * cosines).softmax(0), torch.eye(len(cosines))


def pulling(made):
    """Make an answer of rows' probabilities, columns' probabilities, the identity, the scale and n."""
    return lambda cosines, scale: made(*two_softmaxes(cosines, scale), scale, len(cosines))


def by_differences(step, back):
    """Make an answer of two losses for each entry, a small step apart."""

    def loss(cosines, scale):
        return -((scale * cosines).log_softmax(1) + (scale * cosines).log_softmax(0)).diagonal().mean() / 2

    def answer(cosines, scale):
        found = torch.zeros_like(cosines)
        for place in torch.cartesian_prod(*map(torch.arange, cosines.shape)).tolist():
            further, before = cosines.clone(), cosines.clone()
            further[tuple(place)] += step
            before[tuple(place)] -= step * back
            found[tuple(place)] = (loss(further, scale) - loss(before, scale)) / (step * (1 + back))
        return found

    return answer


def naive_pull(cosines, scale):
    e = (scale * cosines).exp()
    return scale * (e / e.sum(0) + e / e.sum(1, keepdim=True) - 2 * torch.eye(len(e))) / (2 * len(e))


def pull_by_autograd(cosines, scale):
    cosines = cosines.clone().requires_grad_()
    own = torch.arange(len(cosines))
    loss = (cross_entropy(scale * cosines, own) + cross_entropy(scale * cosines.T, own)) / 2
    return torch.autograd.grad(loss, cosines)[0]


def with_parts(scores=None, values=None):
    """Make an answer that gives a replaced patch these instead of the filler's own, from a, v, i, q, w and filler."""

    def answer(x, q, w, filler):
        s, v = x @ q, x @ w
        drops = []
        for i in range(len(x)):
            one = torch.arange(len(x)) == i
            new_s = s.where(~one, filler @ q) if scores is None else scores(s, i)
            new_v = v.where(~one, filler @ w) if values is None else values(v, i)
            drops.append(s.softmax(-1) @ v - new_s.softmax(-1) @ new_v)
        return torch.stack(drops)

    return answer


def hidden(s, i):
    return s.where(torch.arange(len(s)) != i, -torch.inf)


def never_put_back(x, q, w, filler):
    changed, drops = x.clone(), []
    for i in range(len(x)):
        changed[i] = filler
        drops.append(pooled(x, q, w) - pooled(changed, q, w))
    return torch.stack(drops)


def step_by_step(x, q, w, filler):
    drops = never_put_back(x, q, w, filler)
    return drops.diff(prepend=drops.new_zeros(1))


def only_one_left(x, q, w, filler):
    rows = []
    for i in range(len(x)):
        changed = filler.repeat(len(x), 1)
        changed[i] = x[i]
        rows.append(pooled(x, q, w) - pooled(changed, q, w))
    return torch.stack(rows)


def by_gradient(x, q, w, filler):
    a, v = (x @ q).softmax(-1), x @ w
    slope = a[:, None] * (w + (v - a @ v)[:, None] * q)
    return (slope * (x - filler)).sum(-1)


def by_division(x, q, w, filler):
    a, v = (x @ q).softmax(-1), x @ w
    others = (a @ v - a * v) / (1 - a)
    ratio = (filler @ q - x @ q).exp()
    after = a * ratio / (1 - a + a * ratio)
    return a * (v - others) - after * (filler @ w - others)


WRONG = {}

WRONG[check.patchify] = [
    (lambda images, p: images.reshape(len(images), -1, p * p), "reshape alone"),
    (cut("b (r p) (c q) -> b (c r) (p q)"), "the second patch is to the right of the first"),
    (cut("b (r p) (c q) -> b (r c) (q p)"), "inside a patch"),
    (cut("b (r p) (c q) -> b (c r) (q p)"), "rows and columns are exchanged"),
    (lambda images, p: patches(images.transpose(1, 2), p), "rows and columns are exchanged"),
    (cut("b (p r) (q c) -> b (r c) (p q)"), "of a patch are neighbours"),
    (turned, "height and width are exchanged"),
    (lambda images, p: patches(images.flip(1), p), "upside down or mirrored"),
    (lambda images, p: patches(images.flip(2), p), "upside down or mirrored"),
    (lambda images, p: patches(images.flip(1, 2), p), "upside down or mirrored"),
    (cut("b (r p) (c q) -> b r c (p q)"), "must have shape"),
    (cut("b (r p) (c q) -> b (r c) p q"), "must have shape"),
    (cut("b (r p) (c q) -> b (p q) (r c)"), "must have shape"),
    (lambda images, p: patches(images, p)[:1], "must have shape"),
    (lambda images, p: list(patches(images, p)), "must be a tensor, got list"),
    (lambda images, p: patches(images, p).flip(1), "wrong values"),
    (lambda images, p: patches(images, p).mul(1 + 1e-3), "patchify "),
    (lambda images, p: patches(images.div_(16), p), "changed its argument"),
    (lambda images, p: None, "did you forget to return"),
]

WRONG[check.unpatchify] = [
    (lambda pieces, height, width: pieces.reshape(-1, height, width), "reshape alone"),
    (joined("b (c r) (p q) -> b (r p) (c q)"), "is to the right"),
    (joined("b (r c) (q p) -> b (r p) (c q)"), "inside a patch"),
    (joined("b (c r) (q p) -> b (r p) (c q)"), "rows and columns are exchanged"),
    (joined("b (r c) (p q) -> b (p r) (q c)"), "do not spread them"),
    (
        lambda pieces, height, width: picture(pieces, width, height).reshape(-1, height, width),
        "rows of patches",
    ),
    (lambda pieces, height, width: picture(pieces, width, height), "must have shape"),
    (lambda pieces, height, width: picture(pieces, height, width).transpose(1, 2), "must have shape"),
    (lambda pieces, height, width: picture(pieces, height, width)[:, None], "must have shape"),
    (lambda pieces, height, width: picture(pieces, height, width).flip(1), "wrong values"),
    (lambda pieces, height, width: picture(pieces, height, width) + 1e-3, "unpatchify "),
    (lambda pieces, height, width: picture(pieces, height, width).tolist(), "must be a tensor, got list"),
    (lambda pieces, height, width: None, "did you forget to return"),
]

WRONG[check.clip_loss] = [
    (lambda *given: by_scores(scores_of(*given))[0], "only one direction"),
    (lambda *given: by_scores(scores_of(*given))[1], "only one direction"),
    (lambda *given: by_scores(scores_of(*given)).sum(), "not their sum"),
    (lambda *given: len(given[0]) * clip_loss(*given), "the mean over the pairs"),
    (lambda *given: 2 * len(given[0]) * clip_loss(*given), "the mean over the pairs"),
    (lambda *given: clip_loss(*given) / len(given[0]), "not over all n x n"),
    (lambda f, g, scale: clip_loss(f, g, 1.0), "the scale is missing"),
    (lambda f, g, scale: clip_loss(f, g, 1 / scale), "not divided by it"),
    (raw, "normalise the features of images and captions"),
    (lambda f, g, scale: raw(normalize(f, dim=-1), g, scale), "normalise the features of images and captions"),
    (lambda f, g, scale: raw(f, normalize(g, dim=-1), scale), "normalise the features of images and captions"),
    (lambda f, g, scale: raw(normalize(f, dim=0), normalize(g, dim=0), scale), "not each column"),
    (without_own, "belongs in the denominator"),
    (with_shares(lambda p: -p.mean()), "the logarithm is missing"),
    (with_shares(lambda p: p.mean()), "the logarithm is missing"),
    (with_shares(lambda p: 1 - p.mean()), "the logarithm is missing"),
    (with_shares(lambda p: -p.mean(1).log().mean()), "of each probability, then the mean"),
    (with_shares(lambda p: -p.mean().log()), "of each probability, then the mean"),
    (lambda *given: -clip_loss(*given), "the sign is wrong"),
    (
        lambda *given: -scores_of(*given).exp().div(scores_of(*given).exp().sum()).log().diagonal().mean(),
        "one softmax over the whole table",
    ),
    (lambda *given: clip_loss(*given) / math.log(2), "the natural logarithm"),
    (naive, "exp of a score in the thousands"),
    (with_shares(lambda p: -p.log().mean()), "exp of a score in the thousands"),
    (lambda *given: clip_loss(*given) + 1, "wrong values"),
    (lambda *given: by_scores(scores_of(*given)), "must be a number; a tensor must have shape"),
    (lambda *given: [clip_loss(*given)], "must be a number, got list"),
    (lambda *given: None, "did you forget to return"),
]

WRONG[check.clip_loss_gradient] = [
    *((by_differences(step, back), "derive the gradient") for step in (1e-4, 1e-5, 1e-6) for back in (True, False)),
    (pulling(lambda rows, columns, own, s, n: s * (rows - own) / n), "only one direction"),
    (pulling(lambda rows, columns, own, s, n: s * (columns - own) / n), "only one direction"),
    (pulling(lambda rows, columns, own, s, n: s * (rows + columns - 2 * own) / n), "half of their sum"),
    (pulling(lambda rows, columns, own, s, n: s * (rows + columns - 2 * own) / 2), "divide by n"),
    (pulling(lambda rows, columns, own, s, n: s * (rows + columns - 2 * own)), "divide by n"),
    (lambda c, scale: clip_loss_gradient(c, scale) / len(c), "not over all n x n"),
    (lambda c, scale: clip_loss_gradient(c, scale) / scale, "the gradient with respect to the scores"),
    (lambda c, scale: clip_loss_gradient(c, scale) / scale**2, "do not divide by it"),
    (lambda c, scale: scale * clip_loss_gradient(c, 1.0), "of the scaled cosines"),
    (lambda c, scale: clip_loss_gradient(c, 1.0), "of the scaled cosines"),
    (pulling(lambda rows, columns, own, s, n: s * (rows + columns) / (2 * n)), "the matching pairs are missing"),
    (pulling(lambda rows, columns, own, s, n: s * (rows + columns - own) / (2 * n)), "once in each direction"),
    (lambda c, scale: -clip_loss_gradient(c, scale), "the sign is wrong"),
    (pulling(lambda rows, columns, own, s, n: s * (rows + columns.T - 2 * own) / (2 * n)), "is transposed"),
    (pulling(lambda rows, columns, own, s, n: s * (rows.T + columns - 2 * own) / (2 * n)), "is transposed"),
    (naive_pull, "exp of a score in the thousands"),
    (pull_by_autograd, "write the backward pass by hand"),
    (lambda c, scale: clip_loss_gradient(c, scale).T, "wrong values"),
    (lambda c, scale: clip_loss_gradient(c, scale).sum(0), "must have shape"),
    (lambda c, scale: clip_loss_gradient(c, scale).tolist(), "must be a tensor, got list"),
    (lambda c, scale: None, "did you forget to return"),
]

WRONG[check.occlusion] = [
    (lambda *given: -occlusion(*given), "the logit before minus the logit after"),
    (lambda *given: pooled(*given[:3]) - occlusion(*given), "by how much each dropped"),
    (with_parts(scores=lambda s, i: s), "compute the weights again"),
    (with_parts(values=lambda v, i: v), "its own value"),
    (lambda x, q, w, filler: occlusion(x, q, w, torch.zeros_like(filler)), "use the given filler"),
    (lambda x, q, w, filler: occlusion(x, q, w, x.mean(0)), "use the given filler"),
    (with_parts(scores=hidden), "the position is not removed"),
    (never_put_back, "restore each patch"),
    (step_by_step, "restore each patch"),
    (only_one_left, "all others do not change"),
    (lambda x, q, w, filler: (x @ q).softmax(-1), "you return the weights, not"),
    (lambda x, q, w, filler: (x @ q).softmax(-1) * (x @ w), "weights times values"),
    (by_gradient, "a gradient describes small changes"),
    (lambda x, q, w, filler: occlusion(x, q / len(q) ** 0.5, w, filler), "not divided by a square root"),
    (lambda *given: occlusion(*given).abs(), "is a negative drop"),
    (lambda *given: occlusion(*given).clamp(min=0), "is a negative drop"),
    (by_division, "do not divide by it"),
    (lambda *given: occlusion(*given) + 0.1, "wrong values"),
    (lambda *given: occlusion(*given)[:, None], "must have shape"),
    (lambda *given: occlusion(*given).mean(), "must have shape"),
    (lambda *given: occlusion(*given).tolist(), "must be a tensor, got list"),
    (lambda x, q, w, filler: x.copy_(filler.expand_as(x))[:, 0], "changed its arguments"),
    (lambda *given: None, "did you forget to return"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


WRONG[check.occlusion] += [(lambda *given: occlusion(*given).squeeze(), "must have shape")]
