r"""Training: how fast to learn, the loop, and what must be kept to go on after a stop.

:func:`train` is the loop of the book: any module from ``inputs`` to logits, any stream of batches, one record a step.
:class:`Training` is the same loop with a state that :func:`save_training_state` writes and
:func:`load_training_state` reads back, so that on one machine a run that was cut in two ends bit for bit where the
uncut one does.

Wrapped in ``torch.nn.parallel.DistributedDataParallel`` and started by ``torchrun``, the same loop is data-parallel:
each process is given its share of every batch, and all take the step that the joined batch would give.
"""

import json
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed import all_reduce, get_world_size
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from tqdm import tqdm

from lessons_lib import initialise
from lessons_lib.checkpoints import read_tensors, write_tensors
from lessons_lib.modes import evaluating
from lessons_lib.shapes import at_least_single, check_size
from lessons_lib.tasks import Batch

# --- how fast -------------------------------------------------------------------------------------------------------


def warmup_cosine(step: int, *, n_warmup: int, n_steps: int, final_share: float = 0.0) -> float:
    r"""Return the share of the peak learning rate to use at a step: up in a line, then down half a cosine.

    .. math::
        \eta_s = \begin{cases}
            (s + 1) / w & s < w \\
            f + (1 - f)\, \tfrac12 \left(1 + \cos \pi t\right), \quad
            t = \min\left(1, \frac{s - w}{n - w}\right) & s \ge w
        \end{cases}

    for steps :math:`s = 0, 1, \dots`, a warm-up of :math:`w` steps and a final share :math:`f`. No step is wasted on
    a rate of zero at the start, and from step ``n_steps`` on the share stays at :math:`f`: without the minimum the
    cosine would rise again [1]_. ``final_share=1`` is a warm-up followed by a constant rate.

    Raises:
        ValueError: if ``step`` is negative, ``n_warmup`` not in ``0 .. n_steps`` or ``final_share`` not in [0, 1].

    .. [1] Loshchilov & Hutter, *SGDR*, 2017, use that rise on purpose. arXiv:1608.03983.
    """
    check_size("step", step, at_least=0)
    check_size("n_steps", n_steps, at_least=1)
    check_size("n_warmup", n_warmup, at_least=0, at_most=n_steps)
    if not 0 <= final_share <= 1:
        raise ValueError(f"final_share must be in [0, 1], got {final_share}")
    if step < n_warmup:
        return (step + 1) / n_warmup
    progress = min(1.0, (step - n_warmup) / max(1, n_steps - n_warmup))
    return final_share + (1 - final_share) * (1 + math.cos(math.pi * progress)) / 2


# --- the loop -------------------------------------------------------------------------------------------------------


def next_token_losses(model: nn.Module, batch: Batch) -> Float[Tensor, " counted"]:
    r"""Return one loss for each target that counts, :math:`-\log p(\text{target})` in nats.

    ``model`` turns ``inputs`` over ``(b, n)`` into logits over ``(b, n, vocabulary)``.
    """
    logits = model(batch.inputs)[batch.loss_mask]
    return cross_entropy(at_least_single(logits), batch.targets[batch.loss_mask], reduction="none")


Losses = Callable[[nn.Module, Any], Tensor]  # from a model and a batch to a vector: one loss for each thing that counts


@dataclass(frozen=True)
class TrainConfig:
    r"""How to train. The rate at each step is ``lr`` times :func:`warmup_cosine`.

    Args:
        n_steps: number of updates, the whole schedule's.
        lr: the peak learning rate.
        n_warmup: steps until the peak is reached.
        final_share: what remains of the peak at the end; 1 for a constant rate after the warm-up.
        betas: AdamW's memory of the gradient and of its square.
        weight_decay: AdamW's, on matrices alone: biases and the gains of norms are left in peace.
        clip: the norm of the whole gradient is cut to this; ``None`` for no limit. With Adam, whose step does not
            depend on the gradient's scale, it matters at single spikes only.

    Raises:
        ValueError: if a number is out of range.
    """

    n_steps: int
    lr: float
    n_warmup: int = 0
    final_share: float = 0.1
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float | None = 1.0

    def __post_init__(self) -> None:
        warmup_cosine(0, n_warmup=self.n_warmup, n_steps=self.n_steps, final_share=self.final_share)
        for name, value in {"lr": self.lr, "clip": 1.0 if self.clip is None else self.clip}.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive and finite, got {value}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay must be finite and not negative, got {self.weight_decay}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")

    def lr_at(self, step: int) -> float:
        """The learning rate of a step."""
        share = warmup_cosine(step, n_warmup=self.n_warmup, n_steps=self.n_steps, final_share=self.final_share)
        return self.lr * share


class Record(NamedTuple):
    """One step: the loss before it and the norm of the gradient before clipping, over all processes together."""

    step: int
    loss: float
    lr: float
    grad_norm: float


