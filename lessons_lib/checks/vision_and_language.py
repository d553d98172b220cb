"""Checks of the exercises on vision and language."""

import math
from collections.abc import Callable
from functools import partial

import torch
from einops import rearrange
from torch import Tensor

from lessons_lib.checks import as_tensor, ask, check, compare, is_finite, normal, number, without_autograd

STEPS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)  # step sizes of finite differences


@check
def patchify(answer: Callable[[Tensor, int], Tensor], *, seed: int = 0, cases: int = 8) -> None:
    """Check the split of images into patches."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, rows, columns, p = _picture_case(case, generator)
        images = normal(b, rows * p, columns * p, generator=generator)
        where = f"images {tuple(images.shape)}, p={p}"
        got = ask("patchify", answer, images, p, where=where)
        cut = partial(rearrange, images, p=p, q=p)
        compare(
            "patchify",
            got,
            cut("b (r p) (c q) -> b (r c) (p q)"),
            {
                "reshape alone splits each row of pixels into pieces; a patch is a square": (
                    images.reshape(b, -1, p * p)
                ),
                "the patches are in row order: the second patch is to the right of the first": (
                    cut("b (r p) (c q) -> b (c r) (p q)")
                ),
                "the pixels inside a patch are in row order, too": cut("b (r p) (c q) -> b (r c) (q p)"),
                "rows and columns are exchanged, of the patches and inside them": (
                    cut("b (r p) (c q) -> b (c r) (q p)")
                ),
                "the pixels of a patch are neighbours; the pixels of your patches are a whole patch or more apart": (
                    cut("b (p r) (q c) -> b (r c) (p q)")
                ),
                "height and width are exchanged: the first axis after the images is the height": (
                    rearrange(images.reshape(b, columns * p, rows * p), "b (r p) (c q) -> b (r c) (p q)", p=p, q=p)
                ),
                "the image is upside down or mirrored: count from the top and from the left": [
                    rearrange(images.flip(axes), "b (r p) (c q) -> b (r c) (p q)", p=p, q=p)
                    for axes in ((1,), (2,), (1, 2))
                ],
            },
            where=where,
        )


@check
def unpatchify(answer: Callable[[Tensor, int, int], Tensor], *, seed: int = 0, cases: int = 8) -> None:
    """Check the assembly of an image from its patches."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, rows, columns, p = _picture_case(case, generator)
        height, width = rows * p, columns * p
        pieces = normal(b, rows * columns, p * p, generator=generator)
        where = f"patches {tuple(pieces.shape)}, height={height}, width={width}"
        got = ask("unpatchify", answer, pieces, height, width, where=where)
        join = partial(rearrange, pieces, r=rows, p=p)
        compare(
            "unpatchify",
            got,
            join("b (r c) (p q) -> b (r p) (c q)"),
            {
                "reshape alone puts each patch along the rows; a patch is a square": (pieces.reshape(b, height, width)),
                "the patches are in row order: the second patch is to the right of the first": (
                    join("b (c r) (p q) -> b (r p) (c q)")
                ),
                "the pixels inside a patch are in row order, too": join("b (r c) (q p) -> b (r p) (c q)"),
                "rows and columns are exchanged, of the patches and inside them": (
                    join("b (c r) (q p) -> b (r p) (c q)")
                ),
                "the pixels of a patch are neighbours in the image; do not spread them over the image": (
                    join("b (r c) (p q) -> b (p r) (q c)")
                ),
                "there are height / p rows of patches, and width / p patches in each row": (
                    rearrange(pieces, "b (r c) (p q) -> b (r p) (c q)", r=columns, p=p).reshape(b, height, width)
                ),
            },
            where=where,
        )


