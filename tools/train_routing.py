"""Train mixtures of experts on stories, balanced in four ways, and write their router scores as a script.

Eight models of two layers, each trained with three seeds, are 24 runs and take three minutes on an idle core. The same
seeds on the same machine give the same numbers. For the models with the first seed, the file has the 8-bit score of
each expert for each word of a few new stories. For all models, it has the number of words per expert on held-out
stories.
"""

import argparse
import gzip
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pin_library import library_commit
from torch import Tensor, nn

from lessons_lib.foundations.norms import LayerNorm
from lessons_lib.page.widgets.routing import BALANCES, EXPERTS, LENGTH, SCRIPT, TEXTS
from lessons_lib.page.widgets.trained import to_base64
from lessons_lib.training.loop import evaluate, next_token_losses, train
from lessons_lib.training.stories import VOCABULARY, StoryBatch, sample_stories
from lessons_lib.training.tasks import stream
from lessons_lib.transformer.blocks import PreNorm
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.feedforward import FeedForward, MixtureOfExperts, Router, Routing, gelu
from lessons_lib.transformer.gpt import GPT

TARGET = Path(__file__).resolve().parents[1] / "lessons_lib" / "page" / "widgets" / "static" / SCRIPT
HEAD = "/** What routers say of some stories, in eight bits. Written by tools/train_routing.py. */\n"
CONFIG = GPTConfig(len(VOCABULARY), 48, 64, 2, 4, position="rotary")
HIDDEN = 128  # total hidden width of the experts that compute one token
BATCH_SIZE = 16
SETTINGS: dict[str, Any] = {"lr": 5e-3, "n_warmup": 20, "final_share": 0.05}
WEIGHTS = dict(zip(BALANCES, (0.0, 0.01, 0.1, 0.0), strict=True))  # weight of the balance loss, by kind of balancing
RATE = 0.01  # learning rate of the bias
HELD_OUT_SEED, SHOWN_SEED = 10_000, 10_001


def main() -> None:
    """Train and evaluate the models, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="the scores are those of the first")
    parser.add_argument("--out", type=Path, default=TARGET)
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = script(given.seeds, given.steps)
    given.out.write_text(text, encoding="utf-8")
    print(f"{given.out.name}: {len(text)} bytes, {len(gzip.compress(text.encode()))} of them compressed")


def trained(balanced: str, top_k: int, seed: int, n_steps: int) -> GPT:
    """Return the trained model, whose feed-forward layers are mixtures of experts without a capacity limit."""
    torch.manual_seed(seed)
    model = GPT(CONFIG)
    for block in model.blocks:
        block.feedforward = PreNorm(mixture(top_k, biased=balanced == "bias"), LayerNorm(CONFIG.d_model))
    batches = stream(sample_stories, torch.Generator().manual_seed(seed), batch_size=BATCH_SIZE, n=CONFIG.n_context)
    settings = SETTINGS | {"n_warmup": min(SETTINGS["n_warmup"], n_steps)}
    with recorded_routings(model) as routings:

        def losses(model: nn.Module, batch: StoryBatch) -> Tensor:
            predicted = next_token_losses(model, batch)
            return predicted + WEIGHTS[balanced] * sum(routing.balance_loss for routing in routings.values())

        for _ in train(model, batches, n_steps=n_steps, losses=losses, progress=False, **settings):
            for router, routing in routings.items():
                if router.bias is not None:
                    router.rebalance(tokens_per_expert(routing), rate=RATE)
    return model.eval()


def mixture(top_k: int, *, biased: bool) -> MixtureOfExperts:
    """Return eight experts, initialised as in GPT-2, with the same cost per token for every ``top_k``."""
    experts = MixtureOfExperts(
        CONFIG.d_model,
        HIDDEN // top_k,
        EXPERTS,
        top_k,
        renormalise=top_k > 1,
        biased=biased,
        expert=lambda d_model, d_ff: FeedForward(d_model, d_ff, activation=gelu),
    )
    for name, parameter in experts.experts.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=0.01 if "w_down" in name else 0.02)
    return experts


@contextmanager
def recorded_routings(model: GPT) -> Iterator[dict[Router, Routing]]:
    """A context manager that records each router's last decision, in the order of the layers."""
    routers = [module for module in model.modules() if isinstance(module, Router)]
    routings: dict[Router, Routing] = {}

    def keep(router: Any, _: Any, routing: Routing) -> None:
        routings[router] = routing

    hooks = [router.register_forward_hook(keep) for router in routers]
    yield routings
    for hook in hooks:
        hook.remove()


