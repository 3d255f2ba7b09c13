"""The base class of all tasks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.errors import UnusableCode
from paceline.tasks.output import TaskOutput

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from paceline.callbacks.callback import TrainContext


class Task(nn.Module):
    """Model and loss as one module: `forward(batch) -> TaskOutput`.

    Write your own by deriving from it, and name it in the config: `task: {path: "my_pkg.tasks:MyTask"}`.
    """

    weight_is_samples = True
    """True if `TaskOutput.weight` is the number of samples of the micro batch. Set it to False if the weight is
    anything else (tokens that count, importance weights): the engine then sums the weights of all ranks at each
    step."""

    automatic_optimization = True
    """False for a task that steps its optimizers itself, such as a GAN: see `training_step`."""

    counts = True
    """False while the result of an evaluated batch is discarded: padding of the last batches, the check of the first
    step. A task that accumulates anything besides its `TaskOutput` must skip such a batch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        """The network; its state dict is what `load_model` and `weights_sha256` are about."""

    def forward(self, batch: Any) -> TaskOutput:
        """Loss and, in evaluation mode, metrics of one micro batch as the data set's collation gives it.

        Before the first training step, the first micro batch and its halves are evaluated to check `loss_sum`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward(batch), which evaluation needs")

    def configure_optimizers(
        self, build: "Callable[..., Optimizer]"
    ) -> "Optimizer | Mapping[str, Optimizer] | Sequence[Optimizer]":
        """Build the optimizers. Override it for several, or for one that the config cannot name.

        The learning-rate schedule applies to all their groups; each keeps its ratio to the first one.

        Args:
            build: `build(parameters, lr_multiplier=1.0)` makes the optimizer of the config's section `optimizer` for
                these parameters. Any `torch.optim.Optimizer` over parameters of the task will do as well.
        """
        return build(self.parameters())

    @property
    def builds_optimizers(self) -> bool:
        """True if `configure_optimizers` is used in place of the config's section alone: it is overridden."""
        return type(self).configure_optimizers is not Task.configure_optimizers

    def notices(self) -> "Iterable[tuple[str, str]]":
        """Warnings to report before training starts: a stable code and a sentence each. None by default."""
        return ()

    def training_step(self, batch: Any, optimizers: "Mapping[str, Any] | Sequence[Any]") -> TaskOutput:
        """Train on one batch; only called where `automatic_optimization` is False.

        Write it as a loop over one batch: `loss.backward()`, then `zero_grad()` and `step()` of each optimizer. The
        losses are means over this worker's samples. `step()` averages the optimizer's gradients over the workers,
        weighted by their samples (`step(weight=...)`: by something else, such as tokens that count), clips their norm
        to `trainer.max_grad_norm`, and updates the weights. All workers must step the same optimizers in the same
        order. No gradient is kept from one step to the next. `forward` remains the evaluation.

        Strategy `ddp` without accumulation, compilation and compression, in any precision but `16-mixed`.

        Args:
            optimizers: as `configure_optimizers` returned them, by name or in order.

        Returns:
            The loss that is logged; it needs no graph.
        """
        raise NotImplementedError(f"{type(self).__name__} has no training_step(batch, optimizers)")

    def on_train_start(self, ctx: "TrainContext") -> None:
        """Training starts or resumes, on every worker; `ctx` follows its progress."""

    def training_metrics(self) -> "Mapping[str, float | torch.Tensor]":
        """Metrics of the newest training step by their full names, such as `train/generator_loss`. None by default.

        Called when metrics are logged. Rank 0's values count, so no collective operation may be in it.
        """
        return {}

    def compute(self, sums: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Return the metrics of a validation set. Override it for those that are not plain means.

        By default each sum is divided by the weight. Every rank calls it with the same sums, after the last batch; a
        set without weight has no metrics.

        Args:
            sums: `loss`, `weight` and each of `TaskOutput.metrics`, by name, summed over the set and all ranks:
                float64, on the device, in the shape that the task gave.

        Raises:
            UnusableCode: a metric is not a scalar.
        """
        for name, each in sums.items():
            if each.numel() != 1:
                raise UnusableCode(
                    f"the metric {name!r} has shape {list(each.shape)}, so its mean is not a number. Override "
                    "Task.compute to make numbers of the sums, or give scalars",
                    "metric-not-scalar",
                    metric=name,
                    shape=list(each.shape),
                )
        return {name: (each / sums["weight"]).item() for name, each in sums.items() if name != "weight"}
