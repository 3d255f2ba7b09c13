"""Orthogonalized momentum for hidden matrices, AdamW for the rest."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from paceline.config.limits import Regex
from paceline.optimizers.base import OptimizerConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class MuonConfig(OptimizerConfig):
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): SGD with Nesterov momentum, where each step of a
    matrix is replaced by its nearest orthogonal matrix, found by 5 Newton-Schulz iterations.

    It updates weights of at least two dimensions; kernels of convolutions are flattened to matrices. Embeddings, the
    model's last linear layer, biases and norms take AdamW steps. With `fsdp` each worker gathers the whole matrix and
    computes the iterations.
    """

    lr_scaling_rule: ClassVar[Literal["linear", "sqrt"] | None] = "sqrt"

    name: Literal["muon"]
    """Selects this optimizer."""
    lr: Annotated[float, Field(gt=0, le=1e6)] = 0.02
    """Learning rate of the matrices at `base_batch_size`, in (0, 10^6]."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Decoupled decay of the weights, 0 to 10^6. 0 disables."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the running sum of the gradients of a matrix, in [0, 1). 0 disables."""
    adamw_match: Regex | None = None
    """Python regular expression, searched for anywhere in a parameter's name: the matrices that take AdamW steps.
    `null`: embeddings and the last linear layer."""
    adamw_lr: Annotated[float, Field(gt=0, le=1e6)] = 3e-4
    """Learning rate of the AdamW steps at `base_batch_size`, in (0, 10^6]. It follows the batch and the schedule as
    `lr` does."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW: decay of the running mean of the gradient, in [0, 1)."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """AdamW: decay of the running mean of the squared gradient, in [0, 1)."""
    eps: Annotated[float, Field(ge=1e-30, le=1e6)] = 1e-8
    """AdamW: added to the root of the second moment, 1e-30 to 10^6."""

    def build(
        self, parameters: "Mapping[str, nn.Parameter]", lr: float, fused: bool, model: "nn.Module | None" = None
    ) -> "Optimizer":
        """The optimizer over `parameters`, by name."""
        from paceline.optimizers._muon import Muon, ids_without_matrix

        assert not fused, "there is no fused kernel"
        by_layer = ids_without_matrix(model) if model is not None else set()

        def own(name: str, parameter: "nn.Parameter") -> dict[str, Any]:
            by_match = self.adamw_match is not None and re.search(self.adamw_match, name) is not None
            takes_adamw = id(parameter) in by_layer if self.adamw_match is None else by_match
            if parameter.ndim >= 2 and not takes_adamw:
                return {"is_matrix": True}
            return {"is_matrix": False, "lr": lr * self.adamw_lr / self.lr}

        return Muon(
            self.grouped(parameters, lr, own),  # type: ignore[arg-type]
            lr=lr,
            momentum=self.momentum,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
        )
