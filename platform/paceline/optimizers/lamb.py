"""Layer-wise adaptive moments, for transformers and large batches."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from paceline.optimizers.base import OptimizerConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class LayerwiseAdamConfig(OptimizerConfig):
    """The fields of LAMB and NVLAMB."""

    lr_scaling_rule: ClassVar[Literal["linear", "sqrt"] | None] = "sqrt"
    update_family: ClassVar[Literal["sgd", "adam"] | None] = "adam"
    scales_layers: ClassVar[bool] = True

    prenormalize: ClassVar[bool]
    """True if the gradient of the whole model is first divided by its norm."""

    lr: Annotated[float, Field(gt=0, le=1e6)] = 1e-3
    """Learning rate at `base_batch_size`, in (0, 10^6]: the share of its norm by which a step moves a parameter."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.01
    """Decay of the weights, part of the direction that the trust ratio scales, 0 to 10^6. 0 disables."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the running mean of the gradient, in [0, 1)."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the running mean of the squared gradient, in [0, 1)."""
    eps: Annotated[float, Field(ge=1e-30, le=1e6)] = 1e-6
    """Added to the root of the second moment, 1e-30 to 10^6."""

    def build(
        self, parameters: "Mapping[str, nn.Parameter]", lr: float, fused: bool, model: "nn.Module | None" = None
    ) -> "Optimizer":
        """The optimizer over `parameters`, by name."""
        from paceline.optimizers._lamb import LAMB

        assert not fused, "there is no fused kernel"
        return LAMB(
            self.grouped(parameters, lr),
            lr=lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
            prenormalize=self.prenormalize,
        )

    def excluded_options(self) -> dict[str, Any]:
        """No decay and no trust ratio."""
        return {"weight_decay": 0.0, "layerwise": False}


class LAMBConfig(LayerwiseAdamConfig):
    """LAMB (You et al. 2019, arXiv:1904.00962, algorithm 2): Adam with decay, where each parameter's step is made
    proportional to its own norm.

    With `weight_decay_exclude: norms_and_biases` the excluded parameters take plain Adam steps.
    """

    prenormalize: ClassVar[bool] = False
    name: Literal["lamb"]
    """Selects this optimizer."""
