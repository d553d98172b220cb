"""Tests of patches against ``unfold``, and of the Vision Transformer against a reference written by hand."""

from dataclasses import replace

import pytest
import torch
from einops import rearrange
from test_encoder_decoder import with_random_weights
from torch import nn
from torch.testing import assert_close

from lessons_lib.analysis.diagnostics import observe
from lessons_lib.applications.vision import VisionConfig, VisionTransformer, patchify, unpatchify
from lessons_lib.attention.rules import Causal
from lessons_lib.training.loop import train

B, HEIGHT, WIDTH, SIZE, C, D, L, H, FF = 7, 6, 15, 3, 5, 12, 2, 4, 19  # 2 by 5 patches of 9 pixels
COUNT = (HEIGHT // SIZE) * (WIDTH // SIZE)


def config_of(**changes) -> VisionConfig:
    sizes = {"d_model": D, "n_layers": L, "n_heads": H, "d_ff": FF} | changes
    return VisionConfig(sizes.pop("image_size", (HEIGHT, WIDTH)), sizes.pop("patch_size", SIZE), C, **sizes)


def images() -> torch.Tensor:
    return torch.randn(B, HEIGHT, WIDTH)


# --- patches --------------------------------------------------------------------------------------------------------


def assert_equals_unfold(cut):
    x = torch.randn(2, B, HEIGHT, WIDTH)
    unfolded = nn.functional.unfold(x.view(2 * B, 1, HEIGHT, WIDTH), SIZE, stride=SIZE)
    assert torch.equal(cut(x, SIZE), rearrange(unfolded, "(a b) pixels count -> a b count pixels", a=2))


def test_patchify_equals_unfold():
    assert_equals_unfold(patchify)


WRONG_PATCHES = {
    "a view of rows": lambda x, s: x.reshape(*x.shape[:-2], -1, s * s),
    "columns before rows": lambda x, s: rearrange(x, "... (r u) (c v) -> ... (c r) (u v)", u=s, v=s),
    "each patch transposed": lambda x, s: rearrange(x, "... (r u) (c v) -> ... (r c) (v u)", u=s, v=s),
    "every third pixel": lambda x, s: rearrange(x, "... (u r) (v c) -> ... (r c) (u v)", u=s, v=s),
}


@pytest.mark.parametrize("wrong", WRONG_PATCHES)
def test_comparison_with_unfold_catches_wrong_patches(wrong):
    with pytest.raises(AssertionError):
        assert_equals_unfold(WRONG_PATCHES[wrong])


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_unpatchify_inverts_patchify(size, dtype):
    x = torch.randint(255, (2, B, HEIGHT, WIDTH)).to(dtype)
    assert torch.equal(unpatchify(patchify(x, size), (HEIGHT, WIDTH)), x)


def test_patchify_whole_image_as_one_patch():
    x = torch.randn(4, 4)
    assert torch.equal(patchify(x, 4), x.view(1, 16))


# --- the model ------------------------------------------------------------------------------------------------------


def reference_logits(model: VisionTransformer, x: torch.Tensor) -> torch.Tensor:
    """The same model without the layers of the library, computed image by image and head by head."""
    p = dict(model.named_parameters())
    d_head = D // H

    def norm(z, name):
        z = z - z.mean(-1, keepdim=True)
        return z / (z.square().mean(-1, keepdim=True) + 1e-5).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]

    logits = []
    for image in x:
        cuts = [
            image[r : r + SIZE, c : c + SIZE].flatten() for r in range(0, HEIGHT, SIZE) for c in range(0, WIDTH, SIZE)
        ]
        rows = [p["embedding.weight"] @ cut + p["embedding.bias"] for cut in cuts]
        z = torch.stack([p["summary"][0], *rows] if model.config.summary else rows) + p["positions.weight"]
        for layer in range(L):
            name = f"encoder.blocks.{layer}"
            seen, matrices = norm(z, f"{name}.attention.norm"), f"{name}.attention.sublayer"
            for head in range(H):
                own = slice(head * d_head, (head + 1) * d_head)
                q, k, v = (seen @ p[f"{matrices}.w_{kind}.weight"][own].T for kind in "qkv")
                z = z + (q @ k.T / d_head**0.5).softmax(-1) @ v @ p[f"{matrices}.w_o.weight"][:, own].T
            seen, wide = norm(z, f"{name}.feedforward.norm"), f"{name}.feedforward.sublayer"
            hidden = seen @ p[f"{wide}.w_up.weight"].T + p[f"{wide}.w_up.bias"]
            hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
            z = z + hidden @ p[f"{wide}.w_down.weight"].T + p[f"{wide}.w_down.bias"]
        z = norm(z, "encoder.norm")
        logits.append(p["head.weight"] @ (z[0] if model.config.summary else z.mean(0)) + p["head.bias"])
    return torch.stack(logits)


