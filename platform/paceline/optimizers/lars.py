"""Layer-wise adaptive rate scaling, for convolutional networks and large batches."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from paceline.optimizers.base import OptimizerConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class LARSConfig(OptimizerConfig):
    """LARS (You et al. 2017, arXiv:1708.03888): SGD with momentum, where each parameter's step is made proportional to
    its own norm.

    A step changes a parameter by about `lr` x `trust_coefficient` of its norm, so that `lr` is larger than SGD's. With
    `weight_decay_exclude: norms_and_biases` the excluded parameters take plain SGD steps of that `lr`, as do weights
    that are all zero; where that is too much, raise `trust_coefficient` instead of `lr`.
    """

    lr_scaling_rule: ClassVar[Literal["linear", "sqrt"] | None] = "linear"
    scales_layers: ClassVar[bool] = True

    name: Literal["lars"]
    """Selects this optimizer."""
    lr: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Learning rate at `base_batch_size`, in (0, 10^6]."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Share of the last update that is kept, in [0, 1). 0 disables."""
    trust_coefficient: Annotated[float, Field(gt=0, le=1e6)] = 0.001
    """The paper's eta: how far a parameter may move, as a share of its norm at `lr` 1, in (0, 10^6]."""

    def build(
        self, parameters: "Mapping[str, nn.Parameter]", lr: float, fused: bool, model: "nn.Module | None" = None
    ) -> "Optimizer":
        """The optimizer over `parameters`, by name."""
        from paceline.optimizers._lars import LARS

        assert not fused, "there is no fused kernel"
        return LARS(
            self.grouped(parameters, lr),
            lr=lr,
            momentum=self.momentum,
            trust_coefficient=self.trust_coefficient,
            weight_decay=self.weight_decay,
        )

    def excluded_options(self) -> dict[str, Any]:
        """No decay and no trust ratio."""
        return {"weight_decay": 0.0, "layerwise": False}
