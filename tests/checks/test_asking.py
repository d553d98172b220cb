"""Tests of ``ask``, ``compare`` and ``without_autograd``, and of details of single checks."""

import contextlib
from fractions import Fraction

import numpy as np
import pytest
import torch
from answers import build_attention as answers_of_build_attention
from answers import build_flash
from answers import complexity as answers_of_complexity
from answers import dynamics as answers_of_dynamics
from answers import flash as answers_of_flash
from answers import information as answers_of_information
from answers import masks as answers_of_masks
from answers import matrix as answers_of_matrix
from answers import modern as answers_of_modern
from answers import patterns as answers_of_patterns
from answers import scaling as answers_of_scaling
from answers import train_gpt as answers_of_train_gpt
from answers import vision_and_language as answers_of_vision
from answers.multi_head import by_cutting, by_group
from torch.testing import assert_close

from lessons_lib.attention.attention import attention, attention_vjp
from lessons_lib.attention.softmax import merge_attention, softmax
from lessons_lib.checks import (
    AutogradUsedError,
    WrongAnswerError,
    ask,
    block,
    build_attention,
    compare,
    compare_mask,
    compare_number,
    complexity,
    dynamics,
    flash,
    geometry,
    information,
    is_finite,
    masks,
    matrix,
    modern,
    multi_head,
    patterns,
    scaling,
    train_gpt,
    vision_and_language,
    without_autograd,
)
from lessons_lib.flash import flash_attention

# --- ask ------------------------------------------------------------------------------------------------------------


def test_ask_passes_copies_of_tensors_and_other_objects_unchanged():
    x, rows, stream = torch.ones(3), [torch.zeros(2), (torch.ones(1), 5)], iter([1])
    got = []
    ask("f", lambda *given: got.extend(given) or 1, x, rows, stream, None, where="here")
    assert_close(got[0], x)
    assert got[0] is not x
    assert got[1][0] is not rows[0]
    assert got[1][1][0] is not rows[1][0]
    assert type(got[1][1]) is tuple
    assert got[2] is stream
    assert got[3] is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x, rows: x.add_(1),
        lambda x, rows: x.unsqueeze_(0),
        lambda x, rows: x[0].fill_(torch.nan),
        lambda x, rows: rows[1].fill_(0),
        lambda x, rows: rows.append(3),
        lambda x, rows: rows.reverse(),
        lambda x, rows: rows.__setitem__(0, torch.ones(2, 2)),
    ],
)
def test_ask_modified_arguments_raise(spoil):
    with pytest.raises(AssertionError, match=r"f changed its arguments; work on copies \(here\)"):
        ask("f", lambda *given: [spoil(*given)], torch.ones(3), [7, torch.ones(2)], where="here")


def test_ask_message_for_a_single_argument():
    with pytest.raises(AssertionError, match=r"f changed its argument; work on a copy \(here\)"):
        ask("f", lambda x, n: x.add_(n), torch.ones(3), 2, where="here")


def test_ask_arguments_with_nan_count_as_unchanged():
    x = torch.tensor([1.0, torch.nan, -torch.inf])
    assert ask("f", lambda x: 5, x, where="here") == 5


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (None, "f is None: did you forget to return the pair"),
        (torch.ones(2), "return the pair, got one Tensor"),
        ((1, 2, 3), "return the pair, got 3 things"),
    ],
)
def test_ask_wrong_number_of_parts_raises(got, says):
    with pytest.raises(AssertionError, match=says):
        ask("f", lambda: got, where="here", returns="the pair", parts=2)


def test_ask_accepts_a_list_of_parts():
    assert ask("f", lambda: [1, 2], where="here", returns="the pair", parts=2) == [1, 2]


# --- compare --------------------------------------------------------------------------------------------------------


def test_compare_names_nan():
    wanted = torch.ones(2)
    with pytest.raises(AssertionError, match="x holds NaN"):
        compare("x", wanted * torch.nan, wanted, {}, where="here")


def test_compare_accepts_a_correct_result_that_equals_a_mistake():
    wanted = torch.ones(2)
    compare("x", wanted, wanted, {"a mistake": wanted}, where="here")