class Training:
    """One run: a model, its optimizer, its schedule, and how far it has come.

    Args:
        model: trained in place. In ``DistributedDataParallel``, each process runs this loop on its share of a batch.
        config: how to train.
        optimizer: AdamW as the config says, when omitted. The rate of all its groups is set at every step.
        losses: the objective, one number for each thing that counts: their mean over the batch is minimised, in
            data-parallel training over the joined batch.
        generators: whatever the batches are drawn from, by name, so that it is saved and restored with the rest.

    Raises:
        ValueError: if no parameter of the model can be trained.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        *,
        optimizer: Optimizer | None = None,
        losses: Losses = next_token_losses,
        generators: Mapping[str, torch.Generator] | None = None,
    ) -> None:
        self.model, self.config, self.losses, self.step = model, config, losses, 0
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise ValueError("model must have parameters that require gradients, got none")
        self.optimizer = _adamw(self.parameters, config) if optimizer is None else optimizer
        self.generators = dict(generators or {})

    def run(self, batches: Iterable[Any], *, progress: bool = True) -> Iterator[Record]:
        """Train to the end of the schedule, one batch and one record a step; stop asking and it stops.

        The model is left in training mode: call ``model.eval()`` before using it.

        Args:
            batches: at least as many as there are steps left. Each is drawn when its step begins.
            progress: whether to show a bar, on the standard error stream.

        Raises:
            ValueError: if the batches end too early, or one has nothing that counts.
            FloatingPointError: if the loss or its gradient is not finite. The model is left as it was before the step.
        """
        batches = iter(batches)
        n_steps = self.config.n_steps
        with tqdm(total=n_steps, initial=self.step, disable=not progress, unit="step") as bar:
            while self.step < n_steps:
                try:
                    batch = next(batches)
                except StopIteration:
                    raise ValueError(
                        f"batches must last for n_steps={n_steps}, got no more after {self.step}"
                    ) from None
                record = self._update(batch)
                self.step += 1
                bar.set_postfix(loss=f"{record.loss:.3f}", refresh=False)
                bar.update()
                yield record

    def _update(self, batch: Any) -> Record:
        lr = self.config.lr_at(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        to_minimise, loss = self._mean(self.losses(self.model, batch))
        to_minimise.backward()
        limit = math.inf if self.config.clip is None else self.config.clip
        grad_norm = nn.utils.clip_grad_norm_(self.parameters, limit).item()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise FloatingPointError(
                f"loss {loss} with a gradient of norm {grad_norm} at step {self.step}: "
                "try a lower lr, a longer warm-up, or another initialisation"
            )
        self.optimizer.step()
        return Record(self.step, loss, lr, grad_norm)

    def _mean(self, losses: Tensor) -> tuple[Tensor, float]:
        """What each process is to differentiate, and the mean over the joined batch.

        Processes count different numbers of targets, and averaging their means would weigh them alike. Their
        gradients are averaged, so each contributes its sum, times their number, over the common count.
        """
        summed, count, n_processes = losses.sum().item(), losses.numel(), 1
        if isinstance(self.model, DistributedDataParallel):
            over_all = torch.tensor([summed, count], device=losses.device, dtype=torch.float64)
            all_reduce(over_all, group=self.model.process_group)
            (summed, count), n_processes = over_all.tolist(), get_world_size(self.model.process_group)
        if not count:
            raise ValueError("the batch has no target that counts, so there is no loss to minimise")
        return losses.sum() * (n_processes / count), summed / count


def train(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    n_steps: int,
    lr: float,
    losses: Losses = next_token_losses,
    progress: bool = True,
    **settings: Any,
) -> Iterator[Record]:
    """Train a model and yield a record a step: :class:`Training` for a run that need not be resumed.

    ``n_steps``, ``lr`` and any other ``settings`` are those of :class:`TrainConfig`; the rest and the errors are as
    in :meth:`Training.run`. Nothing happens until the first record is asked for::

        records = list(train(model, batches, n_steps=300, lr=3e-3, n_warmup=50))
    """
    training = Training(model, TrainConfig(n_steps=n_steps, lr=lr, **settings), losses=losses)
    return training.run(batches, progress=progress)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Any], *, losses: Losses = next_token_losses) -> float:
    """Return the mean loss over everything that counts in the batches, without dropout and without learning.

    Afterwards every part of the model is in the mode, training or not, in which it was.

    Raises:
        ValueError: if nothing counts.
    """
    with evaluating(model):
        found = torch.cat([losses(model, batch) for batch in batches] or [torch.empty(0)])
    if not found.numel():
        raise ValueError("batches must have a target that counts, got none")
    return found.mean().item()


# --- going on after a stop ------------------------------------------------------------------------------------------

_FORMAT = "lessons_lib training state, version 1"


def save_training_state(training: Training, path: str | Path) -> None:
    """Write all that a run needs to go on: model, optimizer, step, and the state of every source of randomness.

    A safetensors file with the config inside, written all or nothing (:func:`~lessons_lib.checkpoints.write_tensors`):
    a stop in the middle leaves the previous file as it was. In data-parallel training let one process write it.

    Raises:
        ValueError: if the optimizer keeps something that is not a tensor.
    """
    metadata = {"format": _FORMAT, "step": str(training.step), "settings": json.dumps(_settings(training))}
    write_tensors(path, _tensors(training), metadata)


def load_training_state(training: Training, path: str | Path) -> None:
    """Put a run back to where :func:`save_training_state` left it.

    ``training`` must have been made as the saved one was. All is checked before anything is changed, so a file that
    is refused leaves the run as it is. PyTorch's own random state, from which dropout draws, is restored too.

    Raises:
        ValueError: if the file is truncated or not one of these, or belongs to another model, config, optimizer or
            set of generators.
    """
    step, settings, tensors = _read(Path(path))
    kind, *groups = settings["optimizer"]
    settings["optimizer"] = [kind, *map(_mathematics, groups)]
    for name, ours in _settings(training).items():
        if settings[name] != ours:
            raise ValueError(f"{path} is of a run with another {name}: {settings[name]}, and not {ours}")
    _check_tensors(training, tensors, path)

    _bare(training.model).load_state_dict(_with_prefix("model.", tensors))
    memory = defaultdict(dict)
    for name, tensor in _with_prefix("optimizer.", tensors).items():
        index, _, key = name.partition(".")
        memory[int(index)][key] = tensor
    groups = training.optimizer.state_dict()["param_groups"]
    training.optimizer.load_state_dict({"state": memory, "param_groups": groups})
    for name, generator in _sources_of_randomness(training).items():
        generator.set_state(tensors[f"generator.{name}"])
    training.step = step


# --- parts ----------------------------------------------------------------------------------------------------------


def _adamw(parameters: list[nn.Parameter], config: TrainConfig) -> AdamW:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    # One operation for all weights: on small models the loop over them is a tenth of a step.
    in_one = all(p.device.type in {"cpu", "cuda"} for p in parameters)
    return AdamW(groups, lr=config.lr, betas=config.betas, fused=in_one)


def _bare(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _sources_of_randomness(training: Training) -> dict[str, torch.Generator]:
    """Those of the batches, and PyTorch's own on the devices of the model."""
    sources = {**training.generators, "pytorch cpu": torch.default_generator}
    for device in {parameter.device for parameter in training.parameters if parameter.device.type == "cuda"}:
        sources[f"pytorch {device}"] = torch.cuda.default_generators[device.index]
    return sources