def tokens_per_expert(routing: Routing) -> Tensor:
    """Return how often each expert was chosen."""
    return routing.experts.flatten().bincount(minlength=EXPERTS)


def held_out() -> StoryBatch:
    """Return held-out stories from another seed than the training data."""
    return sample_stories(torch.Generator().manual_seed(HELD_OUT_SEED), batch_size=256, n=CONFIG.n_context)


def shown() -> Tensor:
    """Return the beginnings of the stories that the explorer shows."""
    return sample_stories(torch.Generator().manual_seed(SHOWN_SEED), batch_size=TEXTS, n=LENGTH).inputs


def script(seeds: list[int], n_steps: int) -> str:
    """Return the file's text: the record of training and evaluation, and the routers' scores."""
    routers, changes = {}, []
    for top_k in (1, 2):
        for balanced in BALANCES:
            models = [trained(balanced, top_k, seed, n_steps) for seed in seeds]
            routers[f"{balanced} {top_k}"], rounded = described(models)
            changes += rounded
    record = {
        "command": f"python tools/train_routing.py --seeds {' '.join(map(str, seeds))} --steps {n_steps}",
        "seeds": seeds,
        "steps": n_steps,
        "batch_size": BATCH_SIZE,
        **SETTINGS,
        "rate": RATE,
        "held_out": {"seed": HELD_OUT_SEED, "words": held_out().inputs.numel()},
        "floor": round(held_out().surprisals.mean().item(), 6),
        "rounding": {"probability": max(p for p, _ in changes), "choices": sum(n for _, n in changes)},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "commit": library_commit(),
    }
    texts = [" ".join(VOCABULARY[word] for word in row) for row in shown().tolist()]
    lines = json.dumps({"record": record, "texts": texts, "routers": routers}).replace("}, ", "},\n")
    return f"{HEAD}export const MODEL = {lines};\n"


def described(models: list[GPT]) -> tuple[dict[str, Any], list[tuple[float, int]]]:
    """Return the file's data of a model trained with several seeds, and the effect of rounding in each layer.

    The data has the scores and biases of the first seed. For each seed it has the number of tokens per expert and the
    excess of the loss over the grammar's entropy, on held-out stories.
    """
    batch, losses, counts = held_out(), [], []
    for model in models:
        with recorded_routings(model) as routings:
            losses.append(round(evaluate(model, [batch]) - batch.surprisals.mean().item(), 4))
            counts.append([tokens_per_expert(routing).tolist() for routing in routings.values()])
    layers, changes = [], []
    with recorded_routings(models[0]) as routings, torch.no_grad():
        models[0](shown())
        for layer, (router, routing) in enumerate(routings.items()):
            bias = torch.zeros(EXPERTS) if router.bias is None else router.bias
            step, numbers = rounded(routing.probabilities.double().log())
            near = router((step * numbers).double())
            changes.append(
                (
                    float(f"{(near.probabilities - routing.probabilities).abs().max().item():.2g}"),
                    int((near.experts != routing.experts).sum()),
                )
            )
            layers.append(
                {
                    "step": step,
                    "scores": to_base64(numbers.to(torch.int8)),
                    "bias": [round(one, 4) for one in bias.tolist()],
                    "asked": [of[layer] for of in counts],
                }
            )
    return {"above": losses, "layers": layers}, changes


def rounded(scores: Tensor) -> tuple[float, Tensor]:
    """Return the step size, and the scores as integers from -127 to 127, all different for each token.

    The middle between a token's least and largest score is subtracted, which does not change the softmax. If two scores
    would be rounded to the same integer, the larger one is raised.
    """
    middle = (scores.amax(-1, keepdim=True) + scores.amin(-1, keepdim=True)) / 2
    scores = scores - middle
    step = float(f"{scores.abs().max().item() / 120:.6g}")
    numbers = (scores / step).round()
    order = scores.argsort(-1)
    ordered = numbers.gather(-1, order)
    for i in range(1, EXPERTS):
        ordered[..., i] = torch.maximum(ordered[..., i], ordered[..., i - 1] + 1)
    assert ordered.abs().max() <= 127
    return step, numbers.scatter(-1, order, ordered)


if __name__ == "__main__":
    main()