@pytest.mark.parametrize("shape", [(3,), (1,), ()])
def test_compare_ignores_mistakes_of_another_shape(shape):
    with pytest.raises(AssertionError, match="wrong values"):
        compare("x", torch.ones(2), torch.zeros(2), {"a mistake": torch.ones(shape)}, where="here")


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 5e-7), (torch.float32, 5e-6)])
def test_compare_tolerance_depends_on_the_precision_of_the_answer(dtype, rounding):
    wanted = torch.tensor([1.0, -400.0, 5.0])
    compare("x", (wanted + 400 * rounding).to(dtype), wanted, {}, where="here")
    with pytest.raises(AssertionError, match=r"x is off by .* single precision.? torch.sqrt\(torch.tensor\(d\)\)"):
        compare("x", (wanted + 400 * 10 * rounding).to(dtype), wanted, {}, where="here")
    with pytest.raises(AssertionError, match=r"off by up to 8 at \[0\]"):
        compare("x", (wanted + 8).to(dtype), wanted, {}, where="here")


def test_compare_single_precision_tolerance_grows_with_the_scores():
    wanted = torch.tensor([1.0, 0.5, -2.0, 0.25])
    compare("x", (wanted + 1e-3).float(), wanted, {}, where="here", scores=torch.tensor([-5000.0, 3.0, -torch.inf]))
    compare("x", (wanted + 1e-3).float(), wanted, {}, where="here", scores=5000.0)
    for scores in (0.0, 100.0, torch.tensor(-torch.inf)):
        with pytest.raises(AssertionError, match="x is off by"):
            compare("x", (wanted + 1e-3).float(), wanted, {}, where="here", scores=scores)
    with pytest.raises(AssertionError, match=r"off by up to 0.01"):
        compare("x", (wanted + 1e-2).float(), wanted, {}, where="here", scores=5000.0)
    with pytest.raises(AssertionError, match="x is wrong: a mistake"):
        compare("x", (wanted + 2e-2).float(), wanted, {"a mistake": wanted + 0.0201}, where="here", scores=5000.0)


def test_compare_suggests_single_precision_only_if_it_explains_the_error():
    wanted = torch.tensor([1.0, 0.5, -2.0, 0.25])
    for off, scores in ((5e-6, 0.0), (1e-4, 5000.0)):
        with pytest.raises(AssertionError, match="was a part computed in single precision"):
            compare("x", wanted + 2 * off, wanted, {}, where="here", scores=scores)
    with pytest.raises(AssertionError, match=r"right shape and wrong values, off by up to 0.0002 at \[0\] \(here\)"):
        compare("x", wanted + 2e-4, wanted, {}, where="here")


@pytest.mark.parametrize("off", [1e-5, 1e-4, 2e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compare_names_a_nonzero_entry_that_must_be_zero(off, dtype):
    wanted = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.0, 0.5]])
    got = (wanted + 4 * off * (wanted == 0)) / (1 + 4 * off)
    with pytest.raises(AssertionError, match=r"x is 0?\S+ at \[0, 2\], where it must be 0 \(here\)"):
        compare("x", got.to(dtype), wanted, {}, where="here")


@pytest.mark.parametrize("eps", [1e-3, 1e-4, 2e-5])
def test_compare_names_a_small_number_in_a_denominator(eps):
    summed, total = torch.tensor([[1.0, -2.0], [3.0, 0.5]]), torch.tensor([[2.0], [1.0]])
    with pytest.raises(AssertionError, match=r"x is too small everywhere, .* added to what is divided by"):
        compare("x", summed / (total + eps), summed / total, {}, where="here")
    for sign in (1, -1):
        with pytest.raises(AssertionError, match=r"wrong values|single precision"):
            compare("x", summed / (total + sign * eps * torch.tensor([1, -1])), summed / total, {}, where="here")


def test_compare_names_the_mistake_that_is_nearer_than_the_correct_result():
    wanted = torch.ones(2)
    with pytest.raises(AssertionError, match="x is wrong: a small mistake"):
        compare("x", wanted + 1e-7, wanted, {"a small mistake": [wanted - 1, wanted + 1e-7]}, where="here")
    compare("x", wanted + 2e-7, wanted, {"a small mistake": wanted + 1e-7}, where="here")
    compare("x", wanted + 3e-9, wanted, {"a small mistake": wanted + 2.5e-9}, where="here")
    compare("x", (wanted + 1e-7).float(), wanted, {"a small mistake": (wanted + 1e-7).float().double()}, where="here")


