"""Caches of fixed size: equal to the growing cache, one graph for all steps, refusals."""

from copy import copy

import pytest
import torch
from test_cache import MODES, B, D, H, N, rows
from test_gpt import CONTEXT, FLAVOURS, V, tokens_and_model
from thorough import all_but
from torch._dynamo.exc import Unsupported
from torch.testing import assert_close

from lessons_lib.attention import fixed_cache, masks
from lessons_lib.attention.cache import KVCache
from lessons_lib.attention.fixed_cache import FixedCache, RingCache
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.positions import RotaryEmbedding
from lessons_lib.attention.rules import Causal, Documents, LeftPadding, Prefix, Window
from lessons_lib.generation.beam import beam_search
from lessons_lib.generation.sampling import generate
from lessons_lib.generation.speculation import speculate
from lessons_lib.transformer import gpt as gpt_file
from lessons_lib.transformer.gpt import GPT

SIZE = 10
no_shapes = pytest.mark.skipif(
    hasattr(GPT.forward, "__wrapped__"), reason="where shapes are checked there is no one graph"
)


# --- one layer ------------------------------------------------------------------------------------------------------

MASKS = {
    "none": None,
    "causal": Causal(),
    "causal, a prefix": Causal() | Prefix(1),
    "left padding": Causal() & LeftPadding(torch.tensor([0, 1])),
    "documents": Causal() & Documents(torch.tensor([[0] * 3 + [1] * 7, [0] * 5 + [1] * 5])),
    "a square table": Causal() & masks.block(SIZE, 3),
}


def rule_for(rule, m):
    """Return the rule for a growing cache: the documents of the first ``m`` keys, the first rows of a table."""
    if rule is MASKS["documents"]:
        return Causal() & Documents(rule.b.ids[:, :m])
    return Causal() & masks.block(SIZE, 3)[:m, :m] if rule is MASKS["a square table"] else rule


@torch.no_grad()
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 2, 1], [SIZE]], ids=str)
def test_layer_with_fixed_cache_equals_growing_cache(mask, steps):
    layer = MultiHeadAttention(D, H, n_kv_heads=1, process_qk=RotaryEmbedding(4).process_qk)
    growing, fixed = KVCache(), FixedCache(B, 1, SIZE, 4)
    for part in torch.randn(B, sum(steps), D).split(steps, dim=1):
        given = rule_for(mask, len(growing) + part.shape[1])
        weights = layer.weights(part, mask=given, cache=growing)
        found = layer.weights(part, mask=mask, cache=fixed)
        assert_close(found[..., : weights.shape[-1]], weights)
        assert not found[..., weights.shape[-1] :].any(), "free places have no weight"
        assert_close(layer(part, mask=mask, cache=fixed), layer(part, mask=given, cache=growing))
        assert len(fixed) == len(growing)


@torch.no_grad()
@pytest.mark.parametrize("window", [1, 2, 4, 20])
@pytest.mark.parametrize("steps", [[1] * 12, [3, 1, 2, 1, 4, 1], [11, 1]], ids=str)
@pytest.mark.parametrize("rule", [Causal(), Causal() & LeftPadding(torch.tensor([0, 1]))], ids=["causal", "padded"])
def test_layer_with_ring_cache_equals_window_over_growing_cache(window, steps, rule):
    layer = MultiHeadAttention(D, H, process_qk=RotaryEmbedding(4).process_qk)
    growing, ring = KVCache(), RingCache(B, H, window, 4)
    for part in torch.randn(B, 12, D).split(steps, dim=1):
        expected = layer(part, mask=rule & Window(window), cache=growing)
        assert_close(layer(part, mask=rule, cache=ring), expected)
    assert len(ring) == len(growing) == 12
    assert ring.n_bytes == 2 * B * H * window * 4 * 8


