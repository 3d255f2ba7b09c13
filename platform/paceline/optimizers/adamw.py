"""Adam with decoupled weight decay."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from paceline.optimizers.base import FusableConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class AdamWConfig(FusableConfig):
    """`torch.optim.AdamW` (Loshchilov and Hutter 2019, arXiv:1711.05101)."""

    lr_scaling_rule: ClassVar[Literal["linear", "sqrt"] | None] = "sqrt"
    update_family: ClassVar[Literal["sgd", "adam"] | None] = "adam"
    highest_lr: ClassVar[float] = 0.1

    fuses_slices: ClassVar[bool] = True
    name: Literal["adamw"]
    """Selects this optimizer."""
    lr: Annotated[float, Field(gt=0, le=1e6)] = 1e-3
    """Learning rate at `base_batch_size`, in (0, 10^6]."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.01
    """Decoupled decay of the weights, 0 to 10^6. 0 disables."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the running mean of the gradient, in [0, 1)."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the running mean of the squared gradient, in [0, 1)."""
    eps: Annotated[float, Field(ge=1e-30, le=1e6)] = 1e-8
    """Added to the root of the second moment, 1e-30 to 10^6."""

    def build(
        self, parameters: "Mapping[str, nn.Parameter]", lr: float, fused: bool, model: "nn.Module | None" = None
    ) -> "Optimizer":
        """The optimizer over `parameters`, by name."""
        from torch.optim import AdamW

        return AdamW(
            self.grouped(parameters, lr),
            lr=lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
            **self.path_options(fused),
        )
