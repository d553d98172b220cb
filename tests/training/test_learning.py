"""Small models learn what the book states, with the mechanisms that it names; this takes a minute of training.

Each bound leaves a margin to the values of the seeds 0, 1, 2 and 3, given beside it. The tests run one seed.
"""

import pytest
import torch

from lessons_lib.analysis import patterns
from lessons_lib.analysis.diagnostics import entropy_collapse, head_entropies, observe
from lessons_lib.training import stories, tasks
from lessons_lib.training.loop import next_token_losses, train
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.stabilise import apply_qk_norm, apply_sigma_reparam

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
def run_observed(model, batch):
    with observe(model) as seen:
        logits = model(batch.inputs)
    return seen, logits


# --- induction ------------------------------------------------------------------------------------------------------


def attention_only(n_layers):
    config = GPTConfig(32, 48, 64, n_layers, 2, feedforward="none", position="rotary", bias=False, tied=False)
    how = {"batch_size": 32, "n": 48, "n_steps": 200, "lr": 3e-3, "n_warmup": 50, "final_share": 1.0}
    return learn(new_model(config), tasks.repetition, **how)


def accuracy_and_scores(model):
    """Return the accuracy on predictable tokens, and the best induction score of a head in each layer."""
    batch = tasks.repetition(torch.Generator().manual_seed(1000), batch_size=128)
    seen, logits = run_observed(model, batch)
    correct = (logits.argmax(-1) == batch.targets)[batch.loss_mask]
    scores = [
        patterns.induction_score(weights, batch.inputs[:, None]).nanmean(0).max() for weights in seen.weights.values()
    ]
    return correct.float().mean().item(), [score.item() for score in scores]


def test_two_attention_layers_learn_induction():
    accuracy, (first, second) = accuracy_and_scores(attention_only(2))
    assert accuracy > 0.9  # measured: 0.962 to 0.973
    assert second > 0.65  # 0.797 to 0.832
    assert first < 0.1  # 0.003 to 0.006


@pytest.mark.thorough
def test_one_attention_layer_does_not_learn_induction():
    accuracy, (only,) = accuracy_and_scores(attention_only(1))
    assert accuracy < 0.2  # measured: 0.108 to 0.127
    assert only < 0.1  # 0.027 to 0.032


# --- stories --------------------------------------------------------------------------------------------------------

N = 32


@pytest.fixture(scope="module")
def story_model():
    modern = {"feedforward": "swiglu", "norm": "rms", "position": "rotary", "bias": False, "tied": False}
    config = GPTConfig(len(stories.VOCABULARY), N, 48, 2, 4, **modern)
    how = {"batch_size": 32, "n": N, "n_steps": 250, "lr": 5e-3, "n_warmup": 30, "final_share": 0.0}
    return learn(new_model(config), stories.sample_stories, **how)


@pytest.fixture(scope="module")
def heldout_stories():
    return stories.sample_stories(torch.Generator().manual_seed(1000), batch_size=256, n=N)


@pytest.mark.thorough
def test_tiny_gpt_loss_approaches_entropy_of_grammar(story_model, heldout_stories):
    with torch.no_grad():
        excess = next_token_losses(story_model, heldout_stories) - heldout_stories.surprisals[heldout_stories.loss_mask]
    standard_error = excess.std() / len(excess) ** 0.5
    assert -3 * standard_error < excess.mean() < 0.1  # measured: 0.047 to 0.072, standard error 0.003
    entropy = stories.word_entropies(N).mean()
    assert (heldout_stories.surprisals.mean() - entropy).abs() < 0.03  # measured: 0.001


def test_bigram_entropy_is_far_above_entropy_of_grammar():
    """The smallest loss of a bigram model is the entropy of word pairs minus that of words."""
    batch = stories.sample_stories(torch.Generator().manual_seed(0), batch_size=2000, n=N)
    size = len(stories.VOCABULARY)
    pairs = (batch.inputs * size + batch.targets).flatten().bincount(minlength=size**2).double()
    joint = (pairs / pairs.sum()).view(size, size)
    conditional = torch.special.entr(joint).sum() - torch.special.entr(joint.sum(1)).sum()
    assert conditional > stories.word_entropies(N).mean() + 0.2


@pytest.mark.thorough
def test_one_head_attends_to_the_subject_before_the_verb(story_model, heldout_stories):
    """At the word before a verb, where its number must be predicted, if the subject is four or more words earlier."""
    seen, _ = run_observed(story_model, heldout_stories)
    row, verb = (heldout_stories.subjects >= 0).nonzero(as_tuple=True)
    subject = heldout_stories.subjects[row, verb]
    far = verb - subject >= 4
    row, before, subject = row[far], verb[far] - 1, subject[far]
    weights = torch.cat([heads[row, :, before, subject] for heads in seen.weights.values()], dim=-1)
    assert len(row) > 300
    assert weights.mean(0).max() > 0.6  # measured: 0.85 to 0.93
    assert (1 / (before + 1)).mean() < 0.1  # the weight of a head that attends uniformly


# --- entropy collapse -----------------------------------------------------------------------------------------------


def train_too_fast(stabilise):
    """Train at six times a good learning rate without warm-up; return head entropies before and after, and the loss."""
    model = new_model(GPTConfig(len(stories.VOCABULARY), N, 48, 2, 4, tied=False))
    stabilise(model)
    batch = stories.sample_stories(torch.Generator().manual_seed(1000), batch_size=64, n=N)
    before = head_entropies(run_observed(model, batch)[0])
    how = {"n_steps": 100, "lr": 0.03, "final_share": 0.0, "betas": (0.9, 0.999), "weight_decay": 0.0, "clip": None}
    learn(model, stories.sample_stories, batch_size=16, n=N, **how)
    after = head_entropies(run_observed(model, batch)[0])
    with torch.no_grad():
        return before, after, next_token_losses(model, batch).mean().item()


def mean(entropies):
    return torch.cat(list(entropies.values())).mean().item()


@pytest.fixture(scope="module")
def unstabilised():
    return train_too_fast(lambda model: None)


def test_high_learning_rate_causes_entropy_collapse(unstabilised):
    before, after, _ = unstabilised
    assert mean(before) > 0.95
    assert mean(after) < 0.35  # measured: 0.14 to 0.20
    assert len(entropy_collapse(after, before)) >= 6  # all 8


def test_sigma_reparam_prevents_entropy_collapse_and_lowers_loss(unstabilised):
    before, after, loss = train_too_fast(lambda model: apply_sigma_reparam(model.blocks))
    assert mean(after) > 0.6  # measured: 0.79 to 0.97
    assert len(entropy_collapse(after, before)) <= 4  # 0 to 2
    assert loss < unstabilised[2] - 0.1  # less by 0.19 to 0.30


def test_qk_norm_prevents_entropy_collapse(unstabilised):
    before, after, _ = train_too_fast(apply_qk_norm)
    assert mean(after) > 0.45  # measured: 0.61 to 0.70
    assert len(entropy_collapse(after, before)) <= 2  # none
