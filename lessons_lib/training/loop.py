r"""Training: the learning-rate schedule, the training loop, and training states that a run can resume from.

:func:`train` is the training loop of the book. It takes any module from ``inputs`` to logits and any iterable of
batches, and yields one record for each step. :class:`Training` is the same loop with a state, which
:func:`save_training_state` writes and :func:`load_training_state` reads. On one machine a resumed run ends with exactly
the same bits as an uninterrupted one.

With a model wrapped in ``torch.nn.parallel.DistributedDataParallel`` and processes started by ``torchrun``, the same
loop is data-parallel: each process receives its shard of every batch, and the update is that of the joined batch.
"""

import json
import math
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

from lessons_lib.foundations.eval_mode import eval_mode
from lessons_lib.foundations.validation import check_size, promote_half
from lessons_lib.training.tasks import Batch
from lessons_lib.transformer.checkpoints import read_tensors, write_tensors

# --- learning rate --------------------------------------------------------------------------------------------------


def warmup_cosine(step: int, *, n_warmup: int, n_steps: int, final_share: float = 0.0) -> float:
    r"""Return the learning rate at a step as a share of its peak: linear warm-up, then cosine decay.

    .. math::
        \eta_s = \begin{cases}
            (s + 1) / w & s < w \\
            f + (1 - f)\, \tfrac12 \left(1 + \cos \pi t\right), \quad
            t = \min\left(1, \frac{s - w}{n - w}\right) & s \ge w
        \end{cases}

    Here :math:`s = 0, 1, \dots` is the step, :math:`w` the number of warm-up steps and :math:`f` the final share. The
    first step already has a positive rate. From step ``n_steps`` on the share stays at :math:`f`; without the minimum
    the cosine would rise again [1]_. ``final_share=1`` is a warm-up followed by a constant rate.

    >>> [warmup_cosine(step, n_warmup=2, n_steps=4) for step in range(5)]
    [0.5, 1.0, 1.0, 0.5, 0.0]

    Raises:
        ValueError: if ``step`` is negative, ``n_warmup`` not in ``0 .. n_steps`` or ``final_share`` not in [0, 1].

    .. [1] Loshchilov & Hutter, *SGDR*, 2017, use that rise intentionally. arXiv:1608.03983.
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
    r"""Return :math:`-\log p(\text{target})` in nats, for each target where ``loss_mask`` is True.

    ``model`` maps ``inputs`` over ``(b, n)`` to logits over ``(b, n, vocabulary)``.

    >>> tokens, loss_mask = torch.zeros(2, 5, dtype=torch.long), torch.arange(5).expand(2, 5) > 2
    >>> next_token_losses(nn.Embedding(11, 11), Batch(tokens, tokens, loss_mask)).shape
    torch.Size([4])
    """
    logits = model(batch.inputs)[batch.loss_mask]
    return cross_entropy(promote_half(logits), batch.targets[batch.loss_mask], reduction="none")


# From a model and a batch to a vector of losses, for instance one for each target where the loss mask is True.
LossFunction = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class TrainConfig:
    r"""Settings of a training run. The learning rate at each step is ``lr`` times :func:`warmup_cosine`.

    >>> TrainConfig(n_steps=300, lr=3e-3, n_warmup=50).lr_at(24)
    0.0015

    Args:
        n_steps: number of updates in the whole schedule.
        lr: peak learning rate.
        n_warmup: number of warm-up steps until the peak.
        final_share: final learning rate as a share of the peak; 1 for a constant rate after the warm-up.
        betas: AdamW's decay rates of the averages of the gradient and of its square.
        weight_decay: AdamW's weight decay, applied to matrices but not to biases or the gains of norms.
        clip: largest norm of the whole gradient, to which larger ones are scaled down; ``None`` for no limit. Adam's
            step does not depend on the scale of the gradient, so clipping only matters for single spikes.

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
        """Return the learning rate of a step."""
        share = warmup_cosine(step, n_warmup=self.n_warmup, n_steps=self.n_steps, final_share=self.final_share)
        return self.lr * share


class Record(NamedTuple):
    """One training step: the loss before the update and the gradient norm before clipping, over all processes."""

    step: int
    loss: float
    lr: float
    grad_norm: float


