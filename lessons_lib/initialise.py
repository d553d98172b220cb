r"""Where to start: every parameter of a model is drawn by one rule, or set to a constant.

Every parameter is visited, those that belong to no ``nn.Linear`` too: a table of positions left at standard deviation 1
beside tokens at 0.02 drowns what it is added to. Biases become 0, norms the identity.

Some sizes are set not by the rule but by what a parameter is added to: tokens beside sinusoidal positions have to be as
long as these. A model says so itself, with a property ``initial_std``: the standard deviations of such parameters by
name, from a normal distribution. They hold whatever the rule.

Modules that are not initialised anew keep the weights with which PyTorch made them, drawn from its own generator;
:func:`drawn_from` lets them come from one of the caller's.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from lessons_lib import norms
from lessons_lib.shapes import check_size

WRITE_TO_RESIDUAL_STREAM = ("w_o.weight", "w_down.weight")
_NORMS = (norms.LayerNorm, norms.RMSNorm, nn.LayerNorm, nn.RMSNorm)


def initialise(
    model: nn.Module,
    std_of: Callable[[torch.Size], float],
    *,
    n_branches: int | None = None,
    uniform: bool = False,
    order: Iterable[str] | None = None,
    generator: torch.Generator | None = None,
) -> None:
    r"""Draw every matrix with the standard deviation that a rule gives for its shape: the library's one initialiser.

    Args:
        model: changed in place.
        std_of: the rule. A matrix is the last two axes of a parameter.
        n_branches: if given, the matrices that write into the residual stream (``w_o``, ``w_down``) are drawn
            :math:`\sqrt{n}` times smaller, so that the sum of the :math:`n` branches does not grow with depth [1]_.
        uniform: whether to draw from a uniform distribution instead of a normal one.
        order: the names of the matrices to draw, one after another, if not all as the model lists them: it decides
            which weights a seed gives. A name that comes twice is drawn twice.
        generator: what is drawn from; PyTorch's own when omitted.

    Raises:
        ValueError: if ``n_branches`` is not positive or comes to a model without such matrices, or if a parameter is
            neither matrix, bias nor part of a norm.

    .. [1] Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019, section 2.3.
    """
    if n_branches is not None:
        check_size("n_branches", n_branches, at_least=1)
        if not any(name.endswith(WRITE_TO_RESIDUAL_STREAM) for name, _ in model.named_parameters()):
            raise ValueError(
                f"a number of branches is for the matrices {WRITE_TO_RESIDUAL_STREAM}, of which the model has none"
            )
    branch_scale = 1.0 if n_branches is None else 1 / math.sqrt(n_branches)
    fixed = _stds_that_models_set(model)
    constant, drawn = [], {}
    for name, parameter in model.named_parameters():
        owner, _, own_name = name.rpartition(".")
        if name in fixed:
            drawn[name] = (parameter, fixed[name], False)
        elif own_name == "bias":
            constant.append((parameter, 0.0))
        elif isinstance(model.get_submodule(owner), _NORMS):
            constant.append((parameter, 1.0))
        elif parameter.ndim >= 2:
            scale = branch_scale if name.endswith(WRITE_TO_RESIDUAL_STREAM) else 1.0
            drawn[name] = (parameter, scale * std_of(parameter.shape), uniform)
        else:
            raise ValueError(
                f"every parameter must be a matrix, a bias or part of a norm, got {name} of shape "
                f"{tuple(parameter.shape)}; initialise the model before adding others to it"
            )
    with torch.no_grad():
        for parameter, value in constant:
            parameter.fill_(value)
        for parameter, std, is_uniform in (drawn[name] for name in (drawn if order is None else order)):
            if is_uniform:
                parameter.uniform_(-math.sqrt(3) * std, math.sqrt(3) * std, generator=generator)
            else:
                parameter.normal_(0.0, std, generator=generator)


def initialise_normal(
    model: nn.Module, *, std: float = 0.02, n_layers: int | None = None, generator: torch.Generator | None = None
) -> None:
    r"""Draw every matrix from :math:`\mathcal N(0, \sigma^2)`, as GPT-2 does; biases become 0, norms the identity.

    Args:
        model: changed in place.
        std: :math:`\sigma`.
        n_layers: if given, the matrices that write into the residual stream are drawn with :math:`\sigma / \sqrt{2 L}`:
            a layer has two branches.
        generator: what is drawn from; PyTorch's own when omitted.

    Raises:
        ValueError: if ``std`` is not positive and finite; otherwise as :func:`initialise`, with ``n_layers``.
    """
    if not (math.isfinite(std) and std > 0):
        raise ValueError(f"std must be positive and finite, got {std}")
    initialise(model, lambda shape: std, n_branches=_branches(n_layers), generator=generator)


def initialise_xavier(
    model: nn.Module,
    *,
    n_layers: int | None = None,
    uniform: bool = False,
    generator: torch.Generator | None = None,
) -> None:
    r"""Draw every matrix so that it keeps the variance, forward and backward as nearly as one number allows [2]_.

    .. math:: \operatorname{Var}(W_{ij}) = \frac{2}{d_{\text{in}} + d_{\text{out}}}

    Arguments as :func:`initialise_normal` and :func:`initialise`.

    Raises:
        ValueError: as :func:`initialise`, with ``n_layers``.

    .. [2] Glorot & Bengio, *Understanding the difficulty of training deep feedforward neural networks*, AISTATS 2010.
    """
    n_branches = _branches(n_layers)
    initialise(
        model,
        lambda shape: math.sqrt(2 / (shape[-2] + shape[-1])),
        n_branches=n_branches,
        uniform=uniform,
        generator=generator,
    )


@contextmanager
def drawn_from(generator: torch.Generator) -> Iterator[None]:
    """Let all that draws from PyTorch's own generator, as modules do when they are made, draw from this one instead.

    >>> first, second = (torch.Generator().manual_seed(7) for _ in range(2))
    >>> with drawn_from(first):
    ...     layer = nn.Linear(3, 2)
    >>> with drawn_from(second):
    ...     torch.equal(nn.Linear(3, 2).weight, layer.weight)
    True

    Afterwards PyTorch's own generator is where it was before, whatever happened, and ``generator`` is past what was
    drawn. On the CPU alone: what is drawn on a GPU comes from the GPU's generator, as ever.

    Raises:
        ValueError: if ``generator`` is not one of the CPU.
    """
    if generator.device.type != "cpu":
        raise ValueError(f"generator must be one of the CPU, where modules are made, got one of {generator.device}")
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(torch.get_rng_state())


# --- parts ----------------------------------------------------------------------------------------------------------


def _branches(n_layers: int | None) -> int | None:
    if n_layers is None:
        return None
    check_size("n_layers", n_layers, at_least=1)
    return 2 * n_layers


def _stds_that_models_set(model: nn.Module) -> dict[str, float]:
    """What the model and its parts say in ``initial_std``, by the names that the whole gives to the parameters."""
    return {
        f"{prefix}.{name}" if prefix else name: std
        for prefix, part in model.named_modules()
        for name, std in getattr(part, "initial_std", {}).items()
    }
