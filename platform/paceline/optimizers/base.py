"""What every optimizer's config offers: the learning rate, how it follows the batch size, and what does not decay."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from paceline.config.base import Component
from paceline.config.limits import BatchSize

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class OptimizerConfig(Component):
    """An update rule. Its learning rate is `lr` times the factor that `lr_scaling` gives for the batch."""

    lr: Annotated[float, Field(gt=0, le=1e6)] = 0.1
    """Learning rate at `base_batch_size`, in (0, 10^6]."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Decay of the weights, 0 to 10^6. 0 disables."""
    weight_decay_exclude: Literal["none", "norms_and_biases"] = "none"
    """Which parameters do not decay. `norms_and_biases`: those with at most one dimension, which are the biases and the
    parameters of normalisation layers. `lars`, `lamb` and `nvlamb` then also give them no trust ratio."""
    lr_scaling: Literal["none", "linear", "sqrt", "adascale"] = "none"
    """How the learning rate follows the global batch size: times batch / base (`linear`, Goyal et al. 2017,
    arXiv:1706.02677), times its square root (`sqrt`), at each step by as much as the gradient's noise allows
    (`adascale`, Johnson et al. 2020, arXiv:2007.05105), or not at all. `adascale` is for `sgd` with several workers or
    with accumulation, since it compares their gradients; it reads a few numbers from the device at each step. Unlike in
    the paper, training is not shortened by the gain."""
    base_batch_size: BatchSize = 256
    """The global batch size that `lr` was chosen for, 1 to 2^31 - 1."""

    fuses_slices: ClassVar[bool] = False
    """Whether the fused kernel also takes parameters that are cut up over the ranks."""

    def scaled_lr(self, global_batch_size: int) -> float:
        """The peak learning rate at a global batch size; with `adascale` the one before the gain of each step."""
        ratio = global_batch_size / self.base_batch_size
        return self.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio), "adascale": 1.0}[self.lr_scaling]

    def build(self, parameters: "Iterable[nn.Parameter]", lr: float, fused: bool) -> "Optimizer":
        """The optimizer over `parameters`, at the peak learning rate `lr`. `fused` is what `wants_fused` answered."""
        raise NotImplementedError

    def wants_fused(self, device_type: str, fusable: bool) -> bool:
        """Whether the update is to run in one kernel on a kind of device; only some optimizers have one.

        Args:
            device_type: as in `torch.device.type`.
            fusable: whether torch's kernels take the parameters and, as far as is known, their gradients.
        """
        return False

    def excluded_options(self) -> dict[str, Any]:
        """What is different for a parameter that `weight_decay_exclude` names; empty when nothing is."""
        return {"weight_decay": 0.0} if self.weight_decay else {}

    def grouped(self, parameters: "Iterable[nn.Parameter]") -> "list[nn.Parameter] | list[dict[str, Any]]":
        """The parameters in the form that torch's optimizers take: two groups, if some need other options."""
        given = list(parameters)
        options = {} if self.weight_decay_exclude == "none" else self.excluded_options()
        if not options:
            return given
        others = [parameter for parameter in given if parameter.ndim > 1]
        excluded = [parameter for parameter in given if parameter.ndim <= 1]
        groups: list[dict[str, Any]] = [{"params": others}, {"params": excluded, **options}]
        return [group for group in groups if group["params"]]


class FusableConfig(OptimizerConfig):
    """An update rule that torch also has as one kernel."""

    fused: bool | Literal["auto"] = "auto"
    """Run the whole update in one kernel. `auto`: on CUDA and CPU, unless an embedding layer is sparse, or a parameter
    complex or a view with gaps, or `sgd` updates weights that `fsdp` has cut up. Sparse gradients that your own code
    makes need `false`."""

    def wants_fused(self, device_type: str, fusable: bool) -> bool:
        """Whether the update is to run in one kernel."""
        return fusable and device_type in ("cuda", "cpu") if self.fused == "auto" else self.fused

    def path_options(self, fused: bool) -> dict[str, Any]:
        """Which of torch's implementations to ask for; the default one is left to torch."""
        return {"fused": True} if fused else {}