@torch.no_grad()
def test_fixed_cache_allocates_once_and_copies_are_independent():
    cache, seen = FixedCache(B, H, SIZE, 4), []
    addresses = set()
    for _ in range(3):
        seen.append(rows(2))
        k, v = cache.append(*seen[-1])
        addresses.add((k.data_ptr(), v.data_ptr()))
    assert len(addresses) == 1
    branch, kept = copy(cache), k.clone()
    branch.append(*rows(1))
    branch.crop(2)
    branch.append(*rows(5))
    assert_close(cache.tensors[0], kept, rtol=0, atol=0)
    assert (len(cache), len(branch)) == (6, 7)
    ring = RingCache(B, H, 3, 4)
    ring.append(*rows(2))
    other = copy(ring)
    other.append(*rows(2))
    assert (len(ring), len(other)) == (2, 4)
    assert torch.equal(ring.key_positions(1), torch.tensor([0, 1, -1, 2]))
    assert torch.equal(other.key_positions(1), torch.tensor([3, 1, 2, 4]))


@torch.no_grad()
@pytest.mark.parametrize("kind", [FixedCache, RingCache])
def test_fixed_cache_selects_rows(kind):
    cache, selected = kind(B, H, SIZE, 4), torch.tensor([1, 0, 1])
    first = rows(N)
    cache.append(*first)
    cache.select(selected)
    assert_close(cache.tensors[0][:, :, :N], first[0][selected])
    cache.append(*(torch.randn(3, H, 1, 4) for _ in range(2)))
    assert len(cache) == N + 1
    with pytest.raises(ValueError, match="rows must be from 0 to 2"):
        cache.select(torch.tensor([3]))


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 3])
def test_layer_continues_selected_rows_like_growing_cache(window):
    """Rows are selected before each step, also after the ring has overwritten keys, and their number changes."""
    layer = MultiHeadAttention(D, H, process_qk=RotaryEmbedding(4).process_qk)
    growing, fixed = KVCache(), FixedCache(2, H, SIZE, 4) if window is None else RingCache(2, H, window, 4)
    rule = Causal() if window is None else Causal() & Window(window)
    for selected in ([0, 1], [1, 0, 1], [2, 2, 0, 1, 1], [4, 0, 3], [1, 1, 1, 0, 2]):
        if len(fixed):
            growing.select(torch.tensor(selected))
            fixed.select(torch.tensor(selected))
        part = torch.randn(len(selected), 2, D)
        assert_close(layer(part, mask=rule, cache=fixed), layer(part, mask=rule, cache=growing))


@pytest.mark.parametrize("modes", [["no grad"], ["inference"], ["no grad", "inference"]], ids=str)
def test_fixed_cache_works_in_each_mode_without_gradients(modes):
    cache = FixedCache(B, H, SIZE, 4)
    for step in range(4):
        with MODES[modes[step % len(modes)]]():
            cache.append(*rows(2))
    assert len(cache) == 8


# --- the model ------------------------------------------------------------------------------------------------------

CASES = [flavour for flavour in FLAVOURS if flavour != "dynamic"]
each_case = pytest.mark.parametrize("flavour", all_but(CASES, lambda flavour: flavour in ("gpt2", "alibi", "gemma")))


@each_case
@torch.no_grad()
@pytest.mark.parametrize("steps", [[1] * 7, [4, 1, 2]], ids=str)
def test_logits_with_fixed_caches_equal_growing_caches(flavour, steps):
    tokens, model = tokens_and_model(flavour)
    growing, fixed = model.new_caches(), model.new_caches(SIZE, batch=len(tokens))
    for part in tokens.split(steps, dim=1):
        assert_close(model(part, caches=fixed), model(part, caches=growing))
    for window, cache in zip(model.config.windows, fixed, strict=True):
        assert cache.tensors[0].shape[2] == (window or SIZE)


@each_case
@pytest.mark.parametrize("padded", [False, True], ids=["equal lengths", "left-padded"])
def test_texts_with_fixed_caches_equal_growing_caches(flavour, padded):
    tokens, model = tokens_and_model(flavour)
    n_new = CONTEXT - tokens.shape[1]
    settings = {"temperature": 0, "lengths": torch.tensor([7, 2, 4]) if padded else None}
    assert torch.equal(
        generate(model, tokens, n_new, cache_size=CONTEXT - 1, **settings), generate(model, tokens, n_new, **settings)
    )


