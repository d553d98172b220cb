"""Models run where tensors have no values to read: vmap, the meta device, FakeTensorMode, tracing, export."""

import pytest
import torch
from thorough import all_but
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from torch.func import functional_call, grad, vmap
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from lessons_lib.applications.vision import VisionConfig, VisionTransformer
from lessons_lib.attention.attention import attention
from lessons_lib.attention.positions import LearnedPositions, SinusoidalPositions
from lessons_lib.attention.rules import Causal, Padding
from lessons_lib.attention.sdpa import fused_attention
from lessons_lib.flash import as_implementation
from lessons_lib.foundations.validation import values_can_be_read
from lessons_lib.transformer.configuration import GPTConfig, llama3_8b
from lessons_lib.transformer.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from lessons_lib.transformer.gpt import GPT

untraced = pytest.mark.skipif(
    hasattr(GPT.forward, "__wrapped__"), reason="where shapes are checked there is no one graph"
)

SMALL = {"vocab_size": 17, "n_context": 8, "d_model": 16, "n_layers": 1, "n_heads": 2}
TRANSLATION = EncoderDecoderConfig(9, d_model=8, n_layers=1, n_heads=2, d_ff=8)
IMAGES = VisionConfig((8, 8), 4, 3, d_model=8, n_layers=1, n_heads=2)


def test_values_can_be_read_is_true_for_plain_tensors_and_inside_grad():
    read = []

    def loss(x):
        read.append(values_can_be_read(x))
        return x.sum()

    grad(loss)(torch.ones(3))
    grad(lambda x: grad(loss)(x).sum())(torch.ones(3))
    assert read == [True, True]
    assert values_can_be_read(torch.ones(3), torch.arange(2))


def test_values_can_be_read_is_false_in_vmap_on_meta_and_while_traced():
    read = []

    def loss(x):
        read.append(values_can_be_read(x))
        return x.sum()

    vmap(loss)(torch.ones(2, 3))
    vmap(grad(loss))(torch.ones(2, 3))
    grad(lambda x: vmap(loss)(x).sum())(torch.ones(2, 3))
    loss(torch.ones(3, device="meta"))
    with FakeTensorMode() as mode:
        loss(torch.ones(3))
    loss(mode.from_tensor(torch.ones(3)))
    torch.compile(loss, backend="eager")(torch.ones(3))
    assert read == [False] * 7


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "alibi"])
@pytest.mark.parametrize("implementation", [attention, fused_attention], ids=["attention", "fused"])
def test_per_sample_gradients_of_gpt_match_single_samples(position, implementation):
    model = GPT(GPTConfig(**SMALL, position=position), implementation=implementation)
    parameters, tokens = dict(model.named_parameters()), torch.randint(17, (3, 5))

    def loss(parameters, row):
        return functional_call(model, parameters, (row[None],)).square().sum()

    together = vmap(grad(loss), in_dims=(None, 0))(parameters, tokens)
    for i, row in enumerate(tokens):
        for name, gradient in grad(loss)(parameters, row).items():
            assert_close(together[name][i], gradient)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_per_sample_gradients_of_gpt_with_flash_attention():
    model = GPT(GPTConfig(**SMALL), implementation=as_implementation())
    parameters, tokens = dict(model.named_parameters()), torch.randint(17, (3, 5))

    def loss(parameters, row):
        return functional_call(model, parameters, (row[None],)).square().sum()

    together = vmap(grad(loss), in_dims=(None, 0))(parameters, tokens)
    for name, gradient in grad(loss)(parameters, tokens[1]).items():
        assert_close(together[name][1], gradient)


def test_flop_counter_of_llama3_8b_on_meta_device():
    with torch.device("meta"):
        model = GPT(llama3_8b())
    n_matrix = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embedding" not in name)
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.zeros(1, 16, dtype=torch.long, device="meta"))
    assert logits.shape == (1, 16, 128256)
    products = model.config.n_layers * 4 * 16 * 16 * 4096  # of queries and keys, and of weights and values
    assert counter.get_total_flops() in (2 * 16 * n_matrix, 2 * 16 * n_matrix + products)


