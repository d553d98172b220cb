"""Tests of the shared arithmetic: it agrees with the library, and wrong implementations are noticed.

Everything is float64 on both sides. Largest difference measured over these inputs: 2e-16 for weights, 2e-16 of its size
for the logarithm of the sum, 4e-16 for entropies, 1.4e-14 for counts; the tolerance leaves another ``exp`` some room.
"""

import pytest
import torch
from torch.testing import assert_close

from lessons_lib.attention.softmax import log_sum_exp, softmax

pytestmark = pytest.mark.browser


def close(ours, theirs):
    assert_close(torch.tensor(ours, dtype=torch.float64), theirs, rtol=1e-13, atol=1e-13)


def score_rows():
    rows = [torch.randn(n) * spread for n in (1, 2, 3, 7, 31) for spread in (0.01, 1.0, 30.0)]
    return [*rows, torch.tensor([700.0, -700.0, 699.0]), torch.tensor([1e4, 0.0]), torch.tensor([5.0, 5.0, 5.0])]


def weight_rows():
    return [softmax(scores) for scores in score_rows()] + [torch.tensor([1.0, 0.0, 0.0])]


@pytest.mark.parametrize("temperature", [0.05, 0.3, 1.0, 20.0])
def test_softmax(javascript, temperature):
    rows = score_rows()
    ours = javascript.each("arithmetic", "softmax", [[row.tolist(), temperature] for row in rows])
    for row, p in zip(rows, ours, strict=True):
        close(p, softmax(row, temperature=temperature))


def test_log_sum_exp(javascript):
    rows = score_rows()
    ours = javascript.each("arithmetic", "logSumExp", [[row.tolist()] for row in rows])
    close(ours, torch.stack([log_sum_exp(row) for row in rows]))


def test_entropy_and_effective_count(javascript):
    from lessons_lib.analysis.information import effective_count, entropy

    rows = weight_rows()
    for name, function in [("entropy", entropy), ("effectiveCount", effective_count)]:
        ours = javascript.each("arithmetic", name, [[row.tolist()] for row in rows])
        close(ours, torch.stack([function(row) for row in rows]))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Math.exp((s - peak) / temperature)", "Math.exp(s / temperature - peak)"),
        ("Math.exp((s - peak) / temperature)", "Math.exp((s - peak) * temperature)"),
        ("Math.exp((s - peak) / temperature)", "Math.exp(s / temperature)"),
        ("u / total", "u"),
    ],
)
def test_wrong_softmax_is_noticed(altered, right, wrong):
    with altered("arithmetic", right, wrong) as javascript, pytest.raises(AssertionError, match="not close"):
        test_softmax(javascript, 0.3)


def test_median(javascript):
    for n in (1, 2, 5, 8):
        numbers = torch.randn(n)
        assert javascript("arithmetic", "median", numbers.tolist()) == numbers.quantile(0.5).item()


def test_uniform_is_mulberry32(javascript):
    def mulberry32(seed, n):
        for _ in range(n):
            seed = (seed + 0x6D2B79F5) & 0xFFFFFFFF
            z = (seed ^ seed >> 15) * (seed | 1) & 0xFFFFFFFF
            z ^= (z + ((z ^ z >> 7) * (z | 61) & 0xFFFFFFFF)) & 0xFFFFFFFF
            yield ((z ^ z >> 14) + 0.5) / 2**32

    script = """async ([seed, n]) => {
      const random = (await import("./arithmetic.js")).uniform(seed);
      return Array.from({ length: n }, random);
    }"""
    for seed in (0, 1, 2**31 + 5):
        assert javascript.page.evaluate(script, [seed, 50]) == list(mulberry32(seed, 50))


def test_normal_numbers_are_normal(javascript):
    """Kolmogorov and Smirnov: a thousandth of fair samples lie further than 1.95 / sqrt(n) from the true curve."""
    script = """async (n) => {
      const { normal, uniform } = await import("./arithmetic.js");
      const random = uniform(3);
      return Array.from({ length: n }, () => normal(random));
    }"""
    sample = torch.tensor(javascript.page.evaluate(script, 20_000)).sort().values
    n = len(sample)
    true = torch.distributions.Normal(0.0, 1.0).cdf(sample)
    assert (true - torch.arange(1, n + 1) / n).abs().max() < 1.95 / n**0.5