@torch.no_grad()
@pytest.mark.parametrize("flavour", ["gpt2", "alibi", "llama"])
def test_boolean_mask_over_the_places_of_fixed_caches(flavour):
    tokens, model = tokens_and_model(flavour)
    table = torch.rand(3, 1, 1, SIZE) < 0.7
    growing, fixed = model.new_caches(), model.new_caches(SIZE, batch=3)
    for part in tokens.split([4, 1, 2], dim=1):
        m = len(growing[0]) + part.shape[1]
        expected = model(part, caches=growing, mask=table[..., :m])
        assert_close(model(part, caches=fixed, mask=table), expected)


class Counting:
    """A backend that runs the traced graph, and counts the graphs."""

    def __init__(self) -> None:
        self.n_graphs = 0

    def __call__(self, module, inputs):
        self.n_graphs += 1
        return module.forward


@no_shapes
@torch.no_grad()
@pytest.mark.parametrize(
    ("flavour", "padded"),
    all_but(
        [(f, padded) for f in ("gpt2", "llama", "alibi", "2017", "window", "gemma") for padded in (True, False)],
        lambda flavour, padded: (flavour, padded) == ("alibi", True),
    ),
)
def test_one_graph_computes_all_decoding_steps(flavour, padded):
    """The prompt is one graph, all further steps another one, and the logits equal those of growing caches."""
    torch.compiler.reset()
    tokens, model = tokens_and_model(flavour, **({} if flavour == "gemma" else {"n_layers": 1}))  # gemma's two differ
    model, count = model.eval(), Counting()
    compiled = torch.compile(model, fullgraph=True, backend=count)
    growing, fixed = model.new_caches(), model.new_caches(SIZE, batch=3)
    n_padding = torch.tensor([0, 2, 1]) if padded else torch.zeros(3, dtype=torch.long)
    for part in tokens.split([3, 1, 1, 1, 1], dim=1):
        positions = (growing[0].next_positions(part.shape[1]) - n_padding[:, None]).clamp(min=0)
        given = {"mask": LeftPadding(n_padding), "positions": positions} if padded else {}
        part = part.clone(memory_format=torch.contiguous_format)
        assert_close(compiled(part, caches=fixed, **given), model(part, caches=growing, **given))
    assert count.n_graphs == 2
    assert [len(cache) for cache in fixed] == [7] * len(fixed)


@no_shapes
@pytest.mark.one_case
@pytest.mark.parametrize("lengths", [torch.tensor([7, 2, 4]), None], ids=["left-padded", "equal lengths"])
def test_generate_with_a_compiled_model_makes_one_graph_for_all_steps(lengths):
    torch.compiler.reset()
    tokens, model = tokens_and_model("llama", n_layers=1)
    settings = {"temperature": 0, "lengths": lengths}
    expected, count = [generate(model, tokens, n, **settings) for n in (8, 5)], Counting()
    model.compile(fullgraph=True, backend=count)
    for text, n_new in zip(expected, (8, 5), strict=True):
        assert torch.equal(generate(model, tokens, n_new, cache_size=20, **settings), text)
    assert count.n_graphs == 2, "of the prompt, and of a step; the second text needs no other"


@pytest.mark.thorough
@no_shapes
def test_generate_with_compiled_models_of_other_sizes():
    """PyTorch compiles what differs from the first model as a variable: the size of the cache, the number of heads."""
    torch.compiler.reset()
    counts = []
    for heads, sizes in ((6, [9]), (3, [11, 10])):
        tokens, model = tokens_and_model("gpt2", n_layers=1, n_heads=heads)
        expected, count = generate(model, tokens, 3, temperature=0), Counting()
        model.compile(fullgraph=True, backend=count)
        for size in sizes:
            assert torch.equal(generate(model, tokens, 3, temperature=0, cache_size=size), expected)
        counts.append(count.n_graphs)
    assert counts == [2, 2]


@no_shapes
@pytest.mark.one_case
@pytest.mark.parametrize(
    ("flavour", "n_beams"), [("llama", V + 7), ("gpt2", 5), ("alibi", 5), ("window", 5), ("llama", 1)]
)
def test_beam_search_with_a_compiled_model_makes_one_graph_for_all_steps(flavour, n_beams):
    """One graph also computes the steps in which the number of beams grows, beyond the size of the vocabulary."""
    torch.compiler.reset()
    tokens, model = tokens_and_model(flavour, n_layers=1)
    expected, count = [beam_search(model, tokens, n, n_beams=n_beams) for n in (4, 3)], Counting()
    model.compile(fullgraph=True, backend=count)
    for beams, n_new in zip(expected, (4, 3), strict=True):
        found = beam_search(model, tokens, n_new, n_beams=n_beams, cache_size=SIZE)
        assert torch.equal(found.tokens, beams.tokens)
        assert_close(found.log_probability, beams.log_probability)
    assert count.n_graphs == 2, "of the prompt, and of a step; the second search needs no other"


