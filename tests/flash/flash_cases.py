"""Shared by the tests of the flash path: cases, the float64 reference, and inputs surrounded by NaN in memory."""

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from lessons_lib.attention.attention import attention
from lessons_lib.attention.rules import Rule
from lessons_lib.attention.softmax import log_sum_exp


class Case(NamedTuple):
    """One problem: sizes, mask and score modifications."""

    b: int = 1
    h: int = 2
    g: int = 2
    n: int = 37
    m: int = 37
    d: int = 16
    is_causal: bool = False
    window: int | None = None
    key_lengths: tuple[int, ...] | None = None
    softcap: float | None = None
    alibi_slopes: tuple[float, ...] | None = None
    sinks: tuple[float, ...] | None = None
    cache_lengths: tuple[int, ...] | None = None
    rule: Rule | None = None

    def __str__(self) -> str:
        masks = [
            *(["causal"] if self.is_causal else []),
            *([f"window{self.window}"] if self.window else []),
            *(["lengths" + "_".join(map(str, self.key_lengths))] if self.key_lengths else []),
            *(["cache" + "_".join(map(str, self.cache_lengths))] if self.cache_lengths else []),
            *(name for name in ("softcap", "alibi_slopes", "sinks") if getattr(self, name)),
            *([type(self.rule).__name__] if self.rule is not None else []),
        ]
        return f"b{self.b}-h{self.h}g{self.g}-n{self.n}m{self.m}-d{self.d}-{'-'.join(masks) or 'full'}"

    def options(self) -> dict:
        """Return the case's arguments of ``flash_attention``, without those of :meth:`learnt`."""
        counted = {name: getattr(self, name) for name in ("key_lengths", "cache_lengths")}
        lengths = {name: None if given is None else torch.tensor(given) for name, given in counted.items()}
        options = {"is_causal": self.is_causal, "window": self.window, "softcap": self.softcap, **lengths}
        return options if self.rule is None else options | {"mask": self.rule}

    def learnt(self) -> dict[str, Tensor]:
        """Return the case's slopes and sinks, in float32 as in models with half-precision weights."""
        given = {name: getattr(self, name) for name in ("alibi_slopes", "sinks")}
        return {name: torch.tensor(each, dtype=torch.float32) for name, each in given.items() if each is not None}

    def mask(self) -> Tensor:
        """Return the mask by the formulas in the docstring of ``flash_attention``."""
        position = torch.arange(self.n)[:, None] + self.m - self.n
        j = torch.arange(self.m)
        seen = torch.ones(self.b, 1, self.n, self.m, dtype=torch.bool)
        if self.is_causal:
            seen &= j <= position
        if self.window is not None:
            seen &= (position - j < self.window) & (j - position < self.window)
        if self.key_lengths is not None:
            seen &= j < torch.tensor(self.key_lengths)[:, None, None, None]
        return seen if self.rule is None else seen & self.rule.to_mask(self.n, self.m)


class Results(NamedTuple):
    """Outputs and gradients for one random pair of upstream gradients."""

    out: Tensor
    lse: Tensor
    grad_q: Tensor
    grad_k: Tensor
    grad_v: Tensor
    grad_alibi_slopes: Tensor | None = None
    grad_sinks: Tensor | None = None


def inputs(case: Case, dtype: torch.dtype, layout: str = "padded") -> list[Tensor]:
    """Return queries, keys and values, each inside memory that is NaN everywhere else.

    ``padded`` keeps rows at multiples of 16 bytes with NaN between them; ``interleaved`` puts the heads inside the
    rows, as after a projection; ``odd`` starts rows anywhere; ``transposed`` makes the width the outer axis.
    """
    sizes = ((case.h, case.n), (case.g, case.m), (case.g, case.m))
    return [_surrounded(torch.randn(case.b, heads, rows, case.d).to(dtype), layout) for heads, rows in sizes]


