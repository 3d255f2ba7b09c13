"""AdamW whose average of the weights takes the place of a schedule."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from paceline.optimizers.base import OptimizerConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class ScheduleFreeAdamWConfig(OptimizerConfig):
    """Schedule-Free AdamW (Defazio et al. 2024, arXiv:2405.15682): evaluates an average of the weights instead of
    lowering the learning rate. Use it with `lr_scheduler: constant` and a warmup.

    Gradients are taken at the weights y, and evaluation uses the average x. A checkpoint holds y as the model's
    weights, and z in the optimizer's state, from which x follows: x = (y - (1 - beta1) z) / beta1.
    """

    lr_scaling_rule: ClassVar[Literal["linear", "sqrt"] | None] = "sqrt"
    update_family: ClassVar[Literal["sgd", "adam"] | None] = "adam"

    name: Literal["schedule_free_adamw"]
    """Selects this optimizer."""
    lr: Annotated[float, Field(gt=0, le=1e6)] = 0.0025
    """Learning rate at `base_batch_size`, in (0, 10^6]; 1 to 10 times that of AdamW with a schedule."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Decoupled decay, computed at y, 0 to 10^6. 0 disables."""
    beta1: Annotated[float, Field(ge=1e-3, lt=1)] = 0.9
    """Share of the average x in the weights y at which gradients are taken, 0.001 to 1 (exclusive)."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the running mean of the squared gradient, in [0, 1)."""
    eps: Annotated[float, Field(ge=1e-30, le=1e6)] = 1e-8
    """Added to the root of the second moment, 1e-30 to 10^6."""

    def build(
        self, parameters: "Mapping[str, nn.Parameter]", lr: float, fused: bool, model: "nn.Module | None" = None
    ) -> "Optimizer":
        """The optimizer over `parameters`, by name."""
        from paceline.optimizers._schedule_free_adamw import ScheduleFreeAdamW

        assert not fused, "there is no fused kernel"
        return ScheduleFreeAdamW(
            self.grouped(parameters, lr),
            lr=lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
        )
