r"""Initial weights: every matrix of a model is drawn by one rule; biases and norms are set to constants.

The functions visit every parameter, including those that do not belong to an ``nn.Linear``. A position table that keeps
standard deviation 1 is much larger than the token embeddings of 0.02 to which it is added. Biases become 0, norms the
identity.

For some parameters the size must match what they are added to: token embeddings must be as long as the sinusoidal
positions. A model lists such parameters in a property ``initial_std``, which maps their names to standard deviations.
They are drawn from a normal distribution, whatever the rule.

Modules that no function here initialises keep the weights that PyTorch drew from its global generator.
:func:`rng_from` makes PyTorch draw them from another generator.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from lessons_lib.foundations import norms
from lessons_lib.foundations.validation import check_size

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
    r"""Draw every matrix with a standard deviation that depends on its shape.

    All other initialisers of the library call this function.

    >>> layer = nn.Linear(30, 20)
    >>> initialise(layer, lambda shape: 1 / shape[-1], generator=torch.Generator().manual_seed(0))
    >>> layer.bias.any().item(), round(30 * layer.weight.std().item(), 1)
    (False, 1.0)

    Args:
        model: changed in place.
        std_of: returns the standard deviation for the shape of a parameter, whose last two axes are the matrix.
        n_branches: if given, the matrices that write into the residual stream (``w_o``, ``w_down``) are drawn
            :math:`\sqrt{n}` times smaller, so that the sum of the :math:`n` branches does not grow with depth [1]_.
        uniform: whether to draw from a uniform distribution instead of a normal one.
        order: the names of the matrices to draw, in this order; by default all, in the order of the model's
            parameters. The order decides which weights a seed gives. A name that occurs twice is drawn twice.
        generator: the random generator; PyTorch's global one by default.

    Raises:
        ValueError: if ``n_branches`` is not positive, or is given for a model without such matrices, or if a parameter
            is neither a matrix, a bias nor part of a norm.

    .. [1] Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019, section 2.3.
    """
    if n_branches is not None:
        check_size("n_branches", n_branches, at_least=1)
        if not any(name.endswith(WRITE_TO_RESIDUAL_STREAM) for name, _ in model.named_parameters()):
            raise ValueError(
                f"n_branches (or n_layers) scales the matrices {WRITE_TO_RESIDUAL_STREAM}, of which the model has "
                "none; leave it out"
            )
    branch_scale = 1.0 if n_branches is None else 1 / math.sqrt(n_branches)
    fixed_std = _initial_stds(model)
    constant, drawn = [], {}
    for name, parameter in model.named_parameters():
        owner, _, own_name = name.rpartition(".")
        if name in fixed_std:
            drawn[name] = (parameter, fixed_std[name], False)
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
        n_layers: if given, the matrices that write into the residual stream are drawn with :math:`\sigma / \sqrt{2 L}`,
            because a layer has two branches.
        generator: the random generator; PyTorch's global one by default.

    Raises:
        ValueError: if ``std`` is not positive and finite; otherwise as :func:`initialise`, for ``n_layers``.
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
    r"""Draw every matrix by the rule of Xavier, which approximately keeps the variance, forward and backward [2]_.

    .. math:: \operatorname{Var}(W_{ij}) = \frac{2}{d_{\text{in}} + d_{\text{out}}}

    One variance cannot satisfy both directions exactly unless the matrix is square. The arguments are those of
    :func:`initialise_normal` and :func:`initialise`.

    Raises:
        ValueError: as :func:`initialise`, for ``n_layers``.

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
def rng_from(generator: torch.Generator) -> Iterator[None]:
    """Context manager in which everything that uses PyTorch's global CPU generator draws from ``generator`` instead.

    Modules, for instance, draw their first weights from the global generator.

    >>> first, second = (torch.Generator().manual_seed(7) for _ in range(2))
    >>> with rng_from(first):
    ...     layer = nn.Linear(3, 2)
    >>> with rng_from(second):
    ...     torch.equal(nn.Linear(3, 2).weight, layer.weight)
    True

    Afterwards the global generator has its earlier state, also after an error, and ``generator`` has advanced by what
    was drawn. Random numbers on a GPU still come from the GPU's own generator.

    Raises:
        ValueError: if ``generator`` is not a CPU generator.
    """
    if generator.device.type != "cpu":
        raise ValueError(f"generator must be on the CPU, where modules are initialised, got one on {generator.device}")
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


def _initial_stds(model: nn.Module) -> dict[str, float]:
    """Return the ``initial_std`` of the model and its submodules, by the parameter names of the whole model."""
    return {
        f"{prefix}.{name}" if prefix else name: std
        for prefix, submodule in model.named_modules()
        for name, std in getattr(submodule, "initial_std", {}).items()
    }
