"""Stochastic gradient descent with momentum."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from paceline.optimizers.base import FusableConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class SGDConfig(FusableConfig):
    """`torch.optim.SGD`; `weight_decay` is added to the gradient."""

    lr_scaling_rule: ClassVar[Literal["linear", "sqrt"] | None] = "linear"

    name: Literal["sgd"]
    """Selects this optimizer."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Share of the last update that is kept, in [0, 1). 0 disables."""
    nesterov: bool = False
    """Look ahead along the momentum; needs `momentum` > 0."""

    def build(
        self, parameters: "Mapping[str, nn.Parameter]", lr: float, fused: bool, model: "nn.Module | None" = None
    ) -> "Optimizer":
        """The optimizer over `parameters`, by name."""
        from torch.optim import SGD

        return SGD(
            self.grouped(parameters, lr),
            lr=lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            **self.path_options(fused),
        )
