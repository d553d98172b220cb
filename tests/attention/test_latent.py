"""Tests of latent attention: parity with DeepSeek's, both ways to compute the output, the size of the cache, errors."""

from copy import copy

import pytest
import torch
from torch.testing import assert_close

from lessons_lib.attention.attention import attention
from lessons_lib.attention.latent import LatentAttention, LatentCache
from lessons_lib.attention.positions import RotaryEmbedding
from lessons_lib.attention.rope_scaling import YaRN, yarn_attention_factor
from lessons_lib.attention.rules import Causal, Window

B, N, D, H, LATENT, HEAD, ROTARY, VALUE = 2, 7, 24, 3, 10, 5, 4, 6
KINDS = {
    "plain": {},
    "query latent": {"d_query_latent": 9},
    "d_value omitted": {"d_value": None},
    "no positions": {"d_rotary": 0},
    "interleaved": {"pairing": "interleaved"},
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def layer_of(kind: str) -> LatentAttention:
    layer = LatentAttention(
        D, H, **{"d_latent": LATENT, "d_head": HEAD, "d_rotary": ROTARY, "d_value": VALUE} | KINDS[kind]
    ).double()
    torch.nn.init.uniform_(layer.norm.weight, 0.5, 2)
    return layer


# --- parity ---------------------------------------------------------------------------------------------------------


def deepseek_and_ours(d_query_latent, pairing, dtype, rope=None, **options):
    """Return DeepSeek-V3's layer and ours with the same weights, and a function of both to their hidden rows."""
    v3 = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = v3.DeepseekV3Config(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=H,
        q_lora_rank=d_query_latent,
        kv_lora_rank=LATENT,
        qk_nope_head_dim=HEAD,
        qk_rope_head_dim=ROTARY,
        v_head_dim=VALUE,
        rope_interleave=pairing == "interleaved",
        attn_implementation="eager",
        **({} if rope is None else {"rope_parameters": rope, "max_position_embeddings": 160}),
    )
    theirs = v3.DeepseekV3Attention(config, 0).to(dtype)
    for name, parameter in theirs.named_parameters():
        torch.nn.init.uniform_(parameter, 0.5, 2) if "norm" in name else torch.nn.init.normal_(parameter, std=0.4)
    kinds = {"d_latent": LATENT, "d_head": HEAD, "d_rotary": ROTARY, "d_value": VALUE}
    ours = LatentAttention(D, H, **kinds, d_query_latent=d_query_latent, pairing=pairing, **options).to(dtype)
    ours.load_state_dict(as_ours(theirs.state_dict(), ours.state_dict()))
    ours.norm.eps = theirs.kv_a_layernorm.variance_epsilon
    if isinstance(ours.w_q, torch.nn.Sequential):
        ours.w_q[1].eps = theirs.q_a_layernorm.variance_epsilon
    embedding = v3.DeepseekV3RotaryEmbedding(config).to(dtype)

    def attend(x):
        n = x.shape[1]
        hidden = torch.full((n, n), -torch.inf, dtype=dtype).triu(1)[None, None]
        return theirs(x, embedding(x, torch.arange(n)[None]), hidden)[0]

    return attend, ours


@pytest.mark.parametrize("d_query_latent", [None, 9])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_layer_matches_deepseek(d_query_latent, pairing):
    theirs, ours = deepseek_and_ours(d_query_latent, pairing, torch.float64)
    x = torch.randn(B, N, D)
    # Theirs computes angles and softmax in float32; the largest difference in 20 draws was 3e-6.
    assert_close(ours(x, Causal()), theirs(x), rtol=1e-5, atol=1e-5)


MSCALES = {
    "DeepSeek-V3": (1.0, 1.0),
    "DeepSeek-V2": (0.707, 0.707),
    "unequal": (1.3, 0.4),
    "not given": (None, None),
}


def yarn_settings(mscale: float | None, mscale_all_dim: float | None) -> tuple[dict, dict]:
    """Return a checkpoint's settings, and ours."""
    rope = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 40.0, "original_max_position_embeddings": 4}
    rope |= {"beta_fast": 0.5, "beta_slow": 0.01}  # so that the ramp is inside the two pairs
    width = HEAD + ROTARY
    if mscale_all_dim is None:
        return rope, {"scaling": YaRN(40.0, n_trained=4, beta_fast=0.5, beta_slow=0.01)}
    of_scores = yarn_attention_factor(40.0, mscale_all_dim)
    of_rotation = yarn_attention_factor(40.0, mscale) / of_scores
    yarn = YaRN(40.0, n_trained=4, beta_fast=0.5, beta_slow=0.01, attention_factor=of_rotation)
    both = {"mscale": mscale, "mscale_all_dim": mscale_all_dim}
    return rope | both, {"scaling": yarn, "scale": of_scores**2 / width**0.5}


