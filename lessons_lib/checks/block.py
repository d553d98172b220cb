"""Checks of the exercises on the Transformer block."""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.checks import ask, check, compare, compare_number, normal, parts_to_compare, without_autograd
from lessons_lib.transformer.gpt import GPTConfig


@check
def n_weights(answer: Callable[[int, int, int, int, int, bool], int], *, seed: int = 0, cases: int = 6) -> None:
    """Check the number of parameters of a GPT-2 of given sizes."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        vocab, context, half, n_layers, d_ff = (torch.randperm(40, generator=generator)[:5] + 3).tolist()
        d, tied = 2 * half, case % 2 == 0
        where = f"V={vocab}, n={context}, d={d}, L={n_layers}, d_ff={d_ff}, tied={tied}"
        got = ask("n_weights", answer, vocab, context, d, n_layers, d_ff, tied, where=where)
        right = GPTConfig(vocab, context, d, n_layers, 1, d_ff=d_ff, tied=tied).n_parameters()
        head, norm = vocab * d, 2 * d
        biases = n_layers * (4 * d + d_ff + d)
        compare_number(
            "n_weights",
            got,
            right,
            {
                "a tied head shares the embedding's weights: do not count them twice": right + tied * head,
                "an untied head has as many weights as the embedding": right - (not tied) * head,
                "each position has a learned vector: these are missing": right - context * d,
                "the norm before the head is missing": right - norm,
                "a block has two norms, one before each layer": right - n_layers * norm,
                "a layer norm has a gain and a bias": right - d * (2 * n_layers + 1),
                "the matrices have biases: four times d in attention, d_ff and d in the feed-forward layer": (
                    right - biases
                ),
                "the biases of the feed-forward layers are missing": right - n_layers * (d_ff + d),
                "the biases of the attention layers are missing": right - n_layers * 4 * d,
                "attention has four matrices: count W_O too": [
                    right - n_layers * d * d,
                    right - n_layers * (d * d + d),
                ],
                "the feed-forward layer has two matrices, up and down": right - n_layers * d * d_ff,
                "each block has its own weights: multiply by the number of blocks": (
                    right - (n_layers - 1) * (4 * d * d + 2 * d * d_ff + 2 * norm + 5 * d + d_ff)
                ),
                "d_ff need not be 4 d": right + n_layers * (4 * d - d_ff) * (2 * d + 1),
                "the head has no bias": right + vocab,
            },
            where=where,
        )


@check
def logit_parts(answer: Callable[[Tensor, Tensor, Tensor, float], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check the contribution to the logits of each addition to the residual stream, after an RMS norm."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        writes, n, d, vocab = (torch.randperm(8, generator=generator)[:4] + 2).tolist()
        writes, n = {2: (1, n), 3: (writes, 1)}.get(case % 4, (writes, n))
        added = normal(writes, n, d, generator=generator)
        gain, head = normal(d, generator=generator), normal(vocab, d, generator=generator)
        eps = float(torch.rand((), generator=generator, dtype=torch.float64)) + 0.1
        where = f"{writes} additions, n={n}, d={d}, V={vocab}, eps={eps:.3g}"
        got = ask("logit_parts", answer, added, gain, head, eps, where=where)
        stream = added.sum(0)
        root = (stream.square().mean(-1, keepdim=True) + eps).sqrt()
        own = (added.square().mean(-1, keepdim=True) + eps).sqrt()
        steps = added.cumsum(0)
        wanted = added / root * gain @ head.T
        centred = added - added.mean(-1, keepdim=True)
        spread = (stream.var(-1, correction=0, keepdim=True) + eps).sqrt()
        compare(
            "logit_parts",
            got,
            wanted,
            {
                "divide every contribution by the same number, the root mean square of the whole stream": added
                / own
                * gain
                @ head.T,
                "these are the logits of the stream at each depth: a contribution belongs to one addition": [
                    steps / root * gain @ head.T,
                    steps / (steps.square().mean(-1, keepdim=True) + eps).sqrt() * gain @ head.T,
                ],
                "the gain of the norm is missing": added / root @ head.T,
                "eps is missing": added / stream.square().mean(-1, keepdim=True).sqrt() * gain @ head.T,
                "eps must be added inside the root": added
                / (stream.square().mean(-1, keepdim=True).sqrt() + eps)
                * gain
                @ head.T,
                "the root is of the mean of the squares, not of their sum": added
                / (stream.square().sum(-1, keepdim=True) + eps).sqrt()
                * gain
                @ head.T,
                "the root is missing: divide by the root of the mean square": added / root.square() * gain @ head.T,
                "the norm is missing": [added @ head.T, added * gain @ head.T],
                "an RMS norm does not subtract the mean": [
                    centred / spread * gain @ head.T,
                    centred / root * gain @ head.T,
                ],
                "each position has its own root mean square": added
                / (stream.square().mean() + eps).sqrt()
                * gain
                @ head.T,
            },
            where=where,
        )


@check
def norm_backward(
    answer: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]],
    *,
    seed: int = 0,
    cases: int = 4,
    only: str | None = None,
) -> None:
    """Check the backward pass of an RMS norm: the gradient of its input, of its gain, or both."""
    compared = parts_to_compare(("grad_x", "grad_gain"), only)
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n, d = (torch.randperm(6, generator=generator)[:2] + 3).tolist()
        n, d = {2: (1, d), 3: (n, 1)}.get(case % 4, (n, d))
        x, grad = normal(2, n, d, generator=generator).unbind()
        gain = normal(d, generator=generator)
        eps = float(torch.rand((), generator=generator, dtype=torch.float64)) + 0.1
        where = f"n={n}, d={d}, eps={eps:.3g}"
        returns = "the pair (grad_x, grad_gain)"
        with without_autograd():
            got = ask("norm_backward", answer, x, gain, grad, eps, where=where, returns=returns, parts=2)
        root = (x.square().mean(-1, keepdim=True) + eps).sqrt()
        hat, g = x / root, grad * gain
        along = hat * (g * hat).mean(-1, keepdim=True)
        length = x.square().mean(-1, keepdim=True).sqrt()
        bare = x / length
        wanted = (g - along) / root, (grad * hat).sum(0)
        mistakes = (
            {
                "the root depends on x too: subtract the component along the normed vector": g / root,
                "the component along the normed vector must be subtracted, not added": (g + along) / root,
                "the component along the normed vector is a mean over the d entries, not a sum": (g - d * along) / root,
                "the gain is missing: it multiplies the gradient first": (
                    grad - hat * (grad * hat).mean(-1, keepdim=True)
                )
                / root,
                "the gain multiplies the gradient before the projection, not after it": (
                    grad - hat * (grad * hat).mean(-1, keepdim=True)
                )
                * gain
                / root,
                "eps is missing": (g - bare * (g * bare).mean(-1, keepdim=True)) / length,
                "eps is missing in the normed vector": (g - bare * (g * bare).mean(-1, keepdim=True)) / root,
                "the division by the root is missing": g - along,
                "the projection uses the normed vector, not x": (g - x * (g * x).mean(-1, keepdim=True)) / root,
                "an RMS norm does not subtract the mean": (g - g.mean(-1, keepdim=True) - along) / root,
            },
            {
                "the gradient of the gain is a sum over the positions, not a mean": (grad * hat).mean(0),
                "the gain multiplies the normed vector, not x": (grad * x).sum(0),
                "the gradient of the gain does not contain the gain": (g * hat).sum(0),
                "eps is missing": (grad * bare).sum(0),
            },
        )
        several = isinstance(got[1], Tensor) and got[1].shape == x.shape
        assert not (several and (1, "grad_gain") in compared), (
            f"grad_gain has one entry for each entry of the gain, shape {tuple(gain.shape)}: sum over the positions "
            f"({where})"
        )
        for i, name in compared:
            compare(name, got[i], wanted[i], mistakes[i], where=where)