MODELS = {
    "gpt": (lambda: GPT(GPTConfig(**SMALL, position="sinusoidal")), lambda: (torch.zeros(2, 5, dtype=torch.long),)),
    "encoder-decoder": (lambda: EncoderDecoder(TRANSLATION), lambda: (torch.zeros(2, 5, dtype=torch.long),) * 2),
    "vision": (lambda: VisionTransformer(IMAGES), lambda: (torch.zeros(2, 8, 8),)),
}
every_model = pytest.mark.parametrize(("build", "inputs"), MODELS.values(), ids=MODELS)


@every_model
@pytest.mark.parametrize("where", [lambda: torch.device("meta"), FakeTensorMode], ids=["meta", "fake"])
def test_forward_on_meta_and_fake_tensors_has_correct_shape(build, inputs, where):
    shape = build()(*inputs()).shape
    with where():
        assert build()(*inputs()).shape == shape


@pytest.mark.one_case
@untraced
@pytest.mark.parametrize(("build", "inputs"), [MODELS["encoder-decoder"], MODELS["vision"]])  # test_gpt compiles GPT
def test_models_compile_into_one_graph(build, inputs):
    model = build().eval()
    assert_close(torch.compile(model, fullgraph=True, backend="eager")(*inputs()), model(*inputs()))


@untraced
def test_gpt_with_experts_compiles_into_one_graph_for_every_routing():
    """``fullgraph=True`` also makes PyTorch trace the numbers of tokens that each expert takes, which differ."""
    model = GPT(GPTConfig(**SMALL, n_experts=4, experts_per_token=2)).eval()
    seen = []

    def count(graph, _):
        seen.append(graph)
        return graph

    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=count)
    for _ in range(3):
        tokens = torch.randint(17, (2, 5))
        assert_close(compiled(tokens), model(tokens))
    assert len(seen) == 1


@untraced
@pytest.mark.parametrize(
    "implementation", all_but([attention, fused_attention], lambda function: function is attention)
)
@pytest.mark.parametrize("options", [{}, {"position": "rotary", "norm": "rms", "n_kv_heads": 1}], ids=["gpt2", "llama"])
@pytest.mark.parametrize("strict", all_but([False, True], lambda strict: not strict))
def test_exported_gpt_accepts_other_batch_sizes_and_lengths(implementation, options, strict):
    model = GPT(GPTConfig(**SMALL, **options), implementation=implementation).eval()
    sizes = ({0: Dim("b", min=2, max=64), 1: Dim("n", min=2, max=8)},)
    exported = export(model, (torch.arange(8).view(2, 4),), dynamic_shapes=sizes, strict=strict).module()
    tokens = torch.arange(15).view(3, 5)
    assert_close(exported(tokens), model(tokens))


def test_padding_rule_on_meta_device():
    with torch.device("meta"):
        model, tokens = GPT(GPTConfig(**SMALL), implementation=attention), torch.zeros(2, 5, dtype=torch.long)
        assert model(tokens, mask=Causal() & Padding(torch.tensor([5, 3]))).shape == (2, 5, 17)


def test_invalid_values_raise_inside_grad():
    model = GPT(GPTConfig(**SMALL))
    loss = grad(lambda p, row: functional_call(model, p, (row[None],)).sum())
    with pytest.raises(ValueError, match=r"tokens must be in 0 \.\. vocab_size - 1 = 16, got 17 \.\. 17"):
        loss(dict(model.named_parameters()), torch.tensor([17]))
    for positions in (LearnedPositions(4, 6), SinusoidalPositions(6)):
        with pytest.raises(ValueError, match="positions must be"):
            positions(torch.tensor([-1]))