def test_compare_infinities():
    wanted = torch.tensor([-torch.inf, 2.0])
    compare("x", wanted.clone(), wanted, {}, where="here")
    with pytest.raises(AssertionError, match=r"off by up to inf at \[0\]"):
        compare("x", torch.tensor([-1e9, 2.0]), wanted, {}, where="here")


def test_compare_complex_result_raises():
    with pytest.raises(AssertionError, match=r"x must be real, got torch\.complex128"):
        compare("x", torch.ones(2).to(torch.complex128), torch.ones(2), {}, where="here")


def test_compare_number_accepts_a_tensor_without_axes():
    compare_number("x", 2, 2.0, {}, where="here")
    compare_number("x", torch.tensor(2), 2, {}, where="here")
    with pytest.raises(AssertionError, match="must have shape"):
        compare_number("x", torch.tensor([2.0]), 2, {}, where="here")


@pytest.mark.parametrize("kind", [int, float, np.int64, np.float32, Fraction, torch.tensor])
def test_compare_number_accepts_all_number_types(kind):
    compare_number("x", kind(12), 12, {}, where="here")
    compare_number("x", kind(12), 12.0, {}, where="here")
    with pytest.raises(AssertionError, match=r"x is 12, wanted 3 \(here\)"):
        compare_number("x", kind(12), 3, {"a mistake": 4, "another": [5, 6]}, where="here")
    with pytest.raises(AssertionError, match="x is wrong: another"):
        compare_number("x", kind(12), 3, {"a mistake": 4, "another": [5, 12]}, where="here")


@pytest.mark.parametrize("thing", ["12", [12], None, 12j])
def test_compare_number_not_a_number_raises(thing):
    with pytest.raises(AssertionError, match=r"must be a number, got|forget to return"):
        compare_number("x", thing, 12, {}, where="here")


def test_compare_number_integers_are_exact_and_floats_have_a_tolerance():
    with pytest.raises(AssertionError, match="x is 1000000001, wanted 1000000000 "):
        compare_number("x", 10**9 + 1, 10**9, {}, where="here")
    compare_number("x", 0.1 * (1 + 5e-7), 0.1, {}, where="here")
    with pytest.raises(AssertionError, match=r"x is 0.1000005, wanted 0.1: .* single precision"):
        compare_number("x", 0.1000005, 0.1, {}, where="here")
    with pytest.raises(AssertionError, match=r"x is 0.10005, wanted 0.1 \(here\)"):
        compare_number("x", 0.10005, 0.1, {}, where="here")


@pytest.mark.parametrize("size", [-torch.inf, torch.inf, torch.nan])
def test_compare_number_infinite_mistake_matches_only_itself(size):
    compare_number("x", 0.3 + 1e-8, 0.3, {"a mistake": [size, 4.0]}, where="here")
    with pytest.raises(AssertionError, match=r"x is 0.5, wanted 0.3 \(here\)"):
        compare_number("x", 0.5, 0.3, {"a mistake": [size, 4.0]}, where="here")
    with pytest.raises(AssertionError, match="x is wrong: a mistake" if size == size else "x is nan"):
        compare_number("x", size, 0.3, {"a mistake": [size, 4.0]}, where="here")


def test_compare_number_tolerance_of_a_difference_is_relative_to_least():
    compare_number("x", 1e-4 + 5e-7, 1e-4, {}, where="here", least=1.0)
    with pytest.raises(AssertionError, match=r"x is 0.0001005, wanted 0.0001"):
        compare_number("x", 1e-4 + 5e-7, 1e-4, {}, where="here")
    with pytest.raises(AssertionError, match=r"x is 0.00015, wanted 0.0001"):
        compare_number("x", 1.5e-4, 1e-4, {}, where="here", least=1.0)


def test_compare_mask_names_the_first_wrong_entry():
    wanted = torch.tensor([[True, False], [True, True]])
    with pytest.raises(AssertionError, match=r"in 2 entries: \[0, 1\] should be False"):
        compare_mask("mask", ~wanted | torch.eye(2).bool(), wanted, {}, where="here")


def test_compare_mask_integer_mask_raises():
    with pytest.raises(AssertionError, match=r"must be a Boolean tensor, got torch.int64 \(here\)"):
        compare_mask("mask", torch.ones(2, dtype=torch.int64), torch.ones(2).bool(), {}, where="here")


