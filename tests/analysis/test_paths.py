"""Tests of path patching against models computed by hand, block by block, and of its laws."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from test_gpt import FLAVOURS, H, L, config_of, with_random_weights
from test_interventions import HEADS, N, model_of, output_projection_of, sequences
from thorough import all_but
from torch.testing import assert_close

from lessons_lib.analysis import paths
from lessons_lib.analysis.diagnostics import observe
from lessons_lib.analysis.interventions import attention_layers, head_outputs, patch_heads
from lessons_lib.analysis.paths import path_patch
from lessons_lib.attention.attention import attention
from lessons_lib.attention.rules import LeftPadding
from lessons_lib.transformer.gpt import GPT

INPUTS = ("queries", "keys", "values")
# One flavour for each kind of block, position and attention; the others differ in sizes and scalings alone.
KINDS = ["gpt2", "llama", "alibi", "qk norm", "experts", "parallel, partly rotated", "norms of outputs", "gemma"]
KINDS += ["window", "attention alone"]
each_flavour = pytest.mark.parametrize("flavour", all_but(FLAVOURS, lambda flavour: flavour in KINDS))
CASES = [([], INPUTS), ([(2, 1)], INPUTS), ([(1, 0), (1, 1), (2, 5)], INPUTS)]  # receivers, and what they read
CASES += [([(1, 0), (2, 5)], [name]) for name in INPUTS]
FIRST = ([(1, 0), (2, 5)], ["keys"])


# --- by hand --------------------------------------------------------------------------------------------------------


def in_residual_branch(branch, x, sublayer):
    """What a sublayer adds to the stream, with the norms of each kind of wrapper."""
    kind = type(branch).__name__
    inner = x if kind == "OutputNorm" else branch.norm(x)
    out = sublayer(inner)
    return {
        "PreNorm": lambda: out,
        "OutputNorm": lambda: branch.norm(out),
        "SandwichNorm": lambda: branch.output_norm(out),
    }[kind]()


def run_by_hand(model, tokens, choose):
    """Return the logits. ``choose(layer, q, k, v, attend)`` returns the head outputs over ``(b, h, n, d)``."""
    config, positions = model.config, torch.arange(tokens.shape[1])
    x = model.embedding(tokens) * model.embedding_scale
    x = x if model.positions is None else x + model.positions(positions)
    distance = positions[:, None] - positions
    for number, (block, window) in enumerate(zip(model.blocks, config.windows, strict=True)):
        layer = block.attention.sublayer
        mask = (distance >= 0) & (distance < (window or len(positions)))
        options = {"scale": config.scale, "softcap": config.softcap}
        options["bias"] = None if model.alibi is None else model.alibi(positions, positions, dtype=x.dtype)

        def mixed(inner, layer=layer, number=number, mask=mask, options=options):
            q, k, v = (
                torch.stack(w(inner).split(config.head_width, dim=-1), dim=1) for w in (layer.w_q, layer.w_k, layer.w_v)
            )
            if layer.process_qk is not None:
                q, k = layer.process_qk(q, k, positions)
            z = choose(number, q, k, v, lambda q, k, v: attention(q, k, v, mask, **options))
            return layer.w_o(torch.cat(z.unbind(1), dim=-1))

        attended = in_residual_branch(block.attention, x, mixed)
        feedforward = lambda y, block=block: (  # noqa: E731
            0 if config.feedforward == "none" else in_residual_branch(block.feedforward, y, block.feedforward.sublayer)
        )
        x = x + attended + feedforward(x if config.parallel else x + attended)
    logits = model.head(model.norm(x))
    return logits if config.logit_softcap is None else config.logit_softcap * torch.tanh(logits / config.logit_softcap)


def path_by_hand(model, tokens, other, sender, receivers, through):
    on_tokens, on_other, at_receivers = {}, {}, {}

    def record(into):
        def choose(layer, q, k, v, attend):
            into[layer] = (q, k, v, attend(q, k, v))
            return into[layer][3]

        return choose

    def second_pass(layer, *patched):
        *inputs, attend = patched
        read = [
            new if name in through else old for name, new, old in zip(INPUTS, inputs, on_tokens[layer], strict=False)
        ]
        at_receivers[layer] = attend(*read)
        z = on_tokens[layer][3].clone()
        for where, head in receivers:
            if where == layer:
                z[:, head] = at_receivers[layer][:, head]
        if sender[0] == layer:
            z[:, sender[1]] = on_other[layer][3][:, sender[1]]
        return z

    def third_pass(layer, q, k, v, attend):
        z = attend(q, k, v).clone()
        for where, head in receivers:
            if where == layer:
                z[:, head] = at_receivers[layer][:, head]
        return z

    run_by_hand(model, tokens, record(on_tokens))
    run_by_hand(model, other, record(on_other))
    logits = run_by_hand(model, tokens, second_pass)
    return run_by_hand(model, tokens, third_pass) if receivers else logits


@each_flavour
@torch.no_grad()
def test_model_by_hand_has_the_same_logits(flavour):
    model, tokens = model_of(flavour), sequences()
    assert_close(run_by_hand(model, tokens, lambda layer, q, k, v, attend: attend(q, k, v)), model(tokens))


@pytest.mark.parametrize(
    ("flavour", "receivers", "through"),
    all_but(
        [(flavour, *case) for flavour in KINDS for case in CASES],
        lambda flavour, *case: flavour == "llama" or case == FIRST,
    ),
    ids=str,
)
@torch.no_grad()
def test_path_patch_equals_the_model_by_hand(flavour, receivers, through):
    """Of heads that share keys and values, some are receivers and some are not."""
    model, tokens, other, sender = model_of(flavour, n_layers=3), sequences(), sequences(), (0, 2)
    expected = path_by_hand(model, tokens, other, sender, receivers, through)
    found = path_patch(model, tokens, other, sender, receivers, through=through)
    assert_close(found, expected)
    assert (found - model(tokens)).abs().max() > 1e-6


# --- paths ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_path_patch_without_receivers_is_the_direct_effect():
    """Without feed-forward layers the residual stream changes by the change of the sender's output only."""
    model, tokens, other, sender = model_of("attention alone"), sequences(), sequences(), (0, 2)
    stream = []
    hook = model.norm.register_forward_hook(lambda module, args, out: stream.append(args[0]))
    model(tokens)
    hook.remove()
    change = head_outputs(model, other)[sender] - head_outputs(model, tokens)[sender]
    expected = model.head(model.norm(stream[0] + change @ output_projection_of(model, sender).T))
    assert_close(path_patch(model, tokens, other, sender), expected)


