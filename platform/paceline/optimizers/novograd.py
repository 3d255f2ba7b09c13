"""Gradients normalised layer by layer, with half of Adam's memory."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from paceline.optimizers.base import OptimizerConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class NovoGradConfig(OptimizerConfig):
    """NovoGrad (Ginsburg et al. 2019, arXiv:1905.11286): SGD with momentum over gradients that are divided by a running
    mean of their norm, one for each parameter.

    It has no trust ratio: parameters that `weight_decay_exclude` names do not decay, and are normalised like all.
    """

    lr_scaling_rule: ClassVar[Literal["linear", "sqrt"] | None] = "sqrt"

    name: Literal["novograd"]
    """Selects this optimizer."""
    lr: Annotated[float, Field(gt=0, le=1e6)] = 0.01
    """Learning rate at `base_batch_size`, in (0, 10^6]."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Decay of the weights, added to the normalised gradient, 0 to 10^6. 0 disables."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Share of the last update that is kept, in [0, 1)."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """Decay of the running mean of the gradient's squared norm, in [0, 1)."""
    eps: Annotated[float, Field(ge=1e-30, le=1e6)] = 1e-8
    """Added to the root of that mean, 1e-30 to 10^6."""

    def build(
        self, parameters: "Mapping[str, nn.Parameter]", lr: float, fused: bool, model: "nn.Module | None" = None
    ) -> "Optimizer":
        """The optimizer over `parameters`, by name."""
        from paceline.optimizers._novograd import NovoGrad

        assert not fused, "there is no fused kernel"
        return NovoGrad(
            self.grouped(parameters, lr),
            lr=lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
        )