def test_is_finite_ignores_objects_that_are_not_tensors():
    assert is_finite(torch.ones(2), None, "seven")
    assert not is_finite(torch.ones(2), torch.tensor([1.0, torch.inf]))
    assert not is_finite(torch.tensor(torch.nan))


# --- references -----------------------------------------------------------------------------------------------------


def test_merge_gradients_equal_autograd():
    inputs = [torch.randn(3, 5, *width, requires_grad=True) for width in ((4,), (), (4,), ())]
    grads = torch.randn(3, 5, 4), torch.randn(3, 5)
    wanted = torch.autograd.grad(merge_attention(*inputs), inputs, grads)
    assert_close(flash._merge_gradients(*inputs, *grads)[0], wanted)


def test_corners_return_a_query_that_selects_the_key():
    for m in (3, 5, 9):
        k = torch.randn(m, 2)
        corner, queries = geometry._corners(k)
        for j in corner.nonzero().flatten().tolist():
            assert (k @ queries[j]).argmax() == j


def by_autograd(forward, inputs, grads):
    return torch.autograd.grad(forward(*inputs), inputs, grads)


def by_autograd_switched_on(forward, inputs, grads):
    with torch.inference_mode(False), torch.enable_grad():
        inputs = [torch.tensor(x.tolist(), dtype=x.dtype, requires_grad=True) for x in inputs]
        return torch.autograd.grad(forward(*inputs), inputs, [torch.tensor(x.tolist(), dtype=x.dtype) for x in grads])


def by_a_call_of_backward(forward, inputs, grads):
    with torch.enable_grad():
        inputs = [x.clone().requires_grad_() for x in inputs]
        outs = forward(*inputs)
        sum((out * grad).sum() for out, grad in zip(outs, grads, strict=True)).backward()
        return [x.grad for x in inputs]


def by_vjp(forward, inputs, grads, *, vjp=torch.func.vjp):
    return vjp(forward, *inputs)[1](tuple(grads))


def of_one_number(forward, grads):
    return lambda *inputs: sum((out * grad).sum() for out, grad in zip(forward(*inputs), grads, strict=True))


def by_grad(forward, inputs, grads, *, grad=torch.func.grad):
    return grad(of_one_number(forward, grads), argnums=tuple(range(len(inputs))))(*inputs)


def by_jacobians(forward, inputs, grads):
    return by_grad(forward, inputs, grads, grad=torch.func.jacrev)


def by_jacobians_forward(forward, inputs, grads):
    return by_grad(forward, inputs, grads, grad=torch.func.jacfwd)


AUTOGRAD_ANSWERS = [
    by_autograd,
    by_autograd_switched_on,
    by_a_call_of_backward,
    by_vjp,
    by_grad,
    by_jacobians,
    by_jacobians_forward,
]
every_backward_check = pytest.mark.parametrize(
    ("check", "forward", "n_inputs", "n_outputs"),
    [
        (scaling.attention_backward, lambda q, k, v: (attention(q, k, v),), 3, 1),
        (block.norm_backward, lambda x, gain: (x * gain,), 2, 1),
        (flash.merge_backward, merge_attention, 4, 2),
        (build_flash.check.flash_backward, lambda q, k, v: (build_flash.flash_in_tiles(q, k, v, 3, 4)[0],), 3, 1),
    ],
)


def backward_answer(way, forward, n_inputs, n_outputs):
    """Return an answer to a backward exercise that computes the gradients with autograd or ``torch.func``."""

    def answer(*given):
        given = [x for x in given if isinstance(x, torch.Tensor)]
        return tuple(way(forward, given[:n_inputs], given[-n_outputs:]))

    return answer


@pytest.mark.parametrize("way", AUTOGRAD_ANSWERS)
@every_backward_check
def test_backward_checks_reject_autograd(check, forward, n_inputs, n_outputs, way):
    with pytest.raises(WrongAnswerError, match="write the backward pass by hand"):
        check(backward_answer(way, forward, n_inputs, n_outputs))