def assert_equals_reference(model, reference=None):
    x = images()
    # Measured in float64 over 40 seeds: a difference of at most 4.3e-15 for logits of at most 7.1.
    assert_close(model(x), reference_logits(reference or model, x), rtol=0, atol=1e-13)


@pytest.mark.parametrize("summary", [True, False])
def test_vision_transformer_equals_the_reference(summary):
    assert_equals_reference(with_random_weights(VisionTransformer(config_of(summary=summary))))


def reads_the_last_token(model):
    model.features = lambda images, *, mask: model.encoder(model._embed(images), mask)[:, -1]


def omits_positions(model):
    model.positions.forward = lambda places: torch.zeros(len(places), D)


def attends_causally(model):
    encode = model.encoder.forward
    model.encoder.forward = lambda x, mask: encode(x, Causal())


def omits_the_last_norm(model):
    model.encoder.norm = nn.Identity()


def puts_the_summary_last(model):
    embed = model._embed
    model._embed = lambda images: embed(images).roll(-1, dims=1)


@pytest.mark.parametrize(
    "wrong", [reads_the_last_token, omits_positions, attends_causally, omits_the_last_norm, puts_the_summary_last]
)
def test_comparison_with_the_reference_catches_wrong_models(wrong):
    model, reference = (with_random_weights(VisionTransformer(config_of())) for _ in range(2))
    model.load_state_dict(reference.state_dict())
    assert_equals_reference(model, reference)
    wrong(model)
    with pytest.raises(AssertionError):
        assert_equals_reference(model, reference)