@pytest.mark.parametrize("mscales", MSCALES.values(), ids=MSCALES)
@pytest.mark.parametrize("d_query_latent", [None, 9])
def test_layer_with_yarn_matches_deepseek_step_by_step(d_query_latent, mscales):
    rope, options = yarn_settings(*mscales)
    theirs, ours = deepseek_and_ours(d_query_latent, "interleaved", torch.float32, rope, **options)
    x = torch.randn(B, 11, D, dtype=torch.float32)
    expected = theirs(x)
    assert_close(ours(x, Causal()), expected, rtol=1e-5, atol=1e-5)
    for absorbed in (False, True):
        cache = LatentCache()
        rows = [ours(row, Causal(), cache, absorbed=absorbed) for row in x.split([3, 1, 1, 4, 2], dim=1)]
        assert_close(torch.cat(rows, dim=1), expected, rtol=1e-5, atol=1e-5)


WRONG_SETTINGS = {
    "no scaling": {"scaling": None},
    "the default scale": {"scale": None},
    "the scale's factor not squared": {"scale": yarn_attention_factor(40.0, 0.4) / (HEAD + ROTARY) ** 0.5},
    "the paper's magnitude": {"scaling": YaRN(40.0, n_trained=4, beta_fast=0.5, beta_slow=0.01)},
}


@pytest.mark.parametrize("wrong", WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
def test_other_settings_do_not_match_deepseek(wrong):
    rope, options = yarn_settings(*MSCALES["unequal"])
    theirs, ours = deepseek_and_ours(None, "interleaved", torch.float32, rope, **options | wrong)
    x = torch.randn(B, 11, D, dtype=torch.float32)
    assert (ours(x, Causal()) - theirs(x)).abs().max() > 1e-2


def test_scale_multiplies_scores_in_both_ways_and_in_weights():
    torch.manual_seed(1)
    layer = LatentAttention(D, H, d_latent=LATENT, d_head=HEAD, d_rotary=ROTARY, scale=0.0).double()
    x = torch.randn(B, N, D)
    assert_close(layer.weights(x), torch.full((B, H, N, N), 1 / N))
    assert_close(layer(x), layer(x, absorbed=True))
    assert_close(layer(x), layer(x.flip(1)))


@pytest.mark.rejects
def test_invalid_scale_and_scaling_raise():
    sizes = {"d_latent": LATENT, "d_head": HEAD}
    with pytest.raises(ValueError, match="scale must be finite, got inf"):
        LatentAttention(D, H, **sizes, d_rotary=ROTARY, scale=float("inf"))
    with pytest.raises(ValueError, match="scaling must be None for a layer with d_rotary=0"):
        LatentAttention(D, H, **sizes, d_rotary=0, scaling=YaRN(4.0, n_trained=4))


def as_ours(theirs: dict[str, torch.Tensor], ours: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    up = theirs["kv_b_proj.weight"].reshape(H, HEAD + VALUE, LATENT)
    down = theirs["kv_a_proj_with_mqa.weight"]
    found = {
        "w_latent.weight": down[:LATENT],
        "w_k_rotary.weight": down[LATENT:],
        "norm.weight": theirs["kv_a_layernorm.weight"],
        "w_k.weight": up[:, :HEAD].flatten(0, 1),
        "w_v.weight": up[:, HEAD:].flatten(0, 1),
        "w_o.weight": theirs["o_proj.weight"],
    }
    if "w_q.weight" in ours:
        return found | {"w_q.weight": theirs["q_proj.weight"]}
    names = {"w_q.0.weight": "q_a_proj", "w_q.1.weight": "q_a_layernorm", "w_q.2.weight": "q_b_proj"}
    return found | {ours_: theirs[f"{name}.weight"] for ours_, name in names.items()}


# --- properties -----------------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("mask", [None, Causal(), Window(3)], ids=str)
def test_absorbed_gives_same_output_and_gradients(kind, mask):
    layer, x = layer_of(kind), torch.randn(B, N, D, requires_grad=True)
    outs = [layer(x, mask, absorbed=absorbed) for absorbed in (False, True)]
    assert_close(*outs)
    grad, inputs = torch.randn(B, N, D), (x, *layer.parameters())
    assert_close(*(torch.autograd.grad(out, inputs, grad, retain_graph=True) for out in outs))


@each_kind
@pytest.mark.parametrize("absorbed", [False, True])
def test_decoding_with_cache_equals_one_forward_pass(kind, absorbed):
    layer, x, cache = layer_of(kind), torch.randn(B, N, D), LatentCache()
    steps = [layer(part, Causal(), cache, absorbed=absorbed) for part in x.split([3, 1, 1, 2], dim=1)]
    assert_close(torch.cat(steps, dim=1), layer(x, Causal()))


def test_cache_size_is_independent_of_number_of_heads():
    layer, cache = layer_of("plain").float(), LatentCache()
    assert (len(cache), cache.n_bytes) == (0, 0)
    for n in (N, 1):
        layer(torch.randn(B, n, D, dtype=torch.float32), cache=cache)
    assert len(cache) == N + 1
    assert cache.n_bytes == B * (N + 1) * (LATENT + ROTARY) * 4


@each_kind
def test_weights_times_values_equal_forward(kind):
    layer, x, cache = layer_of(kind), torch.randn(B, N, D), LatentCache()
    layer(torch.randn(B, 2, D), cache=cache)
    weights = layer.weights(x, Causal(), cache)
    assert len(cache) == 2, "weights must not append to the cache"
    assert weights.shape == (B, H, N, N + 2)
    extended = copy(cache)
    out = layer(x, Causal(), extended)
    assert extended.tensors is not None
    v = layer.w_v(extended.tensors[0]).reshape(B, N + 2, H, -1).transpose(1, 2)
    assert_close(layer.w_o((weights @ v).transpose(1, 2).flatten(2)), out)


def test_layer_depends_on_distances_only():
    layer, x = layer_of("plain"), torch.randn(B, N, D)
    shifted = layer(x, Causal(), positions=torch.arange(N) + 100)
    assert_close(shifted, layer(x, Causal()))
    starts = torch.tensor([5, 70])
    assert_close(layer(x, Causal(), positions=starts[:, None] + torch.arange(N)), shifted)
    stretched = layer(x, Causal(), positions=2 * torch.arange(N))
    assert (stretched - shifted).abs().max() > 1e-4


def test_rotated_product_cannot_be_absorbed():
    """If the computed keys are rotated, the score depends on the distance: no single product fits all distances."""
    layer, x = layer_of("plain"), torch.randn(1, N, D)
    rotary = RotaryEmbedding(4)
    w_k = layer.w_k.weight.reshape(H, HEAD, LATENT)[0, :4]
    q, c = torch.randn(1, 4).expand(N, 4), layer.norm(layer.w_latent(x))[0]
    scores = rotary(q) @ rotary(c @ w_k.T).T
    absorbed = (q @ w_k) @ c.T
    assert_close(scores.diagonal(), absorbed.diagonal())  # at distance 0 there is no rotation
    assert (scores - absorbed).abs().max() > 0.1


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_heads": 0}, r"n_heads must be at least 1"),
        ({"d_latent": 0}, r"d_latent must be at least 1"),
        ({"d_rotary": -2}, r"d_rotary must be at least 0"),
        ({"d_rotary": 3}, r"d_head must be .*even"),
        ({"d_value": 0}, r"d_value must be at least 1"),
        ({"d_query_latent": 0}, r"d_query_latent must be at least 1"),
    ],
)
def test_invalid_layer_arguments_raise(given, message):
    sizes = {"n_heads": H, "d_latent": LATENT, "d_head": HEAD, "d_rotary": ROTARY}
    with pytest.raises(ValueError, match=message):
        LatentAttention(D, **sizes | given)