def test_without_autograd_restores_the_replaced_functions():
    ends = torch.autograd._engine_run_backward, torch.autograd.forward_ad.make_dual
    with contextlib.suppress(KeyError), without_autograd():
        assert ends[0] is not torch.autograd._engine_run_backward
        assert ends[1] is not torch.autograd.forward_ad.make_dual
        raise KeyError
    assert ends == (torch.autograd._engine_run_backward, torch.autograd.forward_ad.make_dual)
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("way", AUTOGRAD_ANSWERS[1:-1])
def test_without_autograd_leaves_autograd_working_afterwards(way):
    inputs, grads = torch.randn(3, 5, 4), [torch.randn(5, 4)]
    q, k, v = inputs
    with pytest.raises(AutogradUsedError), without_autograd():
        way(lambda q, k, v: (attention(q, k, v),), [q, k, v], grads)
    got = way(lambda q, k, v: (attention(q, k, v),), [q, k, v], grads)
    assert_close(list(got), list(attention_vjp(q, k, v, grads[0])[:3]))


# --- random inputs --------------------------------------------------------------------------------------------------


def three_conversations(lengths, prompts):
    (a, b, c), (d, e, f) = lengths, prompts
    return answers_of_masks.conversation_mask([a, b, c], [d, e, f])


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (masks.conversation_mask, three_conversations),
        (matrix.walk, lambda start, layers: (layers[2] @ layers[1] @ layers[0])[start]),
        (matrix.attention_rollout, lambda layers, residual: answers_of_matrix.attention_rollout(layers[:3], residual)),
    ],
)
def test_checks_draw_more_than_one_size(check, answer):
    with pytest.raises((AssertionError, ValueError, IndexError)):
        check(answer)


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (modern.balance_loss, answers_of_modern.balance_without_those_whom_nobody_chose),
        (modern.best_draft, answers_of_modern.best_by_a_formula_that_divides),
        (complexity.compose, answers_of_complexity.without_axes_of_one),
    ],
)
def test_checks_draw_edge_cases(check, answer):
    """These answers fail for an expert that no token chooses, the end of a range, and an axis of size one."""
    with pytest.raises((AssertionError, RuntimeError, ZeroDivisionError)):
        check(answer)


@pytest.mark.parametrize("seed", [639104, 1351814, 1383490, 1415166, 1636898, 2009091])
def test_pattern_score_accepts_double_precision_for_all_seeds(seed):
    patterns.pattern_score(answers_of_patterns.score_in_double_precision, seed=seed, cases=20)


# --- parts graded separately ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "right", "parts"),
    [
        (scaling.attention_backward, answers_of_scaling.attention_backward, ["grad_q", "grad_k", "grad_v"]),
        (build_flash.check.flash_backward, build_flash.flash_backward, ["grad_q", "grad_k", "grad_v"]),
        (build_flash.check.one_block, build_flash.one_block, ["peak", "total", "summed"]),
        (build_flash.check.update, build_flash.update, ["peak", "total", "summed"]),
        (build_flash.check.flash, build_flash.flash, ["out", "lse"]),
        (flash.attend_stream, answers_of_flash.online, ["out", "lse"]),
        (
            flash.merge_backward,
            answers_of_flash.merge_backward,
            ["grad_out_a", "grad_lse_a", "grad_out_b", "grad_lse_b"],
        ),
    ],
)
def test_checks_compare_only_the_requested_part(check, right, parts):
    for wrong in range(len(parts)):
        for spoilt in (lambda part: 2 * part + 1, lambda part: part * torch.nan, lambda part: None):

            def answer(*given, wrong=wrong, spoilt=spoilt):
                return [spoilt(part) if i == wrong else part for i, part in enumerate(right(*given))]

            for i, part in enumerate(parts):
                if i != wrong:
                    check(answer, only=part)
            with pytest.raises(AssertionError, match=parts[wrong]):
                check(answer, only=parts[wrong])
            with pytest.raises(AssertionError, match=parts[wrong]):
                check(answer)
    with pytest.raises(AssertionError, match=rf"only must be one of {', '.join(parts)}, got 'grad_x'"):
        check(right, only="grad_x")


@pytest.mark.parametrize("part", ["grad_q", "grad_k", "grad_v"])
@pytest.mark.parametrize("seed", range(5))
def test_flash_backward_rejects_gradients_from_hidden_tiles(part, seed):
    with pytest.raises(AssertionError, match=f"for {part} a fully hidden tile was multiplied"):
        build_flash.check.flash_backward(build_flash.carrying(), only=part, seed=seed)


