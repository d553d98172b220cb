"""Checks of the exercises on FlashAttention."""

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from lessons_lib.attention.attention import attention
from lessons_lib.attention.softmax import log_sum_exp
from lessons_lib.checks import ask, check, compare, compare_number, is_finite, parts_to_compare, without_autograd

Pieces = Iterable[tuple[Tensor, Tensor]]


@check
def minimum_seconds(
    answer: Callable[[int, int, float, float], float | Tensor], *, seed: int = 0, cases: int = 5
) -> None:
    """Check the lower bound on the time of FlashAttention, with inputs limited by arithmetic and by bandwidth."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(cases):
        n, d = (2 ** int(torch.randint(low, high, (), generator=generator)) for low, high in ((9, 14), (5, 8)))
        share, bandwidth = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        bandwidth = 1e12 * (1 + bandwidth)
        # so far from the ratio of attention that every omitted factor changes the result
        _check_time(answer, n, d, bandwidth / (90 + share), bandwidth, "arithmetic")
        _check_time(answer, n, d, bandwidth * n * (90 + share), bandwidth, "traffic")


def _check_time(
    answer: Callable[[int, int, float, float], float | Tensor],
    n: int,
    d: int,
    rate: float,
    bandwidth: float,
    slower: str,
) -> None:
    arithmetic, traffic = 4 * n * n * d / rate, 8 * n * d / bandwidth
    matrix = n * n / bandwidth  # seconds to move the scores once, with one byte each
    mistakes = {
        "arithmetic and traffic overlap, so the slower one determines the time; you return the faster one": min(
            arithmetic, traffic
        ),
        "arithmetic and traffic happen at the same time, so their times are not added": arithmetic + traffic,
        "a matrix product takes a multiplication and an addition for each pair of numbers": arithmetic / 2,
        "there are two matrix products, scores and weighted averages, of n * n * d pairs of numbers each": arithmetic
        / 4,
        "each number takes two bytes": [traffic / 2, 2 * traffic],
        "queries, keys, values and outputs are all moved, four times n * d numbers": [traffic / 4, 3 * traffic / 4],
        "the matrix of scores never leaves the fast memory": [traffic + count * matrix for count in (1, 2, 4, 8)],
        "both products run over all n * n pairs of a query and a key": arithmetic / n,
        "a score takes d multiplications, and so does adding a weighted value": arithmetic / d,
        "the time is the FLOPs divided by the FLOPs per second, or the bytes divided by the bytes per second": [
            1 / arithmetic,
            1 / traffic,
        ],
    }
    where = f"n={n}, d={d}, rate={rate:.3g}, bandwidth={bandwidth:.3g}, limited by {slower}"
    got = ask("minimum_seconds", answer, n, d, rate, bandwidth, where=where)
    compare_number("minimum_seconds", got, max(arithmetic, traffic), mistakes, where=where)


@check
def attend_stream(
    answer: Callable[[Tensor, Pieces], tuple[Tensor, Tensor]],
    *,
    seed: int = 0,
    cases: int = 4,
    only: str | None = None,
) -> None:
    """Check attention to keys that arrive in pieces, each erased before the next one: ``out``, ``lse`` or both."""
    compared = parts_to_compare(("out", "lse"), only)
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n, d_k, d_v, n_pieces = (torch.randperm(6, generator=generator)[:4] + 2).tolist()
        n, n_pieces = {2: (1, n_pieces), 3: (n, 1)}.get(case % 4, (n, n_pieces))
        sizes = (torch.randperm(7, generator=generator)[:n_pieces] + 1).tolist()
        q, k, v = (
            torch.randn(rows, width, generator=generator, dtype=torch.float64)
            for rows, width in ((n, d_k), (sum(sizes), d_k), (sum(sizes), d_v))
        )
        where = f"n={n}, d_k={d_k}, d_v={d_v}, pieces of {sizes} keys"
        _check_stream(answer, q, k, v, sizes, compared, f"scores near 0, {where}")
        _check_stream(answer, 3000 * q, k, v, sizes, compared, f"scores in the thousands, {where}")
        _check_stream(answer, *with_low_scores(q, k), v, sizes, compared, f"scores near -2000, {where}")


def _check_stream(
    answer: Callable[[Tensor, Pieces], tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sizes: list[int],
    compared: list[tuple[int, str]],
    where: str,
) -> None:
    pieces = list(zip(k.split(sizes), v.split(sizes), strict=True))
    returns = "the pair (out, lse)"
    got = ask("attend_stream", answer, q, _erasing_iterator(pieces), where=where, returns=returns, parts=2)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    lse, peak = log_sum_exp(scores), scores.amax(dim=-1)
    causes = {
        "near 0": "did you use a piece after you requested the next one?",
        "thousands": "subtract the largest score so far before exp",
        "-2000": "start the running maximum at -inf, not at 0",
    }
    cause = next(cause for kind, cause in causes.items() if kind in where)
    for i, name in compared:
        assert is_finite(got[i]), f"{name} is not finite: {cause} ({where})"
    outs = [attention(q, keys, values) for keys, values in pieces]
    states = _stream_mistakes(q, pieces)
    wanted = attention(q, k, v), lse
    mistakes = (
        {
            "the scores are not divided by sqrt(d_k)": attention(q, k, v, scale=1.0),
            "the outputs of the pieces are averaged with equal weights": torch.stack(outs).mean(dim=0),
            "only the last piece is used": outs[-1],
            "only the first piece is used": outs[0],
            "when a larger score arrives, the running sum of exponentials must be rescaled too": states["summed only"],
            "when a larger score arrives, the running sum of values must be rescaled too": states["total only"],
            "when a larger score arrives, both running sums must be rescaled": states["neither"],
        },
        {
            "the scores are not divided by sqrt(d_k)": log_sum_exp(scores * math.sqrt(q.shape[-1])),
            "the largest score must be added back": lse - peak,
            "you return the largest score; the logarithm of the sum of exponentials is missing": peak,
            "lse is a natural logarithm": lse / math.log(2),
            "only the last piece is used": log_sum_exp(q @ pieces[-1][0].mT / math.sqrt(q.shape[-1])),
        },
    )
    for i, name in compared:
        compare(name, got[i], wanted[i], mistakes[i], where=where, scores=scores)


def with_low_scores(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Append an entry to queries and keys that lowers all scores by 2000."""
    entry = math.sqrt(2000 * math.sqrt(q.shape[-1] + 1))
    return torch.cat([q, torch.full_like(q[:, :1], entry)], -1), torch.cat([k, torch.full_like(k[:, :1], -entry)], -1)


