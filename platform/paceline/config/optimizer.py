"""The fields that every optimizer has in the config: the learning rate, how it follows the batch size, groups."""

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from paceline.config.base import Component, Section
from paceline.config.effects import NotWith
from paceline.config.limits import BatchSize, Regex


class ParameterGroup(Section):
    """Settings of the parameters whose names match a regular expression."""

    match: Regex
    """Python regular expression, searched for anywhere in a parameter's name in the model, such as `^backbone\\.` or
    `bias$`."""
    lr_multiplier: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Factor of the learning rate, 0 to 10^6. 0: the parameters are not updated."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Decay of these weights, 0 to 10^6. `null`: that of the section."""


class OptimizerSection(Component):
    """The section `optimizer`, whatever the update rule. The learning rate is `lr` times the factor that `lr_scaling`
    gives for the batch."""

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
    base_batch_size: Annotated[BatchSize, NotWith("optimizer.lr_scaling", "none")] = 256
    """The global batch size that `lr` was chosen for, 1 to 2^31 - 1."""
    param_groups: list[ParameterGroup] = Field(default_factory=list)
    """Other settings for some parameters, such as `[{match: "^backbone", lr_multiplier: 0.1}]`. The first group that
    matches a parameter's name counts; parameters without one keep the settings of the section. What
    `weight_decay_exclude` names does not decay in any group. Empty: the same settings for all."""

    lr_scaling_rule: ClassVar[Literal["linear", "sqrt"] | None] = None
    """How the learning rate should follow the batch size (Goyal et al. 2017, arXiv:1706.02677; Malladi et al. 2022,
    arXiv:2205.10287). None: not known."""
    needs_whole_gradient: ClassVar[bool] = False
    """True if the update uses the norm of the whole model's gradient."""
    fuses_slices: ClassVar[bool] = False
    """Whether the fused kernel also takes parameters that are cut up over the ranks."""

    def scaled_lr(self, global_batch_size: int) -> float:
        """The peak learning rate at a global batch size; with `adascale` the one before the gain of each step."""
        ratio = global_batch_size / self.base_batch_size
        return self.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio), "adascale": 1.0}[self.lr_scaling]

    def excluded_options(self) -> dict[str, Any]:
        """What is different for a parameter that `weight_decay_exclude` names; empty when nothing is."""
        return {"weight_decay": 0.0} if self.weight_decay else {}
