"""Stochastic gradient descent with momentum."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from paceline.config.base import Contradiction
from paceline.optimizers.base import FusableConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class SGDConfig(FusableConfig):
    """`torch.optim.SGD`; `weight_decay` is added to the gradient."""

    lr_scaling_rule: ClassVar[Literal["linear", "sqrt"] | None] = "linear"
    update_family: ClassVar[Literal["sgd", "adam"] | None] = "sgd"
    highest_lr: ClassVar[float] = 10.0

    name: Literal["sgd"]
    """Selects this optimizer."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Share of the last update that is kept, in [0, 1). 0 disables."""
    nesterov: bool = False
    """Look ahead along the momentum; needs `momentum` > 0."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Nesterov's look ahead without momentum."""
        if self.nesterov and not self.momentum:
            hint = "write momentum: 0.9, or nesterov: false"
            yield Contradiction("needs momentum, which is 0", hint, ("nesterov", "momentum"))

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
