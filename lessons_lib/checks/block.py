"""Checks of the exercises on the Transformer block."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, rms_norm, scaled_dot_product_attention

from lessons_lib.checks import ask, check, compare, compare_number, normal, parts_to_compare, without_autograd
from lessons_lib.transformer.configuration import GPTConfig


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
                "each of the four matrices of attention has a bias, not only one of them": right - n_layers * 3 * d,
                "the feed-forward layer has two biases, one of d_ff and one of d numbers": [
                    right - n_layers * d_ff,
                    right - n_layers * d,
                ],
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


Layer = Callable[[Tensor], Tensor]


@check
def decoder_block(
    answer: Callable[[Tensor, list[Tensor], list[Tensor], list[Tensor]], Tensor], *, seed: int = 0, cases: int = 4
) -> None:
    """Check a causal pre-norm block."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        x, gains, heads, layers, where = _block_case(case, generator)
        got = ask("decoder_block", answer, x, gains, heads, layers, where=where)
        every = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        past = every.tril()
        wanted = _pre_norm(x, gains, heads, layers, past)
        mistakes: dict[str, Tensor | list[Tensor]] = {
            **_block_mistakes(x, gains, heads, layers, past),
            "the causal mask is missing": _pre_norm(x, gains, heads, layers, every),
            "the mask is transposed: row i contains the keys that query i may attend to": _pre_norm(
                x, gains, heads, layers, past.T
            ),
            "in the mask, True allows a query to attend to a key": _pre_norm(x, gains, heads, layers, ~past),
        }
        compare("decoder_block", got, wanted, mistakes, where=where)