class Training:
    """A training run: model, optimizer, schedule and the number of steps so far.

    >>> from lessons_lib.training.tasks import copy, stream
    >>> batches = stream(copy, torch.Generator().manual_seed(0), batch_size=2, length=5, n_symbols=10)
    >>> training = Training(nn.Embedding(11, 11), TrainConfig(n_steps=3, lr=0.1))
    >>> [record.step for record in training.run(batches, progress=False)]
    [0, 1, 2]

    Args:
        model: trained in place. With ``DistributedDataParallel``, each process runs this loop on its shard of a batch.
        config: settings of the run.
        optimizer: AdamW with the settings of ``config`` by default. Every step sets the learning rate of all its
            parameter groups.
        losses: the objective: returns a vector of losses, whose mean over the batch is minimised; in data-parallel
            training the mean over the joined batch.
        generators: the random generators that the batches are drawn from, by name. They are saved and restored with
            the run.

    Raises:
        ValueError: if no parameter of the model can be trained.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        *,
        optimizer: Optimizer | None = None,
        losses: LossFunction = next_token_losses,
        generators: Mapping[str, torch.Generator] | None = None,
    ) -> None:
        self.model, self.config, self.losses, self.step = model, config, losses, 0
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise ValueError("model must have parameters that require gradients, got none")
        self.optimizer = _adamw(self.parameters, config) if optimizer is None else optimizer
        self.generators = dict(generators or {})

    def run(self, batches: Iterable[Any], *, progress: bool = True) -> Iterator[Record]:
        """Train until the end of the schedule and yield one record for each step.

        Training only advances when the next record is requested. The model stays in training mode: call
        ``model.eval()`` before you use it.

        Args:
            batches: at least one batch for each remaining step. Each is drawn at the beginning of its step.
            progress: whether to show a progress bar on the standard error stream.

        Raises:
            ValueError: if there are too few batches, or ``losses`` returns an empty vector for one.
            FloatingPointError: if the loss or its gradient is not finite. The weights are then not updated.
        """
        batches = iter(batches)
        n_steps = self.config.n_steps
        with tqdm(total=n_steps, initial=self.step, disable=not progress, unit="step") as bar:
            while self.step < n_steps:
                try:
                    batch = next(batches)
                except StopIteration:
                    raise ValueError(
                        f"batches must be enough for n_steps={n_steps} steps, got only {self.step}"
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
        local_loss, loss = self._mean(self.losses(self.model, batch))
        local_loss.backward()
        max_norm = math.inf if self.config.clip is None else self.config.clip
        grad_norm = nn.utils.clip_grad_norm_(self.parameters, max_norm).item()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise FloatingPointError(
                f"loss {loss} with a gradient of norm {grad_norm} at step {self.step}: "
                "try a lower lr, a longer warm-up, or another initialisation"
            )
        self.optimizer.step()
        return Record(self.step, loss, lr, grad_norm)

    def _mean(self, losses: Tensor) -> tuple[Tensor, float]:
        """Return the loss that this process differentiates, and the mean loss over the joined batch.

        Processes may have different numbers of losses, so the average of their means is not the mean over the joined
        batch. DistributedDataParallel averages gradients over processes. Each process therefore differentiates its sum
        of losses, times the number of processes, divided by the total count.
        """
        total, count, n_processes = losses.sum().item(), losses.numel(), 1
        if isinstance(self.model, DistributedDataParallel):
            totals = torch.tensor([total, count], device=losses.device, dtype=torch.float64)
            all_reduce(totals, group=self.model.process_group)
            (total, count), n_processes = totals.tolist(), get_world_size(self.model.process_group)
        if not count:
            raise ValueError(
                "the batch must have at least one loss to minimise, got none; is loss_mask False everywhere?"
            )
        return losses.sum() * (n_processes / count), total / count


def train(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    n_steps: int,
    lr: float,
    losses: LossFunction = next_token_losses,
    progress: bool = True,
    **settings: Any,
) -> Iterator[Record]:
    """Train a model and yield one record for each step, without a state to save; see :class:`Training` for that.

    ``n_steps``, ``lr`` and any other ``settings`` are those of :class:`TrainConfig`. The other arguments and the errors
    are those of :class:`Training` and :meth:`Training.run`. Training only starts when the first record is requested.

    >>> from lessons_lib.training.tasks import copy, stream
    >>> model = nn.Embedding(11, 11)
    >>> batches = stream(copy, torch.Generator().manual_seed(0), batch_size=2, length=5, n_symbols=10)
    >>> records = list(train(model, batches, n_steps=3, lr=0.1, n_warmup=1, progress=False))
    >>> len(records)
    3
    """
    training = Training(model, TrainConfig(n_steps=n_steps, lr=lr, **settings), losses=losses)
    return training.run(batches, progress=progress)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Any], *, losses: LossFunction = next_token_losses) -> float:
    """Return the mean of all losses in the batches, with the model in evaluation mode and without gradients.

    Afterwards every module has its previous mode again.

    >>> tokens = torch.zeros(2, 5, dtype=torch.long)
    >>> model, batch = nn.Embedding(11, 11), Batch(tokens, tokens, torch.ones(2, 5, dtype=torch.bool))
    >>> evaluate(model, [batch]) > 0
    True

    Raises:
        ValueError: if there is no loss, because there is no batch or every loss mask is False.
    """
    with eval_mode(model):
        all_losses = torch.cat([losses(model, batch) for batch in batches] or [torch.empty(0)])
    if not all_losses.numel():
        raise ValueError("batches must have at least one loss, got none; is loss_mask False everywhere?")
    return all_losses.mean().item()


# --- training states ------------------------------------------------------------------------------------------------

_FORMAT = "lessons_lib training state, version 1"


def save_training_state(training: Training, path: str | Path) -> None:
    """Write the state from which a run can be resumed: model, optimizer, step and all random generators.

    The file is in the safetensors format, with the config in its metadata. It is written atomically
    (:func:`~lessons_lib.transformer.checkpoints.write_tensors`), so an interruption leaves the previous file unchanged.
    In data-parallel training only one process should write it.

    Raises:
        ValueError: if the optimizer state holds a value that is not a tensor.
    """
    metadata = {"format": _FORMAT, "step": str(training.step), "settings": json.dumps(_settings(training))}
    write_tensors(path, _tensors(training), metadata)


def load_training_state(training: Training, path: str | Path) -> None:
    """Restore the state of a run that :func:`save_training_state` saved.

    Create ``training`` with the same arguments as the saved run. Everything is checked before anything is changed, so
    an error leaves the run unchanged. PyTorch's global random state, from which dropout draws, is restored too.

    Raises:
        ValueError: if the file is truncated or was not written by :func:`save_training_state`, or belongs to another
            model, config, optimizer or set of generators.
    """
    step, settings, tensors = _read(Path(path))
    optimizer_name, *groups = settings["optimizer"]
    settings["optimizer"] = [optimizer_name, *map(_update_settings, groups)]
    for name, expected in _settings(training).items():
        if settings[name] != expected:
            raise ValueError(f"{path} is from a run with another {name}: expected {expected}, got {settings[name]}")
    _check_tensors(training, tensors, path)

    _unwrapped(training.model).load_state_dict(_with_prefix("model.", tensors))
    optimizer_state = defaultdict(dict)
    for name, tensor in _with_prefix("optimizer.", tensors).items():
        index, _, key = name.partition(".")
        optimizer_state[int(index)][key] = tensor
    groups = training.optimizer.state_dict()["param_groups"]
    training.optimizer.load_state_dict({"state": optimizer_state, "param_groups": groups})
    for name, generator in _all_generators(training).items():
        generator.set_state(tensors[f"generator.{name}"])
    training.step = step


# --- parts ----------------------------------------------------------------------------------------------------------


def _adamw(parameters: list[nn.Parameter], config: TrainConfig) -> AdamW:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    # The fused kernel updates all weights at once. On small models a loop over them takes a tenth of a step.
    fused = all(p.device.type in {"cpu", "cuda"} for p in parameters)
    return AdamW(groups, lr=config.lr, betas=config.betas, fused=fused)


def _unwrapped(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _all_generators(training: Training) -> dict[str, torch.Generator]:
    """Return the generators of the batches, and PyTorch's global ones on the devices of the model."""
    generators = {**training.generators, "pytorch cpu": torch.default_generator}
    for device in {parameter.device for parameter in training.parameters if parameter.device.type == "cuda"}:
        generators[f"pytorch {device}"] = torch.cuda.default_generators[device.index]
    return generators