def _surrounded(values: Tensor, layout: str) -> Tensor:
    b, heads, rows, d = values.shape
    unit = 16 // values.element_size()
    width = -(-d // unit) * unit + unit if layout != "odd" else d + 1
    shape = {
        "padded": (b + 1, heads + 1, rows + 67, width),
        "odd": (b + 1, heads + 1, rows + 67, width),
        "interleaved": (b + 1, rows + 67, heads + 1, width),
        "transposed": (b + 1, heads + 1, width, rows + 67),
    }[layout]
    memory = torch.full(shape, torch.nan, dtype=values.dtype)
    axes = {"padded": (0, 1, 2, 3), "odd": (0, 1, 2, 3), "interleaved": (0, 2, 1, 3), "transposed": (0, 1, 3, 2)}
    inside = memory.permute(axes[layout])[:b, :heads, :rows, :d]
    return inside.copy_(values).detach()


def run(
    function: Callable[..., tuple[Tensor, Tensor]],
    qkv: list[Tensor],
    upstream: list[Tensor],
    learnt: dict[str, Tensor] | None = None,
) -> Results:
    """Return outputs and gradients of ``function(q, k, v, **learnt)``; log-sum-exps of ``-inf`` get no gradient."""
    leaves = [x.detach().requires_grad_() for x in qkv]
    named = {name: x.detach().requires_grad_() for name, x in (learnt or {}).items()}
    out, lse = function(*leaves, **named)
    seen = lse.isfinite()
    grads = torch.autograd.grad(
        [out, lse.masked_fill(~seen, 0.0)],
        [*leaves, *named.values()],
        [upstream[0].to(out.dtype), upstream[1].to(lse.dtype)],
    )
    of_named = {f"grad_{name}": grad for name, grad in zip(named, grads[3:], strict=True)}
    return Results(out.detach(), lse.detach(), *grads[:3], **of_named)


def reference(case: Case, scale: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the specification: ``attention`` with the case's mask, and the log-sum-exp of the same scores."""

    def function(q: Tensor, k: Tensor, v: Tensor, **learnt: Tensor) -> tuple[Tensor, Tensor]:
        if case.cache_lengths is None:
            return _reference(case, scale, q, k, v, learnt)
        each = [
            _reference(case._replace(b=1, m=m, cache_lengths=None), scale, *(x[b : b + 1] for x in (q, k, v)), learnt)
            for b, m in enumerate(case.cache_lengths)
        ]
        outs, lses = zip(*each, strict=True)
        return torch.cat(outs), torch.cat(lses)

    return function


def _reference(
    case: Case, scale: float, q: Tensor, k: Tensor, v: Tensor, learnt: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    k, v = k[:, :, : case.m], v[:, :, : case.m]
    alibi_slopes, sinks = learnt.get("alibi_slopes"), learnt.get("sinks")
    scores = scale * q @ k.repeat_interleave(case.h // case.g, dim=1).mT
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    if alibi_slopes is not None:
        far = (torch.arange(case.n)[:, None] + case.m - case.n - torch.arange(case.m)).abs()
        scores = scores - alibi_slopes[:, None, None] * far
    scores = scores.masked_fill(~case.mask(), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], dim=-1)
    if case.m == 0:
        nothing = 0.0 * (q + k.sum() + v.sum())
        return nothing, log_sum_exp(scores) if sinks is not None else torch.full(q.shape[:-1], -torch.inf)
    return attention(q, k, v, case.mask(), scale=scale, softcap=case.softcap, **learnt), log_sum_exp(scores)


def errors(
    function: Callable[..., tuple[Tensor, Tensor]],
    case: Case,
    dtype: torch.dtype = torch.float32,
    *,
    layout: str = "padded",
    scale: float | None = None,
) -> dict[str, float]:
    """Return the relative errors ``|x - x*| / |x*|`` of ``function(q, k, v)`` from the reference in float64.

    The case's slopes and sinks are passed by name.
    """
    scale = case.d**-0.5 if scale is None else scale
    qkv = inputs(case, dtype, layout)
    upstream = [torch.randn(case.b, case.h, case.n, case.d).to(dtype), torch.randn(case.b, case.h, case.n)]
    learnt = {name: x.double() if dtype == torch.float64 else x for name, x in case.learnt().items()}
    got = run(function, qkv, upstream, learnt)
    wide = [x.double() for x in qkv], [x.double() for x in upstream], {name: x.double() for name, x in learnt.items()}
    wanted = run(reference(case, scale), *wide)
    return relative_errors(got, wanted)


def relative_errors(got: Results, wanted: Results) -> dict[str, float]:
    """Return the distance of each result from the expected one, by name."""
    assert torch.equal(got.lse == -torch.inf, wanted.lse == -torch.inf), "other rows are without visible keys"
    named = zip(Results._fields, got, wanted, strict=True)
    return {name: _distance(x, y) for name, x, y in named if not (x is None and y is None)}


def _distance(got: Tensor, wanted: Tensor) -> float:
    """Return the relative error in the Euclidean norm over the finite expected entries; infinite if there is a NaN.

    Inputs and results have entries of size one. A result that is zero (with one key, the gradient of a query) is
    treated as if its entries were 0.1.
    """
    assert got.shape == wanted.shape
    finite = wanted.isfinite()
    size = max(wanted[finite].norm().item(), 0.1 * math.sqrt(wanted.numel()))
    distance = (got.double() - wanted)[finite].norm().item() / size
    return math.inf if math.isnan(distance) else distance


# Measured over all cases of the tests, then doubled and rounded up: float32 reaches 5e-7, float16 5e-4, bfloat16 4e-3
# (one rounding of the result is 2e-4 and 1.7e-3), float64 1e-15.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
# With one key the gradient of a score is the difference of two equal sums, and the rounding error that remains depends
# on the order of a processor's additions. Measured 5e-7 on one processor, 2.2e-6 on another.
ONE_KEY = 2.5
# The gradient of a slope is one sum over all scores of a head, in which a row nearly cancels: 2.0e-6 measured.
SLOPES = 3.0


def assert_right(found: dict[str, float], dtype: torch.dtype, *, times: float = 1.0) -> None:
    """Fail with all errors in the message if an error is above the tolerance of the type."""
    weighed = max(error / (SLOPES if name == "grad_alibi_slopes" else 1.0) for name, error in found.items())
    assert weighed < times * TOLERANCE[dtype], ", ".join(f"{name} {error:.1e}" for name, error in found.items())


def mutated(original: ModuleType, old: str, new: str, folder: Path) -> ModuleType:
    """Import a copy of a module with ``new`` in place of ``old``, from a file, because Triton reads source files."""
    source = Path(original.__file__).read_text()
    assert source.count(old) >= 1, f"{old!r} is not in {original.__name__}: the mutant is out of date"
    path = folder / f"{original.__name__.rsplit('.', 1)[-1]}_mutant.py"
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[path.stem]
    return module


TILED_FILES = ("tile_shapes", "tile_scores", "dropout", "tile_loops", "tiled")


def mutated_tiled(old: str, new: str, folder: Path) -> ModuleType:
    """Import a copy of ``lessons_lib.flash.tiled`` and its files with ``new`` in place of ``old``, in small tiles."""
    originals = [importlib.import_module(f"lessons_lib.flash.{name}") for name in TILED_FILES]
    sources = [Path(module.__file__).read_text() for module in originals]
    assert any(old in source for source in sources), f"{old!r} is in no file of tiled: the mutant is out of date"
    names = [f"{name}_mutant" for name in TILED_FILES]
    sys.path.insert(0, str(folder))
    try:
        for name, source in zip(names, sources, strict=True):
            source = source.replace(old, new)
            for of in TILED_FILES:
                source = source.replace(f"from lessons_lib.flash.{of} import", f"from {of}_mutant import")
                source = source.replace(f"from lessons_lib.flash import {of}\n", f"import {of}_mutant as {of}\n")
            (folder / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        modules = [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)
    shapes, mutant = modules[0], modules[-1]
    shapes.ROWS, shapes.MASKED_ROWS, shapes.KEYS, shapes.TILE_SCORES = 16, 16, 16, 2 * 16 * 16
    return mutant


def attend_with(mutant: ModuleType, q: Tensor, k: Tensor, v: Tensor, rule: Rule, scale: float, **options):
    """Call ``tiled_attention`` of a mutant with the arguments of ``flash_attention``; return the output and the lse."""
    names = "alibi_slopes", "sinks", "bias"
    terms = mutant.ScoreTerms.of(*(options.get(name) for name in names))
    spans = options.get("spans") or [(0, k.shape[2])] * len(k)
    more = options.get("softcap"), options.get("dropout_p", 0.0)
    return mutant.tiled_attention(q, k, v, mutant.TiledOptions(rule, scale, spans, *more), terms, options.get("seed"))