@torch.no_grad()
def test_path_patch_to_all_later_heads_omits_only_the_direct_path():
    model, tokens, other, sender = model_of("llama"), sequences(), sequences(), (0, 2)
    z = head_outputs(model, other)[sender]
    with patch_heads(model, {sender: z}):
        full, outputs = model(tokens), head_outputs(model, tokens)
    with patch_heads(model, {sender: z} | {head: outputs[head] for head in HEADS if head[0] == 1}):
        assert_close(model(tokens), full)
    by_receivers = path_patch(model, tokens, other, sender, [head for head in HEADS if head[0] == 1])
    with patch_heads(model, {head: outputs[head] for head in HEADS if head[0] == 1}):
        assert_close(by_receivers, model(tokens))
    assert (by_receivers - full).abs().max() > 1e-3, "the direct path is not included"


@torch.no_grad()
def test_path_patch_receiver_reads_only_the_patched_sender():
    """In a model of three layers, heads of the layer between read the sender too and must stay frozen."""
    model = with_random_weights(GPT(config_of("llama", n_layers=3)))
    tokens, other, sender, receiver = sequences(), sequences(), (0, 2), (2, 1)
    frozen = head_outputs(model, tokens)
    with patch_heads(
        model, {head: z for head, z in frozen.items() if head[0] < 2} | {sender: head_outputs(model, other)[sender]}
    ):
        outputs = head_outputs(model, tokens)[receiver]
    with patch_heads(model, {receiver: outputs}):
        expected = model(tokens)
    assert_close(path_patch(model, tokens, other, sender, [receiver]), expected)
    with patch_heads(model, {sender: head_outputs(model, other)[sender]}):
        through_others = head_outputs(model, tokens)[receiver]
    assert (through_others - outputs).abs().max() > 1e-4, "the layer between would pass on the change"


# --- laws -----------------------------------------------------------------------------------------------------------


@each_flavour
@torch.no_grad()
@pytest.mark.parametrize("receivers", all_but([[], [(1, 0), (1, 4)]], bool), ids=str)
def test_path_patch_with_the_same_sequences_changes_nothing(flavour, receivers):
    model, tokens = model_of(flavour), sequences()
    assert_close(path_patch(model, tokens, tokens, (0, 1), receivers), model(tokens))


@torch.no_grad()
def test_direct_effects_on_a_linear_readout_add_up_to_the_effect_of_all_heads():
    """Without feed-forward layers and last norm the logits are linear in the head outputs."""
    model, tokens, other = model_of("attention alone", n_layers=3), sequences(), sequences()
    model.norm = torch.nn.Identity()
    with patch_heads(model, head_outputs(model, other)):
        all_heads = model(tokens)
    before = model(tokens)
    heads = [(layer, head) for layer in range(3) for head in range(H)]
    direct = sum(path_patch(model, tokens, other, head) - before for head in heads)
    assert_close(direct, all_heads - before)
    assert direct.abs().max() > 1e-2