def test_flash_hidden_tiles_fail_the_output_but_not_the_log_sum_exp():
    def whole(*given):
        return build_flash.flash(*given, spare=False)

    build_flash.check.flash(whole, only="lse")
    with pytest.raises(AssertionError, match="multiplied by zeros; skip it"):
        build_flash.check.flash(whole, only="out")


# --- single precision -----------------------------------------------------------------------------------------------


def single_root(width):
    """The square root as many students write it, which is in single precision in a notebook."""
    return torch.sqrt(torch.tensor(width, dtype=torch.float32))


def stream(q, pieces):
    return answers_of_flash.online(q, pieces, scale=1 / single_root(q.shape[-1]))


def with_root(q, k, v, mask=None):
    return softmax(q @ k.mT / single_root(q.shape[-1]), mask) @ v


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (build_attention.attention_weights, lambda q, k: softmax(q @ k.mT / single_root(q.shape[-1]))),
        (build_attention.attend, with_root),
        (flash.attend_stream, stream),
        (build_flash.check.tiled, lambda q, k, v, block: with_root(q, k, v)),
        (scaling.stable_softmax, lambda s, t: softmax(s / torch.tensor(t, dtype=torch.float32))),
    ],
)
def test_single_precision_with_large_scores_passes_or_is_named(check, answer, seed):
    with contextlib.suppress(AssertionError):
        check(answer, seed=seed)
        return
    with pytest.raises(AssertionError, match=r"was a part computed in single precision.? torch\.sqrt"):
        check(answer, seed=seed)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (scaling.attention_backward, answers_of_scaling.by_a_single_precision_root),
        (multi_head.multi_head, lambda *x: by_cutting(*x, scale=1 / single_root(x[0].shape[-1] // x[-1]))),
        (multi_head.decode_step, lambda *x: by_group(*x, scale=1 / single_root(x[0].shape[-1]))),
        (build_attention.rotate, answers_of_build_attention.rotate_as_the_text_says),
        (build_attention.layer, answers_of_build_attention.layer_with_single_angles),
        (dynamics.normalised_entropy, answers_of_dynamics.with_single_logarithms),
    ],
)
def test_root_logarithm_and_angles_in_single_precision_pass(check, answer, seed):
    torch.set_default_dtype(torch.float32)
    check(answer, seed=seed, cases=8)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (scaling.stable_softmax, lambda s, t: softmax(s.float() / t)),
        (masks.masked_softmax, lambda s, mask: softmax(s.float(), mask)),
        (information.entropy_from_scores, lambda s, t: answers_of_information.by_special_function(s.float(), t)),
        (build_attention.attention_weights, lambda q, k: softmax(q.float() @ k.float().mT / single_root(q.shape[-1]))),
        (build_attention.attend, lambda q, k, v, mask: with_root(q.float(), k.float(), v.float(), mask)),
        (build_flash.check.tiled, lambda q, k, v, block: with_root(q.float(), k.float(), v.float())),
        (vision_and_language.clip_loss, lambda f, g, s: answers_of_vision.clip_loss(f.float(), g.float(), s).item()),
        (vision_and_language.clip_loss, lambda f, g, s: answers_of_vision.clip_loss(f.float(), g.float(), s)),
        (vision_and_language.clip_loss_gradient, lambda c, s: answers_of_vision.clip_loss_gradient(c.float(), s)),
        (train_gpt.min_p, lambda z, *rest: answers_of_train_gpt.min_p(z.float(), *rest)),
    ],
)
def test_answers_in_single_precision_pass_with_large_scores(check, answer, seed):
    torch.set_default_dtype(torch.float32)
    check(answer, seed=seed, cases=12)


def test_library_flash_attention_equals_the_flash_answer():
    """The library would fail the check: its tiles have 256 keys, so it multiplies keys that smaller tiles skip."""
    q, k, v = (torch.randn(rows, 4) for rows in (5, 7, 7))
    one_head = (x[None, None] for x in (q, k, v))
    out, lse = flash_attention(*one_head, is_causal=True, backend="tiled", return_lse=True)
    assert_close((out[0, 0], lse[0, 0]), build_flash.flash(q, k, v, 2, 3))