def _settings(training: Training) -> dict[str, Any]:
    """Return the settings that a run must share with the run that it resumes, converted to JSON types."""
    groups = [{**group, "size": len(group["params"])} for group in training.optimizer.param_groups]
    optimizer = [type(training.optimizer).__name__, *map(_update_settings, groups)]
    return json.loads(json.dumps({"config": asdict(training.config), "optimizer": optimizer}))


def _update_settings(group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a parameter group that define its update, without the learning rate and the backend."""
    return {name: value for name, value in group.items() if name not in {"params", "lr", "fused", "foreach"}}


def _tensors(training: Training) -> dict[str, Tensor]:
    """Return copies of all tensors that change during a run, by name. (Tied weights share memory, hence the copies.)"""
    tensors = {f"model.{name}": tensor for name, tensor in _unwrapped(training.model).state_dict().items()}
    for index, state in training.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if not isinstance(value, Tensor):
                raise ValueError(f"the optimizer state must hold only tensors to be saved, got {value!r} as its {key}")
            tensors[f"optimizer.{index}.{key}"] = value
    tensors |= {f"generator.{name}": generator.get_state() for name, generator in _all_generators(training).items()}
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def _with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _read(path: Path) -> tuple[int, dict[str, Any], dict[str, Tensor]]:
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"{path} must have the format {_FORMAT!r}, got {metadata.get('format')!r}")
    return int(metadata["step"]), json.loads(metadata["settings"]), tensors


def _check_tensors(training: Training, tensors: dict[str, Tensor], path: str | Path) -> None:
    """Check that the run can load the tensors, so that nothing can fail after this."""
    expected = {name: tensor for name, tensor in _tensors(training).items() if not name.startswith("optimizer.")}
    found = {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer.")}
    if found.keys() != expected.keys():
        missing, unexpected = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
        raise ValueError(f"{path} must hold the tensors of the run: missing are {missing}, unexpected are {unexpected}")
    for name, tensor in found.items():
        wanted = expected[name]
        if (tensor.shape, tensor.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(
                f"{path} must fit the run: {name} must be {wanted.dtype} over {tuple(wanted.shape)}, "
                f"got {tensor.dtype} over {tuple(tensor.shape)}"
            )