@no_shapes
@pytest.mark.thorough
@pytest.mark.parametrize(("flavour", "other"), [("llama", "gpt2"), ("gpt2", "gpt2"), ("alibi", "llama")])
def test_speculate_with_compiled_models_makes_few_graphs(flavour, other):
    """The models have different numbers of key/value heads; their prompts have different lengths."""
    torch.compiler.reset()
    (tokens, model), (_, draft) = tokens_and_model(flavour, n_layers=1), tokens_and_model(other, n_layers=1)
    settings = [{"tokens": tokens[:, :n], "n_new": 4, "temperature": 0, "n_draft": 2} for n in (7, 5, 6)]
    expected, counts = [speculate(model, draft, **given) for given in settings], (Counting(), Counting())
    for compiled, count in zip((model, draft), counts, strict=True):
        compiled.compile(fullgraph=True, backend=count)
    for given, result in zip(settings, expected, strict=True):
        assert all(map(torch.equal, speculate(model, draft, cache_size=SIZE, **given), result))
    assert max(count.n_graphs for count in counts) <= 3, "of a prompt, of one token, and of several"


@pytest.mark.thorough
@no_shapes
@torch.no_grad()
def test_compiled_steps_beyond_the_size_raise():
    torch.compiler.reset()
    tokens, model = tokens_and_model("llama", n_layers=1)
    compiled = torch.compile(model.eval(), fullgraph=True, backend="aot_eager")
    caches = model.new_caches(4, batch=3)
    compiled(tokens[:, :3].contiguous(), caches=caches)
    compiled(tokens[:, 3:4].contiguous(), caches=caches)
    with pytest.raises(RuntimeError, match="the positions must fit into the places of the cache"):
        compiled(tokens[:, 4:5].contiguous(), caches=caches)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@torch.no_grad()
def test_fixed_cache_refuses_to_overflow():
    cache = FixedCache(B, H, 6, 4)
    cache.append(*rows(N))
    with pytest.raises(ValueError, match=r"k and v must fit into the 6 places of the cache, got 5 \+ 2 positions"):
        cache.append(*rows(2))
    assert len(cache) == N
    cache.append(*rows(1))
    tokens, model = tokens_and_model("llama")
    caches = model.new_caches(6, batch=3)
    with pytest.raises(ValueError, match=r"k and v must fit into the 6 places of the cache, got 0 \+ 7 positions"):
        model(tokens, caches=caches)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("k", "message"),
    [
        (torch.zeros(1, H, 2, 4), r"k must fit the cache, \(2, 3, 10, 4\) of torch.float64 on cpu, got \(1, 3, 2, 4\)"),
        (torch.zeros(B, 1, 2, 4), r"k must fit the cache"),
        (torch.zeros(B, H, 2, 4).float(), r"got \(2, 3, 2, 4\) of torch.float32 on cpu"),
        (torch.zeros(B, H, 2), r"k must fit the cache"),
        (torch.zeros(B, H, 3, 4, dtype=torch.float64), r"k and v must have the same shape, got"),
        (torch.zeros(B, H, 2, 4, dtype=torch.float64, requires_grad=True), r"no gradients in a FixedCache, which over"),
    ],
)
def test_append_of_unsuitable_keys_raises(k, message):
    cache = FixedCache(B, H, SIZE, 4, dtype=torch.float64)
    k = k.double() if k.dtype == torch.float32 and "float32" not in message and not k.requires_grad else k
    with pytest.raises(ValueError, match=message):
        cache.append(k, torch.zeros(B, H, 2, 4, dtype=torch.float64))
    assert len(cache) == 0


