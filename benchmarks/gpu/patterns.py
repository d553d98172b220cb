"""Rules that are not bands, by name, of the kinds that models use.

The documents differ from sequence to sequence, and the blocks of BigBird are not a multiple of a kernel's tile.
"""

from collections.abc import Callable

import torch

from lessons_lib.attention.rules import BigBird, Causal, Documents, GlobalTokens, Prefix, Rule, Window

N_DOCUMENTS = 8  # in each packed sequence
BLOCK = 48  # tokens in a block of BigBird


def causal(b: int, m: int, device: str) -> Rule:
    """Return the causal rule as a prefix of length 0, which the kernels run as a block mask and not as a band."""
    return Prefix(0)


def documents(b: int, m: int, device: str) -> Rule:
    """Return causal attention in packed documents."""
    generator = torch.Generator().manual_seed(m)
    cuts = torch.stack([torch.randperm(m - 1, generator=generator)[: N_DOCUMENTS - 1] + 1 for _ in range(b)])
    ids = (torch.arange(m) >= cuts[..., None]).sum(dim=1).to(device)
    return Causal() & Documents(ids)


def prefix(b: int, m: int, device: str) -> Rule:
    """Return a prompt with attention in both directions, then a causal answer."""
    return Prefix(m // 4 + 5)


def longformer(b: int, m: int, device: str) -> Rule:
    """Return a symmetric window and two global tokens."""
    return GlobalTokens([3, m // 2]) | Window(m // 16)


def bigbird(b: int, m: int, device: str) -> Rule:
    """Return a window of blocks, a global block and random blocks."""
    generator = torch.Generator().manual_seed(m)
    return BigBird(-(-m // BLOCK), window=2, n_global=1, n_random=2, generator=generator, block=BLOCK)


PATTERNS: dict[str, Callable[[int, int, str], Rule]] = {
    function.__name__: function for function in (causal, documents, prefix, longformer, bigbird)
}


def count_pairs(rule: Rule, b: int, n: int, device: str) -> float:
    """Return how many pairs of ``n`` queries and keys the rule allows, the mean over ``b`` sequences.

    The table is counted in strips of 256 queries, so that it need not fit into memory.
    """
    count = 0
    for first in range(0, n, 256):
        rows = rule.tile(range(first, min(first + 256, n)), range(n), device=device)
        count += rows.expand(b, 1, *rows.shape[-2:]).sum().item()
    return count / b