@torch.no_grad()
def test_path_patch_through_values_is_linear_in_the_sender():
    """The receiver keeps its attention weights, so its output changes by the weighted average of the new values."""
    model, tokens, other, head = model_of("attention alone"), sequences(), sequences(), (1, 3)
    model.blocks[1].attention.norm, model.norm = torch.nn.Identity(), torch.nn.Identity()
    with observe(model) as seen:
        before = model(tokens)
    weights = seen.weights["blocks.1.attention.sublayer"][:, head[1]]
    own = slice(head[1] * model.config.head_width, (head[1] + 1) * model.config.head_width)
    w_v = model.blocks[1].attention.sublayer.w_v.weight[own]
    old, new = head_outputs(model, tokens), head_outputs(model, other)
    for sender in [(0, 0), (0, 2)]:
        written = (new[sender] - old[sender]) @ output_projection_of(model, sender).T
        expected = model.head(weights @ written @ w_v.T @ output_projection_of(model, head).T)
        assert_close(path_patch(model, tokens, other, sender, [head], through=["values"]) - before, expected)


@each_flavour
@torch.no_grad()
def test_path_patch_of_a_left_padded_batch_equals_each_sequence_alone(flavour):
    model, tokens, other, receivers = model_of(flavour), sequences(), sequences(), [(1, 0), (1, 4)]
    n_padding = torch.tensor([0, 3, 1, 5])
    positions = (torch.arange(N) - n_padding[:, None]).clamp_min(0)
    found = path_patch(
        model, tokens, other, (0, 2), receivers, through=["keys"], mask=LeftPadding(n_padding), positions=positions
    )
    for row, start in enumerate(n_padding):
        alone = (sequences_of[row : row + 1, start:] for sequences_of in (tokens, other))
        assert_close(found[row, start:], path_patch(model, *alone, (0, 2), receivers, through=["keys"])[0])


@pytest.mark.parametrize("training", [True, False])
def test_path_patch_restores_mode_hooks_and_implementations(training):
    model = GPT(config_of("gpt2", dropout=0.5)).train(training)
    tokens, before = sequences(), [layer.implementation for layer in attention_layers(model)]
    found = [path_patch(model, tokens, tokens.flip(0), (0, 1), [(1, 0)], through=["keys"]) for _ in range(2)]
    assert_close(*found)  # no dropout
    assert model.training is training
    assert [layer.implementation for layer in attention_layers(model)] == before
    assert not any(layer.w_o._forward_pre_hooks for layer in attention_layers(model))


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda m, t: path_patch(m, t, t, (L, 0)), r"heads must be \(layer, head\), both from 0, .* got \(2, 0\)"),
        (lambda m, t: path_patch(m, t, t[:, 1:], (0, 0)), r"other must have the shape of tokens, \(4, 7\), got"),
        (lambda m, t: path_patch(m, t, t, (1, 0), [(1, 1)]), r"receivers must be in later layers than the sender"),
        (lambda m, t: path_patch(m, t, t, (1, 0), [(0, 1)]), r"receivers must be in later layers .* got \(0, 1\)"),
        (lambda m, t: path_patch(m, t, t, (0, 0), [(1, 1)], through=[]), r"through must be one or more of .* got \[\]"),
        (lambda m, t: path_patch(m, t, t, (0, 0), [(1, 1)], through="keys"), r"through must be .* got 'keys'"),
        (lambda m, t: path_patch(m, t, t, (0, 0), [(1, 1)], through=["k"]), r"through must be .* got \['k'\]"),
        (lambda m, t: path_patch(m, t, t, (0, 0), through=["keys"]), r"through says .* needs receivers"),
    ],
)
def test_invalid_arguments_raise(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt(model_of("gpt2"), sequences())


# --- wrong implementations ------------------------------------------------------------------------------------------


def without_frozen_heads(monkeypatch):
    """If the other heads are not frozen, the receiver also reads the sender through them."""
    real = paths.patch_heads
    monkeypatch.setattr(paths, "patch_heads", lambda model, by: real(model, {(0, 2): by[0, 2]} if (0, 2) in by else by))


def with_all_inputs(monkeypatch):
    """``through`` is ignored."""
    monkeypatch.setattr(paths, "_replace_inputs", lambda model, by: nullcontext())


def with_shared_keys(monkeypatch):
    """The queries, keys and values of step 1 are those of the patched model."""
    monkeypatch.setattr(
        paths, "head_outputs", lambda model, tokens, **where: head_outputs(model, tokens.flip(0), **where)
    )


def without_step_3(monkeypatch):
    """The direct path from the sender to the logits is included."""
    real = paths.patch_heads

    @contextmanager
    def also_the_sender(model, by):
        sender = model.__dict__.setdefault("kept_sender", {})
        sender.update({head: z for head, z in by.items() if head == (0, 2)})
        with real(model, by | sender):
            yield

    monkeypatch.setattr(paths, "patch_heads", also_the_sender)


@pytest.mark.parametrize("wrong", [without_frozen_heads, with_all_inputs, with_shared_keys, without_step_3])
def test_model_by_hand_catches_wrong_implementations(wrong, monkeypatch):
    wrong(monkeypatch)
    with pytest.raises(AssertionError):
        test_path_patch_equals_the_model_by_hand("llama", *FIRST)