@check
def encoder_block(
    answer: Callable[[Tensor, list[int], list[Tensor], list[Tensor], list[Tensor]], Tensor],
    *,
    seed: int = 0,
    cases: int = 5,
) -> None:
    """Check a pre-norm block without a causal mask, for texts with padding."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        x, gains, heads, layers, where = _block_case(case, generator)
        b, n, _ = x.shape
        lengths = (torch.randint(1, max(2, n), (b,), generator=generator)).tolist()
        lengths[0], lengths[-1] = (n, n) if case % 5 == 4 else (max(1, n - 1), min(2, n))
        lengths = [n] * b if case % 5 == 4 else lengths
        where = f"{where}, lengths={lengths}"
        got = ask("encoder_block", answer, x, lengths, gains, heads, layers, where=where)
        real = torch.arange(n) < torch.tensor(lengths)[:, None]
        every, past = torch.ones(n, n, dtype=torch.bool), torch.ones(n, n, dtype=torch.bool).tril()
        allowed = real[:, None, None]
        wanted = _pre_norm(x, gains, heads, layers, allowed)
        if isinstance(got, Tensor) and got.shape == wanted.shape and not got.is_complex():
            got = torch.where(real[..., None], got, wanted.to(got.dtype))  # outputs at the padding are not graded

        def graded(output: Tensor, real: Tensor = real, wanted: Tensor = wanted) -> Tensor:
            return torch.where(real[..., None], output, wanted)

        def masked(
            mask: Tensor, given: tuple[Tensor, Any, Any, Any] = (x, gains, heads, layers), graded: Layer = graded
        ) -> Tensor:
            return graded(_pre_norm(*given, mask))

        known = _block_mistakes(x, gains, heads, layers, allowed)
        mistakes: dict[str, Tensor | list[Tensor]] = {
            why: [graded(wrong) for wrong in ways] for why, ways in known.items()
        }
        mistakes |= {
            "an encoder has no causal mask": masked(past & allowed),
            "no position may attend to padding: the mask must hide the keys (columns) of the padding": masked(every),
            "position lengths[i] is the first one of the padding": masked(
                (torch.arange(n) <= torch.tensor(lengths)[:, None])[:, None, None]
            ),
            "each text has its own length": [masked(allowed[:1]), masked(allowed[-1:])],
            "in the mask, True allows a query to attend to a key": masked(~allowed),
        }
        compare("encoder_block", got, wanted, mistakes, where=where)


def _block_case(case: int, generator: torch.Generator) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor], str]:
    """Draw a batch and the weights of a block, and describe their sizes."""
    b, n, d, h, d_head, d_ff = (torch.randperm(7, generator=generator)[:6] + 2).tolist()
    b, n, h, d = {1: (b, n, 1, d), 2: (1, n, h, d), 3: (b, 1, h, d)}.get(case % 5, (b, n + 2, h, d + 1))
    x = normal(b, n, d, generator=generator)
    gains = [1 + normal(d, generator=generator) / 2 for _ in range(2)]
    heads = [normal(h, d, d_head, generator=generator) / d**0.5 for _ in range(3)]
    heads.append(normal(h, d_head, d, generator=generator) / d_head**0.5)
    layers = [normal(d, d_ff, generator=generator), normal(d_ff, d, generator=generator) / d_ff**0.5]
    return x, gains, heads, layers, f"b={b}, n={n}, d={d}, h={h}, d_head={d_head}, d_ff={d_ff}"


def _pre_norm(x: Tensor, gains: list[Tensor], heads: list[Tensor], layers: list[Tensor], mask: Tensor) -> Tensor:
    """Return the output of a pre-norm block."""
    x = x + _attention(_norm(x, gains[0]), heads, mask)
    return x + _feedforward(_norm(x, gains[1]), layers)


def _block_mistakes(
    x: Tensor, gains: list[Tensor], heads: list[Tensor], layers: list[Tensor], mask: Tensor
) -> dict[str, list[Tensor]]:
    """Return the results of mistakes that do not concern the mask, one for each way to make the mistake."""

    def norm(x: Tensor) -> Tensor:
        return _norm(x, gains[0])

    def second(x: Tensor) -> Tensor:
        return _norm(x, gains[1])

    def attend(x: Tensor) -> Tensor:
        return _attention(x, heads, mask)

    def feed(x: Tensor) -> Tensor:
        return _feedforward(x, layers)

    middle = x + attend(norm(x))
    post = norm(x + attend(x))
    carried = norm(x) + attend(norm(x))
    both, swapped = second(carried), x + feed(norm(x))
    return {
        "the residual connection of the attention layer is missing": [attend(norm(x)) + feed(second(attend(norm(x))))],
        "the residual connection of the feed-forward layer is missing": [feed(second(middle))],
        "both residual connections are missing": [feed(second(attend(norm(x))))],
        "this is a post-norm block: the norm stands before the layer, inside the residual branch": [
            second(post + feed(post))
        ],
        "the residual connection carries the stream itself, not the normed stream": [
            both + feed(both),
            carried + feed(second(carried)),
            second(middle) + feed(second(middle)),
        ],
        "the feed-forward layer reads the stream after the attention layer, not the input of the block": [
            middle + feed(second(x))
        ],
        "attention and the feed-forward layer are applied one after the other, not both to the block's input": [
            middle + feed(norm(x))
        ],
        "each layer has a norm with a gain of its own: gains[0], then gains[1]": [
            middle + feed(norm(middle)),
            x + attend(second(x)) + feed(norm(x + attend(second(x)))),
            x + attend(second(x)) + feed(second(x + attend(second(x)))),
        ],
        "attention comes first, then the feed-forward layer": [
            swapped + attend(second(swapped)),
            x + feed(second(x)) + attend(norm(x + feed(second(x)))),
        ],
        "the norms are missing": [x + attend(x) + feed(x + attend(x))],
        "the norm before the attention layer is missing": [x + attend(x) + feed(second(x + attend(x)))],
        "the norm before the feed-forward layer is missing": [middle + feed(middle)],
        "the norm is applied to the input of a layer, not to its output": [
            x + norm(attend(x)) + second(feed(x + norm(attend(x))))
        ],
        "the block ends with a sum: the next norm belongs to the next block": [second(middle + feed(second(middle)))],
    }


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    return rms_norm(x, gain.shape, gain, eps=1e-5)


def _attention(x: Tensor, heads: list[Tensor], mask: Tensor) -> Tensor:
    q, k, v = (x.unsqueeze(1) @ w for w in heads[:3])
    return (scaled_dot_product_attention(q, k, v, mask) @ heads[3]).sum(1)


def _feedforward(x: Tensor, layers: list[Tensor]) -> Tensor:
    return gelu(x @ layers[0]) @ layers[1]


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