def _settings(training: Training) -> dict[str, Any]:
    """What two runs must have in common for one to go on from the other, as it looks after a trip through JSON."""
    groups = [{**group, "size": len(group["params"])} for group in training.optimizer.param_groups]
    optimizer = [type(training.optimizer).__name__, *map(_mathematics, groups)]
    return json.loads(json.dumps({"config": asdict(training.config), "optimizer": optimizer}))


def _mathematics(group: dict[str, Any]) -> dict[str, Any]:
    """The settings of a group of weights that decide what a step is, not how it is computed or how far it goes now."""
    return {name: value for name, value in group.items() if name not in {"params", "lr", "fused", "foreach"}}


def _tensors(training: Training) -> dict[str, Tensor]:
    """All that changes during a run, by name; copies, because tied weights share their memory."""
    tensors = {f"model.{name}": tensor for name, tensor in _bare(training.model).state_dict().items()}
    for index, memory in training.optimizer.state_dict()["state"].items():
        for key, value in memory.items():
            if not isinstance(value, Tensor):
                raise ValueError(f"the optimizer must keep tensors alone to be saved, got {value!r} as its {key}")
            tensors[f"optimizer.{index}.{key}"] = value
    sources = _sources_of_randomness(training)
    tensors |= {f"generator.{name}": generator.get_state() for name, generator in sources.items()}
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def _with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _read(path: Path) -> tuple[int, dict[str, Any], dict[str, Tensor]]:
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"{path} must have the format {_FORMAT!r}, got {metadata.get('format')!r}")
    return int(metadata["step"]), json.loads(metadata["settings"]), tensors


def _check_tensors(training: Training, tensors: dict[str, Tensor], path: str | Path) -> None:
    """Refuse tensors that the run could not take over; after this, nothing can fail."""
    expected = {name: tensor for name, tensor in _tensors(training).items() if not name.startswith("optimizer.")}
    found = {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer.")}
    if found.keys() != expected.keys():
        missing, foreign = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
        raise ValueError(f"{path} does not fit the run: it lacks {missing} and has {foreign} besides")
    for name, tensor in found.items():
        wanted = expected[name]
        if (tensor.shape, tensor.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(
                f"{path} does not fit the run: {name} must be {wanted.dtype} over {tuple(wanted.shape)}, "
                f"got {tensor.dtype} over {tuple(tensor.shape)}"
            )


# --- what stands elsewhere ------------------------------------------------------------------------------------------


def __getattr__(name: str) -> Any:
    """Find the initialisers, which are :mod:`lessons_lib.initialise`'s, with a warning."""
    if name not in ("initialise_normal", "initialise_xavier"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is deprecated: import it from lessons_lib.initialise", DeprecationWarning, 2)
    return getattr(initialise, name)
