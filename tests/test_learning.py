"""Small models learn what they are said to learn, by the means that they are said to use: a minute of training.

Each bound leaves a margin to what the seeds 0, 1, 2 and 3 gave, which stands beside it. One seed is run.
"""

import pytest
import torch

from lessons_lib import patterns, stories, tasks
from lessons_lib.diagnostics import entropy_collapse, head_entropies, observe
from lessons_lib.gpt import GPT, GPTConfig
from lessons_lib.stabilise import apply_qk_norm, apply_sigma_reparam
from lessons_lib.training import next_token_losses, train

SEED = 0


def new_model(config):
    torch.manual_seed(SEED)
    return GPT(config).float()


def learn(model, task, *, batch_size, n, **how):
    batches = tasks.stream(task, torch.Generator().manual_seed(SEED), batch_size=batch_size, n=n)
    for _ in train(model, batches, progress=False, **how):
        pass
    return model.eval()


@torch.no_grad()
def look(model, batch):
    with observe(model) as seen:
        logits = model(batch.inputs)
    return seen, logits


# --- induction ------------------------------------------------------------------------------------------------------


def attention_only(n_layers):
    config = GPTConfig(32, 48, 64, n_layers, 2, feedforward="none", position="rotary", bias=False, tied=False)
    how = {"batch_size": 32, "n": 48, "n_steps": 200, "lr": 3e-3, "n_warmup": 50, "final_share": 1.0}
    return learn(new_model(config), tasks.repetition, **how)


def accuracy_and_scores(model):
    """Of the predictable tokens, how many are right; in each layer, the score of the best induction head."""
    batch = tasks.repetition(torch.Generator().manual_seed(1000), batch_size=128)
    seen, logits = look(model, batch)
    correct = (logits.argmax(-1) == batch.targets)[batch.loss_mask]
    scores = [patterns.induction(weights, batch.inputs[:, None]).nanmean(0).max() for weights in seen.weights.values()]
    return correct.float().mean().item(), [score.item() for score in scores]


def test_two_layers_of_attention_find_induction():
    accuracy, (first, second) = accuracy_and_scores(attention_only(2))
    assert accuracy > 0.9  # measured: 0.962 to 0.973
    assert second > 0.65  # 0.797 to 0.832
    assert first < 0.1  # 0.003 to 0.006


def test_one_layer_cannot():
    accuracy, (only,) = accuracy_and_scores(attention_only(1))
    assert accuracy < 0.2  # measured: 0.108 to 0.127
    assert only < 0.1  # 0.027 to 0.032


# --- stories --------------------------------------------------------------------------------------------------------

N = 32


@pytest.fixture(scope="module")
def storyteller():
    modern = {"feedforward": "swiglu", "norm": "rms", "position": "rotary", "bias": False, "tied": False}
    config = GPTConfig(len(stories.VOCABULARY), N, 48, 2, 4, **modern)
    how = {"batch_size": 32, "n": N, "n_steps": 250, "lr": 5e-3, "n_warmup": 30, "final_share": 0.0}
    return learn(new_model(config), stories.tell, **how)


@pytest.fixture(scope="module")
def unheard():
    return stories.tell(torch.Generator().manual_seed(1000), batch_size=256, n=N)


def test_a_tiny_gpt_comes_close_to_the_entropy_of_the_grammar(storyteller, unheard):
    with torch.no_grad():
        excess = next_token_losses(storyteller, unheard) - unheard.surprisals[unheard.loss_mask]
    standard_error = excess.std() / len(excess) ** 0.5
    assert -3 * standard_error < excess.mean() < 0.1  # measured: 0.047 to 0.072, standard error 0.003
    entropy = stories.word_entropies(N).mean()
    assert (unheard.surprisals.mean() - entropy).abs() < 0.03  # a fair sample: 0.001


def test_the_previous_word_alone_would_not_come_as_close():
    """The best that any model of pairs of words can do, which is the entropy of pairs less that of words."""
    batch = stories.tell(torch.Generator().manual_seed(0), batch_size=2000, n=N)
    size = len(stories.VOCABULARY)
    pairs = (batch.inputs * size + batch.targets).flatten().bincount(minlength=size**2).double()
    joint = (pairs / pairs.sum()).view(size, size)
    conditional = torch.special.entr(joint).sum() - torch.special.entr(joint.sum(1)).sum()
    assert conditional > stories.word_entropies(N).mean() + 0.2


def test_a_head_looks_at_the_subject_when_the_verb_is_due(storyteller, unheard):
    """At the word before a verb, four or more words after its subject: where its number has to be known."""
    seen, _ = look(storyteller, unheard)
    row, verb = (unheard.subjects >= 0).nonzero(as_tuple=True)
    subject = unheard.subjects[row, verb]
    far = verb - subject >= 4
    row, before, subject = row[far], verb[far] - 1, subject[far]
    weights = torch.cat([heads[row, :, before, subject] for heads in seen.weights.values()], dim=-1)
    assert len(row) > 300
    assert weights.mean(0).max() > 0.6  # measured: 0.85 to 0.93
    assert (1 / (before + 1)).mean() < 0.1  # what a head without preference would give


# --- entropy collapse -----------------------------------------------------------------------------------------------


def rushed(treat):
    """Trained at six times a good rate, without warm-up: head entropies before and after, and the loss."""
    model = new_model(GPTConfig(len(stories.VOCABULARY), N, 48, 2, 4, tied=False))
    treat(model)
    batch = stories.tell(torch.Generator().manual_seed(1000), batch_size=64, n=N)
    before = head_entropies(look(model, batch)[0])
    how = {"n_steps": 100, "lr": 0.03, "final_share": 0.0, "betas": (0.9, 0.999), "weight_decay": 0.0, "clip": None}
    learn(model, stories.tell, batch_size=16, n=N, **how)
    after = head_entropies(look(model, batch)[0])
    with torch.no_grad():
        return before, after, next_token_losses(model, batch).mean().item()


def mean(entropies):
    return torch.cat(list(entropies.values())).mean().item()


@pytest.fixture(scope="module")
def plain():
    return rushed(lambda model: None)


def test_a_rush_makes_attention_collapse(plain):
    before, after, _ = plain
    assert mean(before) > 0.95
    assert mean(after) < 0.35  # measured: 0.14 to 0.20
    assert len(entropy_collapse(after, before)) >= 6  # all 8


def test_sigma_reparam_holds_it_and_learns_more(plain):
    before, after, loss = rushed(lambda model: apply_sigma_reparam(model.blocks))
    assert mean(after) > 0.6  # measured: 0.79 to 0.97
    assert len(entropy_collapse(after, before)) <= 4  # 0 to 2
    assert loss < plain[2] - 0.1  # less by 0.19 to 0.30


def test_qk_norm_holds_it(plain):
    before, after, _ = rushed(apply_qk_norm)
    assert mean(after) > 0.45  # measured: 0.61 to 0.70
    assert len(entropy_collapse(after, before)) <= 2  # none
