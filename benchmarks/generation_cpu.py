"""Time writing on a CPU: what a token costs against the length of what is in the cache, and against transformers.

Run ``OMP_NUM_THREADS=1 python benchmarks/generation_cpu.py`` on a quiet machine (five minutes); it writes
``benchmarks/results/generation-cpu.json``. What the figures mean, in milliseconds of processor time on one thread:

    append          adding one position to the caches of all layers, the least of many
    append_by_cat   the same by concatenation, which copies all that is there
    token           one pass of the model with one new token, caches and attention included
    token_by_cat    the same with concatenating caches
    tokens_per_second   of a whole greedy text: ours, ours through PyTorch's attention, and that of transformers' Llama
                    with the same weights; the texts are equal

All take turns, so that other work on the machine disturbs all alike.
"""

import datetime
import json
import math
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from flash_cpu import processor
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM

from lessons_lib.attention.cache import KVCache
from lessons_lib.generation.sampling import generate
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.huggingface import gpt_from_huggingface

TARGET = Path(__file__).resolve().parent / "results" / "generation-cpu.json"
LENGTHS = (1024, 2048, 4096, 8192)
STEPS, ROUNDS = 24, 4
START, NEW = 64, 192  # of the whole texts
SIZES = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16_384,
}


class Concatenating(KVCache):
    """A cache that makes new tensors at every step, as it would with gradients."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add and return, by ``torch.cat``."""
        with torch.enable_grad():
            return super().append(k, v)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, bias: Tensor | None, dropout_p: float) -> Tensor:
    """Attend with PyTorch's own function, for layers without a bias."""
    assert bias is None
    return scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout_p, enable_gqa=True)


def filled(model: GPT, kind: type[KVCache], n: int) -> list[KVCache]:
    """Caches that have seen ``n`` positions, of which the last was added alone, as in decoding."""
    config = model.config
    caches = [kind() for _ in model.blocks]
    for cache in caches:
        for rows in (n - 1, 1):
            size = (1, config.key_value_heads, rows, config.head_width)
            cache.append(torch.randn(size), torch.randn(size))
    return caches


def appending(caches: list[KVCache]) -> Callable[[], None]:
    """The work of adding one position everywhere."""
    k, v = (torch.randn_like(tensor[..., :1, :]) for tensor in caches[0].append(*nothing(caches[0])))

    def work() -> None:
        for cache in caches:
            cache.append(k, v)

    return work


def nothing(cache: KVCache) -> tuple[Tensor, Tensor]:
    """Keys and values of no position, to look at what a cache keeps."""
    size = (1, SIZES["num_key_value_heads"], 0, SIZES["hidden_size"] // SIZES["num_attention_heads"])
    return torch.empty(size), torch.empty(size)


def stepping(model: GPT, caches: list[KVCache]) -> Callable[[], None]:
    """The work of one new token."""
    token = torch.zeros(1, 1, dtype=torch.long)

    def work() -> None:
        model(token, caches=caches)

    return work


def least(works: dict[str, Callable[[], None]], n_steps: int) -> dict[str, float]:
    """Milliseconds of processor time, the least of the steps."""
    found = dict.fromkeys(works, math.inf)
    for _ in range(n_steps):
        for name, work in works.items():
            start = time.process_time()
            work()
            found[name] = min(found[name], 1000 * (time.process_time() - start))
    return found


@torch.no_grad()
def per_token(model: GPT, n: int) -> dict[str, float]:
    """What one token costs behind ``n`` others."""
    return least(
        {
            "append": appending(filled(model, KVCache, n)),
            "append_by_cat": appending(filled(model, Concatenating, n)),
            "token": stepping(model, filled(model, KVCache, n)),
            "token_by_cat": stepping(model, filled(model, Concatenating, n)),
        },
        STEPS,
    )


@torch.no_grad()
def texts(theirs: LlamaForCausalLM) -> dict[str, float]:
    """Tokens per second of processor time while a text is written; all must write the same."""
    ours, through_torch = gpt_from_huggingface(theirs), gpt_from_huggingface(theirs, implementation=fused)
    tokens = torch.randint(SIZES["vocab_size"], (1, START), generator=torch.Generator().manual_seed(0))
    written = {}

    def writing(name: str, write: Callable[[], Tensor]) -> Callable[[], None]:
        def work() -> None:
            written[name] = write()

        return work

    everything = torch.ones_like(tokens)
    works = {
        "ours": writing("ours", lambda: generate(ours, tokens, NEW, temperature=0)),
        "ours, PyTorch's attention": writing("torch", lambda: generate(through_torch, tokens, NEW, temperature=0)),
        "transformers": writing(
            "theirs",
            lambda: theirs.generate(tokens, attention_mask=everything, max_new_tokens=NEW, do_sample=False),  # pyright: ignore
        ),
    }
    times = least(works, ROUNDS)
    assert torch.equal(written["ours"], written["theirs"])
    assert torch.equal(written["torch"], written["theirs"])
    return {name: round(1000 * NEW / milliseconds, 1) for name, milliseconds in times.items()}


def main() -> None:
    """Measure, print and write."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    theirs = LlamaForCausalLM(LlamaConfig(**SIZES, **special)).eval()
    model = gpt_from_huggingface(theirs)
    report = {
        "command": "OMP_NUM_THREADS=1 python benchmarks/generation_cpu.py",
        "date": datetime.date.today().isoformat(),
        "device": processor(),
        "versions": {
            "python": platform.python_version(),
            "torch": version("torch"),
            "transformers": version("transformers"),
        },
        "threads": 1,
        "sizes": SIZES,
        "milliseconds": {},
    }
    for n in LENGTHS:
        row = {name: round(value, 3) for name, value in per_token(model, n).items()}
        report["milliseconds"][str(n)] = row
        print(n, *(f"{name} {value:.3f}" for name, value in row.items()), sep="   ", flush=True)
    report["tokens_per_second"] = texts(theirs)
    print(report["tokens_per_second"])
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