@pytest.mark.rejects
def test_invalid_shapes_raise():
    layer, cache = layer_of("plain"), LatentCache()
    with pytest.raises(ValueError, match="x must end in an axis of size d_model=24"):
        layer(torch.randn(B, N, D + 1))
    with pytest.raises(ValueError, match=r"x must be \(b, n, d_model\), got \(7, 24\)"):
        layer(torch.randn(N, D))
    with pytest.raises(ValueError, match="positions must be None for a layer with d_rotary=0"):
        layer_of("no positions")(torch.randn(B, N, D), positions=torch.arange(N))
    with pytest.raises(ValueError, match=r"latent and k_rotary must be \(b, n, d_latent\) and \(b, n, d_rotary\)"):
        cache.append(torch.randn(B, N, LATENT), torch.randn(B, N + 1, ROTARY))
    layer(torch.randn(B, N, D), cache=cache)
    with pytest.raises(ValueError, match=r"latent must continue what the cache keeps.* a new batch needs a new cache"):
        layer(torch.randn(B + 1, N, D), cache=cache)


# --- wrong implementations, which the tests above must catch --------------------------------------------------------


def test_parity_test_catches_scale_without_d_rotary(monkeypatch):
    def scaled(q, k, v, mask, *, scale):
        return attention(q, k, v, mask, scale=HEAD**-0.5)

    monkeypatch.setattr("lessons_lib.attention.latent.attention", scaled)
    with pytest.raises(AssertionError):
        test_layer_matches_deepseek(None, "half")