@pytest.mark.rejects
@torch.no_grad()
def test_unsuitable_caches_and_masks_raise():
    with pytest.raises(ValueError, match="size must be at least 1"):
        FixedCache(B, H, 0, 4)
    with pytest.raises(ValueError, match="window must be at least 1"):
        RingCache(B, H, 0, 4)
    ring = RingCache(B, H, 3, 4)
    ring.append(*rows(5))
    with pytest.raises(ValueError, match="a RingCache cannot be cropped, its earlier keys are overwritten, got 4"):
        ring.crop(4)
    cache = FixedCache(B, H, SIZE, 4)
    with pytest.raises(ValueError, match=r"a table inside a rule must have one row, or one for each position"):
        cache.resolve_mask(Causal() | masks.causal(2, SIZE), 2)
    with pytest.raises(ValueError, match=r"n_padding must be in 0 .. m = 10"):
        cache.resolve_mask(LeftPadding(torch.tensor(11)), 1)

    tokens, model = tokens_and_model("window")
    with pytest.raises(ValueError, match="mask must be a rule beside a RingCache"):
        model(tokens, caches=model.new_caches(SIZE, batch=3), mask=masks.causal(7, SIZE)[:, :3])
    with pytest.raises(ValueError, match="a RingCache must hold the window of its layer, 3, got 2"):
        model(tokens, caches=[RingCache(3, 2, 2, 4) for _ in model.blocks])
    with pytest.raises(ValueError, match=r"all of fixed size or none, got \['FixedCache', 'KVCache'\]"):
        model(tokens, caches=[FixedCache(3, 2, SIZE, 4), KVCache()])
    caches = model.new_caches(SIZE, batch=3)
    model.blocks[0].attention.sublayer(torch.zeros(3, 1, 24), cache=caches[0])
    with pytest.raises(ValueError, match=r"all equally long, got lengths \[1, 0\]"):
        model(tokens, caches=caches)

    _, dynamic = tokens_and_model("dynamic")
    assert len(dynamic.new_caches(10)) == len(dynamic.blocks)
    with pytest.raises(ValueError, match="a cache must hold at most so many, got a FixedCache of 11"):
        dynamic.new_caches(11)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"cache_size": 9},
            r"cache_size must be at least 10: 7 tokens and n_new=4, the last of which is not cached",
        ),
        ({"cache_size": 10.0}, r"cache_size must be an integer"),
        ({"cache_size": 12, "use_cache": False}, r"cache_size must be None without a cache, got 12"),
        ({"cache_size": 12, "window": 5}, r"cache_size must be None with a window, beyond which no cache is used, got"),
    ],
)
def test_generate_with_unsuitable_cache_size_raises(given, message):
    tokens, model = tokens_and_model("llama")
    with pytest.raises(ValueError, match=message):
        generate(model, tokens, 4, **given)


# --- wrong implementations that the tests catch ---------------------------------------------------------------------


@pytest.mark.thorough
@no_shapes
def test_graph_test_catches_growing_caches(monkeypatch):
    """A number of positions in Python, or keys whose shape changes, needs a graph for each step.

    Torch 2.11 refuses to compile them.
    """
    monkeypatch.setattr(gpt_file.GPT, "new_caches", lambda model, *_, **__: [KVCache() for _ in model.blocks])
    with pytest.raises((AssertionError, Unsupported)):
        test_one_graph_computes_all_decoding_steps("llama", False)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("resolve_mask", lambda cache, mask, n: torch.ones(n, cache.size, dtype=torch.bool)),  # free places are seen
        ("next_positions", lambda cache, n, device=None: torch.arange(n)),  # each call begins at position 0
    ],
)
def test_layer_test_catches_wrong_positions(name, wrong, monkeypatch):
    monkeypatch.setattr(fixed_cache.FixedCache, name, wrong)
    with pytest.raises(AssertionError):
        test_layer_with_fixed_cache_equals_growing_cache(Causal(), [3, 1, 2, 1])


def test_ring_test_catches_keys_that_leave_the_window_too_late(monkeypatch):
    """The place of the oldest key is beyond the window of a new query."""
    monkeypatch.setattr(RingCache, "_holds", lambda cache, queries, keys: keys >= 0)
    with pytest.raises(AssertionError):
        test_layer_with_ring_cache_equals_window_over_growing_cache(2, [1] * 12, Causal())