@check
def clip_loss(answer: Callable[[Tensor, Tensor, float], float], *, seed: int = 0, cases: int = 6) -> None:
    """Check the symmetric contrastive loss of images and captions."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        f, g, scale = _feature_case(case, generator)
        n = len(f)
        where = f"f and g {tuple(f.shape)}, scale={scale:.2f}"
        got = ask("clip_loss", answer, f, g, scale, where=where)
        value = number("clip_loss", got, where)
        finite = (
            f"clip_loss is {value}: exp of a score in the thousands overflows; use the log-softmax of torch ({where})"
        )
        assert math.isfinite(value), finite
        loss = got if isinstance(got, Tensor) else as_tensor(value)
        unit_f, unit_g = _unit(f), _unit(g)
        cosines = unit_f @ unit_g.T
        scores = scale * cosines
        right, others = _loss(scores), scores.masked_fill(torch.eye(n, dtype=torch.bool), -torch.inf)
        without = torch.stack([others.logsumexp(axis).mean() for axis in (0, 1)]).mean() - scores.diagonal().mean()
        shares = torch.stack([scores.softmax(axis).diagonal().mean() for axis in (0, 1)])
        compare(
            "clip_loss",
            loss,
            right,
            {
                "only one direction: images need a softmax over captions, and captions a softmax over images": [
                    _loss_one_way(scores, 0),
                    _loss_one_way(scores, 1),
                ],
                "return the mean of the two directions, not their sum": 2 * right,
                "return the mean over the pairs, not their sum": [n * right, 2 * n * right],
                "take the mean over the n matching pairs, not over all n x n pairs": right / n,
                "the scale is missing": _loss(cosines),
                "the cosines are multiplied by the scale, not divided by it": _loss(cosines / scale),
                "normalise the features of images and captions to length one": [
                    _loss(scale * (a @ b.T)) for a, b in ((f, g), (unit_f, g), (f, unit_g))
                ],
                "normalise each row to length one, not each column": _loss(scale * (_unit(f, 0) @ _unit(g, 0).T)),
                "the matching caption belongs in the denominator of the softmax too": without,
                "the logarithm is missing": [-shares.mean(), shares.mean(), 1 - shares.mean()],
                "take the logarithm of each probability, then the mean": [-shares.log().mean(), -shares.mean().log()],
                "the sign is wrong: the loss is not negative": -right,
                "you use one softmax over the whole table; each image and each caption has its own softmax": (
                    -scores.flatten().log_softmax(0).view(n, n).diagonal().mean()
                ),
                "the loss is in nats: use the natural logarithm": right / math.log(2),
            },
            where=where,
            scores=scores,
        )


@check
def clip_loss_gradient(answer: Callable[[Tensor, float], Tensor], *, seed: int = 0, cases: int = 6) -> None:
    """Check the gradient of the contrastive loss with respect to the cosine similarities."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        f, g, scale = _feature_case(case, generator)
        cosines, n = _unit(f) @ _unit(g).T, len(f)
        if case % 6 == 1:  # a small step already changes the largest entry; these numbers are exact in single precision
            scale, cosines[0] = 2.0**20, 0.4 * cosines[0]
            cosines[0, :2] = torch.tensor([0.5, 0.5 + 11 * 2.0**-24], dtype=torch.float64)
        where = f"cosines {(n, n)}, scale={scale:.2f}"
        with without_autograd():
            got = ask("clip_loss_gradient", answer, cosines, scale, where=where)
        finite = (
            "clip_loss_gradient holds NaN or an infinity: exp of a score in the thousands overflows; use "
            f"the softmax of torch ({where})"
        )
        assert is_finite(got), finite
        own = torch.eye(n, dtype=torch.float64)
        of_captions, of_pictures = ((scale * cosines).softmax(axis) for axis in (1, 0))
        bare = cosines.softmax(1) + cosines.softmax(0) - 2 * own
        whole = of_captions + of_pictures - 2 * own
        compare(
            "clip_loss_gradient",
            got,
            scale * whole / (2 * n),
            {
                "only one direction: images need a softmax over captions, and captions a softmax over images": [
                    scale * (of_captions - own) / n,
                    scale * (of_pictures - own) / n,
                ],
                "the loss is the mean of two directions, half of their sum": scale * whole / n,
                "the loss is a mean over the pairs: divide by n": [scale * whole / 2, scale * whole],
                "take the mean over the n matching pairs, not over all n x n pairs": scale * whole / (2 * n * n),
                "you return the gradient with respect to the scores; the scores are the cosines times the scale": whole
                / (2 * n),
                "multiply by the scale, do not divide by it": whole / (2 * n * scale),
                "take the softmax of the scaled cosines": [scale * bare / (2 * n), bare / (2 * n)],
                "the matching pairs are missing: the loss also depends on their cosines directly": (
                    scale * (of_captions + of_pictures) / (2 * n)
                ),
                "the matching pair counts once in each direction": scale * (whole + own) / (2 * n),
                "the sign is wrong: a larger cosine of a matching pair makes the loss smaller": -scale
                * whole
                / (2 * n),
                "one of the two softmaxes is transposed: a row is an image in both": [
                    scale * (of_captions + of_pictures.T - 2 * own) / (2 * n),
                    scale * (of_captions.T + of_pictures - 2 * own) / (2 * n),
                ],
                "finite differences give only an approximation: derive the gradient": [
                    _differences(cosines, scale, step, back) for step in STEPS for back in (1.0, 0.0)
                ],
            },
            where=where,
            scores=scale * cosines,
        )


