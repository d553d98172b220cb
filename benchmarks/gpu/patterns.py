"""Who sees whom where it is no band: rules of the kinds that models use, by name, each also as FlexAttention says it.

Documents have other lengths in every sequence, and the blocks of BigBird are no multiple of a tile.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from lessons_lib.rules import BigBird, Causal, Documents, GlobalTokens, Prefix, Rule, Window

PACKED = 8  # documents in a sequence
BLOCK = 48  # tokens of a block of BigBird
Sees = Callable[[Any, Any, Any, Any], Any]  # (sequence, head, query, key), all of them numbers


class Pattern(NamedTuple):
    """A rule over ``m`` queries and keys, and the function of FlexAttention that says the same, if there is one."""

    rule: Rule
    sees: Sees | None = None


def causal(b: int, m: int, device: str) -> Pattern:
    """The band that the kernels know, said so that they do not know it: what a table costs."""
    return Pattern(Prefix(0), lambda b, h, i, j: i >= j)


def documents(b: int, m: int, device: str) -> Pattern:
    """Packed documents, each causal."""
    generator = torch.Generator().manual_seed(m)
    cuts = torch.stack([torch.randperm(m - 1, generator=generator)[: PACKED - 1] + 1 for _ in range(b)])
    ids = (torch.arange(m) >= cuts[..., None]).sum(dim=1).to(device)
    return Pattern(Causal() & Documents(ids), lambda b, h, i, j: (i >= j) & (ids[b, i] == ids[b, j]))


def prefix(b: int, m: int, device: str) -> Pattern:
    """A prompt that sees all of itself, then an answer."""
    prompt = m // 4 + 5
    return Pattern(Prefix(prompt), lambda b, h, i, j: (j < prompt) | (i >= j))


def longformer(b: int, m: int, device: str) -> Pattern:
    """A window to both sides, and two tokens that see all and are seen by all."""
    return Pattern(GlobalTokens([3, m // 2]) | Window(m // 16))


def bigbird(b: int, m: int, device: str) -> Pattern:
    """A window of blocks, a block for all, and blocks drawn by chance."""
    generator = torch.Generator().manual_seed(m)
    return Pattern(BigBird(-(-m // BLOCK), window=2, n_global=1, n_random=2, generator=generator, block=BLOCK))


PATTERNS: dict[str, Callable[[int, int, str], Pattern]] = {
    function.__name__: function for function in (causal, documents, prefix, longformer, bigbird)
}


def pairs(rule: Rule, b: int, n: int, device: str) -> float:
    """How many pairs of ``n`` queries and keys a sequence sees, the mean over ``b`` sequences; counted in strips."""
    count = 0
    for first in range(0, n, 256):
        rows = rule.tile(range(first, min(first + 256, n)), range(n), device=device)
        count += rows.expand(b, 1, *rows.shape[-2:]).sum().item()
    return count / b