def with_permuted_patches(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return unpatchify(patchify(x, SIZE)[..., order, :], (HEIGHT, WIDTH))


def test_permuting_patches_and_positions_does_not_change_the_logits():
    """The model has no built-in notion of neighbouring patches."""
    model, x, order = with_random_weights(VisionTransformer(config_of())), images(), torch.randperm(COUNT)
    before = model(x)
    assert (model(with_permuted_patches(x, order)) - before).abs().max() > 0.1
    with torch.no_grad():
        model.positions.weight[1:] = model.positions.weight[1:][order]
    assert_close(model(with_permuted_patches(x, order)), before)


def test_without_positions_the_mean_is_permutation_invariant():
    model, x = with_random_weights(VisionTransformer(config_of(summary=False))), images()
    nn.init.zeros_(model.positions.weight)
    assert_close(model(with_permuted_patches(x, torch.randperm(COUNT))), model(x))


def test_forward_is_the_head_of_the_features():
    model, x = with_random_weights(VisionTransformer(config_of())), images()
    assert_close(model.head(model.features(x)), model(x), rtol=0, atol=0)


def test_mask_hides_patches_from_all_tokens():
    model, x = with_random_weights(VisionTransformer(config_of())), images()
    visible = torch.ones(1 + COUNT, dtype=torch.bool)
    visible[4] = False  # patch 3, because token 0 is the summary token
    other = patchify(x, SIZE).clone()
    other[:, 3] = torch.randn(B, SIZE**2)
    changed = unpatchify(other, (HEIGHT, WIDTH))
    assert_close(model(changed, mask=visible[None]), model(x, mask=visible[None]))
    assert (model(changed) - model(x)).abs().max() > 0.1


def test_observe_records_the_attention_weights():
    model = with_random_weights(VisionTransformer(config_of()))
    with observe(model) as seen:
        model(images())
    assert list(seen.weights) == [f"encoder.blocks.{layer}.attention.sublayer" for layer in range(L)]
    for weights in seen.weights.values():
        assert weights.shape == (B, H, 1 + COUNT, 1 + COUNT)
        assert_close(weights.sum(-1), torch.ones(B, H, 1 + COUNT))


@pytest.mark.parametrize("changes", [{}, {"summary": False}, {"d_ff": None}, {"n_layers": 3, "patch_size": 1}])
def test_n_parameters_equals_the_number_of_parameters(changes):
    config = config_of(**changes)
    assert sum(p.numel() for p in VisionTransformer(config).parameters()) == config.n_parameters()


def test_dropout_in_training_only():
    model, x = VisionTransformer(config_of(dropout=0.5)), images()
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert_close(model(x), model(x), rtol=0, atol=0)


def test_initial_std_of_summary_and_positions_and_all_parameters_have_gradients():
    model = VisionTransformer(config_of(d_model=300, n_heads=3))
    for parameter in (model.summary, model.positions.weight):
        assert 0.015 < parameter.std() < 0.025
    model(images()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 1e-9, name


def test_initialisation_depends_on_the_seed_only():
    def made():
        torch.manual_seed(3)
        return VisionTransformer(config_of()).state_dict()

    assert_close(made(), made(), rtol=0, atol=0)


def test_vision_transformer_learns_with_the_training_loop():
    model, x = VisionTransformer(config_of(dropout=0.1)), images()
    y = torch.arange(B) % C

    def losses(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    records = list(train(model, iter([(x, y)] * 60), n_steps=60, lr=0.01, losses=losses, progress=False))
    assert records[-1].loss < 0.3 < 1.2 < records[0].loss


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: patchify(torch.ones(6, 15), 0), r"size must be at least 1, got 0"),
        (lambda: patchify(torch.ones(6, 15), 2), r"both multiples of size=2, got \(6, 15\)"),
        (lambda: patchify(torch.ones(6), 2), r"images must be over \(\*batch, height, width\), .* got \(6,\)"),
        (lambda: unpatchify(torch.ones(10, 8), (6, 15)), r"patches must be .* 6 by 15, got \(10, 8\)"),
        (lambda: unpatchify(torch.ones(9, 9), (6, 15)), r"patches must be .* got \(9, 9\)"),
        (lambda: unpatchify(torch.ones(10, 9), (9, 10)), r"patches must be .* 9 by 10, got \(10, 9\)"),
        (lambda: unpatchify(torch.ones(9), (3, 3)), r"patches must be .* got \(9,\)"),
        (lambda: unpatchify(torch.ones(10, 9), 15), r"image_size must be height and width, got 15"),
    ],
)
def test_patchify_and_unpatchify_invalid_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": (6, 0)}, r"image_size must be at least 1, got 0"),
        ({"image_size": [6, 15]}, r"image_size must be height and width, got \[6, 15\]"),
        ({"patch_size": 5}, r"patch_size must divide height and width, got patch_size=5, image_size=\(6, 15\)"),
        ({"n_heads": 5}, r"d_model must be a multiple of n_heads, got d_model=12, n_heads=5"),
        ({"n_layers": 1.5}, r"n_layers must be an integer, got 1.5"),
        ({"d_ff": 0}, r"d_ff must be at least 1"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_vision_config_invalid_arguments_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        config_of(**changes)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.ones(B, HEIGHT, WIDTH, dtype=torch.uint8), r"images must hold floating-point numbers, got torch.uint8"),
        (torch.ones(HEIGHT, WIDTH), r"images must be over \(b, height, width\) = \(b, 6, 15\), got \(6, 15\)"),
        (torch.ones(B, WIDTH, HEIGHT), r"= \(b, 6, 15\), got \(7, 15, 6\)"),
    ],
)
def test_forward_invalid_images_raise(given, message):
    with pytest.raises(ValueError, match=message):
        VisionTransformer(config_of())(given)


def test_vision_config_replace():
    assert replace(config_of(), patch_size=1).n_patches == HEIGHT * WIDTH