@check
def occlusion(answer: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 6) -> None:
    """Check the occlusion map: the drop of a logit when each patch is replaced."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        one_alone = case % 3 == 2
        x, q, w, filler = _occlusion_case(generator, one_alone=one_alone)
        if case % 6 == 4:  # a single patch, of width 1
            x, q, w, filler = x[:1, :1], q[:1], w[:1], filler[:1]
        n, d = x.shape
        where = f"x {(n, d)}{', one patch with all of the weight' * one_alone}"
        got = ask("occlusion", answer, x, q, w, filler, where=where)
        dividing = "if one patch has all of the weight, 1 minus its weight is zero: do not divide by it"
        assert is_finite(got), f"occlusion is wrong: {dividing} ({where})"
        before, after = (x @ q, x @ w), (filler @ q, filler @ w)
        each, weights = torch.eye(n, dtype=torch.bool), before[0].softmax(-1)
        full = weights @ before[1]
        logits = _occluded_logits(each, *before, *after)
        so_far = _occluded_logits(each.tril().cumsum(0) > 0, *before, *after)
        mean = x.mean(0)
        compare(
            "occlusion",
            got,
            full - logits,
            {
                "the drop is the logit before minus the logit after: a fall of the logit is positive": logits - full,
                "you return the logits after the replacement; return by how much each dropped": logits,
                "compute the weights again: the filler has its own score": (
                    full - _occluded_logits(each, *before, before[0], after[1])
                ),
                "the filler has its own value, too": full - _occluded_logits(each, *before, after[0], before[1]),
                "use the given filler": [
                    full - _occluded_logits(each, *before, 0 * after[0], 0 * after[1]),
                    full - _occluded_logits(each, *before, mean @ q, mean @ w),
                ],
                "the filler replaces the patch and has a weight; the position is not removed": (
                    full - _occluded_logits(each, *before, torch.full_like(full, -torch.inf), after[1])
                ),
                "restore each patch before you replace the next one": [full - so_far, -so_far.diff(prepend=full[None])],
                "replace one patch only; all others do not change": full - _occluded_logits(~each, *before, *after),
                "you return the weights, not the drops": weights,
                "you return weights times values, not the drops": weights * before[1],
                "a gradient describes small changes; here the whole patch is replaced": (
                    weights * (before[1] - after[1] + (before[1] - full) * (before[0] - after[0]))
                ),
                "the scores are not divided by a square root here": (
                    (before[0] / d**0.5).softmax(-1) @ before[1]
                    - _occluded_logits(each, before[0] / d**0.5, before[1], after[0] / d**0.5, after[1])
                ),
                "a rise of the logit is a negative drop: do not remove the sign": [
                    (full - logits).abs(),
                    (full - logits).clamp(min=0.0),
                ],
            },
            where=where,
        )


# --- parts ------------------------------------------------------------------------------------------------------------


def _picture_case(case: int, generator: torch.Generator) -> list[int]:
    """Draw the numbers of images, patch rows, patch columns and pixels per side: all different, or one of them 1."""
    sizes = (torch.randperm(4, generator=generator) + 2).tolist()
    if case % 8 > 3:
        sizes[case % 4] = 1
    return sizes


def _feature_case(case: int, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """Draw correlated features of images and captions with any norms, and a scale, in some cases in the thousands."""
    n, d = (torch.randperm(5, generator=generator)[:2] + 3).tolist()
    n, d = {3: (1, d), 4: (n, 1)}.get(case % 6, (n, d))
    chosen = float(torch.rand((), generator=generator, dtype=torch.float64))
    scale = 2000 + 2000 * chosen if case % 3 == 2 else 2 + 6 * chosen
    while True:
        f = normal(n, d, generator=generator)
        g = 1.5 * (f + normal(n, d, generator=generator))
        cosines = _unit(f) @ _unit(g).T
        if case % 3 != 2 or scale * float((cosines.amax(1) - cosines.diagonal()).max()) > 800:
            return f, g, scale  # large scores, with which the probability of a matching caption rounds to zero


def _differences(cosines: Tensor, scale: float, step: float, back: float) -> Tensor:
    """Return the gradient of the loss by forward or central differences."""
    n = len(cosines)
    steps = step * torch.eye(n * n, dtype=torch.float64).view(n * n, n, n)

    def losses(moved: Tensor) -> Tensor:
        both_ways = (scale * moved).log_softmax(1) + (scale * moved).log_softmax(2)
        return -both_ways.diagonal(dim1=1, dim2=2).mean(-1) / 2

    return ((losses(cosines + steps) - losses(cosines - back * steps)) / (step * (1 + back))).view(n, n)


def _unit(x: Tensor, axis: int = -1) -> Tensor:
    return x / x.norm(dim=axis, keepdim=True)


def _occlusion_case(generator: torch.Generator, *, one_alone: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw patches, a query, an output direction and a filler; drops have both signs, or one patch dominates."""
    n, d = (torch.randperm(5, generator=generator)[:2] + 3).tolist()
    while True:
        x, q, w, filler = (normal(*shape, generator=generator) for shape in ((n, d), (d,), (d,), (d,)))
        if one_alone:
            x[int(torch.randint(n, (), generator=generator))] += 90 * q / (q @ q)
            return x, q, w, filler
        after = _occluded_logits(torch.eye(n, dtype=torch.bool), x @ q, x @ w, filler @ q, filler @ w)
        drops = (x @ q).softmax(-1) @ x @ w - after
        if drops.min() < -0.05 and drops.max() > 0.05:
            return x, q, w, filler


def _occluded_logits(at: Tensor, scores: Tensor, values: Tensor, score: Tensor, value: Tensor) -> Tensor:
    """Return the logits if each row of ``at`` says which patches get another score and another value."""
    return (scores.where(~at, score).softmax(-1) * values.where(~at, value)).sum(-1)


def _loss_one_way(scores: Tensor, axis: int) -> Tensor:
    return -scores.log_softmax(axis).diagonal().mean()


def _loss(scores: Tensor) -> Tensor:
    return (_loss_one_way(scores, 0) + _loss_one_way(scores, 1)) / 2