def _erasing_iterator(pieces: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    for keys, values in pieces:
        lent = keys.clone(), values.clone()
        yield lent
        for tensor in lent:
            tensor.fill_(torch.nan)


def _stream_mistakes(q: Tensor, pieces: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Return the results of an online softmax that does not rescale one of its quantities."""
    results = {}
    for name, rescale_total, rescale_sum in (
        ("summed only", False, True),
        ("total only", True, False),
        ("neither", False, False),
    ):
        peak = q.new_full((len(q), 1), -torch.inf)
        total, summed = torch.zeros_like(peak), q.new_zeros(len(q), pieces[0][1].shape[-1])
        for keys, values in pieces:
            scores = q @ keys.mT / math.sqrt(q.shape[-1])
            new_peak = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
            shrink, weights = (peak - new_peak).exp(), (scores - new_peak).exp()
            total = (total * shrink if rescale_total else total) + weights.sum(dim=-1, keepdim=True)
            summed = (summed * shrink if rescale_sum else summed) + weights @ values
            peak = new_peak
        results[name] = summed / total
    return results


@check
def causal_traffic(answer: Callable[[int, int, int, int], int], *, seed: int = 0, cases: int = 8) -> None:
    """Check the number of values that causal tiles load and store."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n, d, block_q, block_k, wanted, mistakes = _traffic_case(case, generator)
        where = f"n={n}, d={d}, block_q={block_q}, block_k={block_k}"
        got = ask("causal_traffic", answer, n, d, block_q, block_k, where=where)
        compare_number("causal_traffic", got, wanted, mistakes, where=where)


def _traffic_case(case: int, generator: torch.Generator) -> tuple[int, int, int, int, int, dict[str, int]]:
    """Return sizes, the correct result and the known mistakes, which all differ in the first case."""
    while True:
        n, d = (int(torch.randint(low, high, (), generator=generator)) for low, high in ((40, 200), (2, 40)))
        block_q, block_k = torch.randint(3, 30, (2,), generator=generator).tolist()
        if case % 8 == 4:  # the blocks divide the queries and the keys
            n = 3 * block_q * block_k
        if case % 8 in (5, 6):  # one block holds all queries, or a tile holds one key
            block_q, block_k = (n + 3, block_k) if case % 8 == 5 else (2 * block_q + 1, 1)
        blocks = [(start, min(start + block_q, n)) for start in range(0, n, block_q)]
        fixed = 2 * n * d + n  # load Q, store O and the log-sum-exps

        def keys_until(stop: int, n: int = n, block_k: int = block_k) -> int:
            return min(math.ceil(stop / block_k) * block_k, n)

        visited = sum(keys_until(stop) for _, stop in blocks)
        whole = [(start, stop) for start, stop in blocks if stop - start == block_q]
        mistakes = {
            "tiles whose keys are all masked are skipped": len(blocks) * n * 2 * d + fixed,
            "tiles on the diagonal are loaded too, because they are masked only in part": fixed
            + 2 * d * sum(start // block_k * block_k for start, _ in blocks),
            "a tile to which only the later queries of a block attend is loaded too": fixed
            + 2 * d * sum((start + 1) // block_k * block_k for start, _ in blocks),
            "a tile is loaded whole, even if only some of its keys are unmasked": fixed
            + 2 * d * sum(stop for _, stop in blocks),
            "the last tile of keys ends at n, so it may be shorter": fixed
            + 2 * d * sum(math.ceil(stop / block_k) * block_k for _, stop in blocks),
            "the last block of queries counts too, even if it is shorter": fixed
            + 2 * d * sum(keys_until(stop) for _, stop in whole),
            "values are loaded as well as keys": visited * d + fixed,
            "one log-sum-exp for each query is stored too": visited * 2 * d + 2 * n * d,
            "the output is stored too": visited * 2 * d + n * d + n,
            "the queries of a block are loaded once and stay in fast memory": visited * 2 * d
            + n * d
            + n
            + sum((stop - start) * d * math.ceil(stop / block_k) for start, stop in blocks),
            "no score leaves the fast memory": visited * 2 * d + fixed + 2 * n * n,
            "half of all tiles is not exact, because the tiles on the diagonal are loaded whole": len(blocks) * n * d
            + fixed,
        }
        wanted = visited * 2 * d + fixed
        if case or len({wanted, *mistakes.values()}) == 1 + len(mistakes):
            return n, d, block_q, block_k, wanted, mistakes


@check
def merge_backward(
    answer: Callable[..., tuple[Tensor, ...]], *, seed: int = 0, cases: int = 5, only: str | None = None
) -> None:
    """Check the gradients of the four inputs of a merge, or ``only`` one."""
    compared = parts_to_compare(("grad_out_a", "grad_lse_a", "grad_out_b", "grad_lse_b"), only)
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n, d = (torch.randperm(6, generator=generator)[:3] + 2).tolist()
        rows = (b, n) if case % 2 else (n,)
        height = 900.0 if case > 1 else 0.0
        b = 1 if case % 4 == 3 else b
        each = height * (
            1 if case % 4 == 2 else torch.linspace(1, -1, n, dtype=torch.float64)
        )  # one shift for each row
        out_a, out_b, grad_out = torch.randn(3, *rows, d, generator=generator, dtype=torch.float64)
        lse_a, lse_b, grad_lse = torch.randn(3, *rows, generator=generator, dtype=torch.float64)
        apart = case % 5 == 4  # the part with the lower log-sum-exp has no weight
        given = out_a, lse_a + each, out_b, lse_b + (-each if apart else each), grad_out, grad_lse
        far = f"near {height:.0f}" if case % 4 == 2 or not height else f"from {height:.0f} to -{height:.0f}"
        far += ", those of the two parts far apart" * apart
        where = f"out over {(*rows, d)}, log-sum-exps {far}"
        with without_autograd():
            returns = "four gradients, for out_a, lse_a, out_b, lse_b"
            got = ask("merge_backward", answer, *given, where=where, returns=returns, parts=4)
        assert is_finite(*(got[i] for i, _ in compared)) or not height, (
            f"exp overflowed or underflowed: the merge weights depend only on the difference of the log-sum-exps "
            f"({where})"
        )
        wanted, mistakes = _merge_gradients(*given)
        for i, name in compared:
            of_part = {why: wrong[i] for why, wrong in mistakes.items()}
            compare(name, got[i], wanted[i], of_part, where=where, scores=height)


def _merge_gradients(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, grad_out: Tensor, grad_lse: Tensor
) -> tuple[tuple[Tensor, ...], dict[str, tuple[Tensor, ...]]]:
    """Return the four gradients, and the gradients with each likely mistake."""
    weight_a, weight_b = torch.stack([lse_a, lse_b]).softmax(dim=0)
    out = weight_a[..., None] * out_a + weight_b[..., None] * out_b

    def gradients(
        *, own: float = 1.0, from_lse: float = 1.0, swapped: bool = False, shared: bool = True, weighed: bool = True
    ) -> tuple[Tensor, ...]:
        result = []
        for part, weight in ((out_a, weight_b if swapped else weight_a), (out_b, weight_a if swapped else weight_b)):
            to_lse = (grad_out * (part - own * out)).sum(dim=-1) + from_lse * grad_lse
            result += [weight[..., None] * grad_out if shared else grad_out, weight * to_lse if weighed else to_lse]
        return tuple(result)

    a_to_a, b_to_b = weight_a * (1 - weight_a), weight_b * (1 - weight_b)
    return gradients(), {
        "the merge weights sum to one, so raising one lowers the other: subtract the merged output": gradients(own=0.0),
        "grad_lse must reach the log-sum-exps of both parts": gradients(from_lse=0.0),
        "the merge weights of a and b are swapped": gradients(swapped=True),
        "multiply the gradient of a part's output by the merge weight of the part": gradients(shared=False),
        "multiply the gradient of a part's log-sum-exp by the merge weight of the part": gradients(weighed=False),
        "the merge weights depend on the log-sum-exps, so they are not constants": (
            weight_a[..., None] * grad_out,
            weight_a * grad_lse,
            weight_b[..., None] * grad_out,
            weight_b * grad_lse,
        ),
        "only the part's own merge weight is differentiated; the other merge weight changes too": (
            weight_a[..., None] * grad_out,
            a_to_a * (grad_out * out_a).sum(dim=-1) + weight_a * grad_lse,
            weight_b[..., None] * grad_out,
            b_to_b * (grad_out * out_b).sum(dim=-1) + weight_b * grad_lse,
        ),
    }
