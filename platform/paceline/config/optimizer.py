"""Config fields that every optimizer has: learning rate and its scaling with the batch size, weight decay, groups."""

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
    """Weight decay of these parameters, 0 to 10^6. `null`: that of the section."""


class OptimizerSection(Component):
    """The section `optimizer`, whatever the update rule. The learning rate is `lr` times the factor that `lr_scaling`
    gives for the batch."""

    lr: Annotated[float, Field(gt=0, le=1e6)] = 0.1
    """Learning rate at `base_batch_size`, in (0, 10^6]."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Weight decay, 0 to 10^6. 0 disables."""
    weight_decay_exclude: Literal["none", "norms_and_biases"] = "none"
    """Parameters without weight decay. `norms_and_biases`: parameters with at most one dimension, which are the biases
    and the parameters of normalisation layers; `lars`, `lamb` and `nvlamb` then also apply no trust ratio to them.
    `none`: all parameters decay."""
    lr_scaling: Literal["none", "linear", "sqrt", "adascale"] = "none"
    """Scaling of the learning rate with the global batch size. `linear`: times batch / `base_batch_size` (Goyal et al.
    2017, arXiv:1706.02677). `sqrt`: times the square root of this ratio. `adascale`: times a gain that follows the
    gradient's noise at each step (Johnson et al. 2020, arXiv:2007.05105); only for `sgd` with several workers or with
    accumulation, since it compares their gradients; it reads a few numbers from the device at each step, and unlike in
    the paper, the gain does not shorten the training. `none`: not scaled."""
    base_batch_size: Annotated[BatchSize, NotWith("optimizer.lr_scaling", "none")] = 256
    """Global batch size that `lr` was chosen for, 1 to 2^31 - 1."""
    param_groups: list[ParameterGroup] = Field(default_factory=list)
    """Other settings for some parameters, such as `[{match: "^backbone", lr_multiplier: 0.1}]`. The first group that
    matches a parameter's name applies; parameters that no group matches keep the settings of the section. Parameters
    that `weight_decay_exclude` names do not decay in any group. Empty: the same settings for all."""

    lr_scaling_rule: ClassVar[Literal["linear", "sqrt"] | None] = None
    """Recommended scaling of the learning rate with the batch size (Goyal et al. 2017, arXiv:1706.02677; Malladi et al.
    2022, arXiv:2205.10287). None: not known."""
    update_family: ClassVar[Literal["sgd", "adam"] | None] = None
    """Family for which laws of the batch size are derived. `sgd`: the update is linear in the gradients. `adam`: the
    gradient is divided by the root of its second moment. None: no law is known."""
    highest_lr: ClassVar[float] = math.inf
    """Learning rate, before it is scaled and without clipping, above which hardly any training survives: ten times
    the highest that is in wide use."""
    scales_layers: ClassVar[bool] = False
    """True if the length of each parameter's step follows the norm of the parameter."""
    needs_whole_gradient: ClassVar[bool] = False
    """True if the update uses the norm of the whole model's gradient."""
    fuses_slices: ClassVar[bool] = False
    """True if the fused kernel also supports parameters that are sharded over the ranks."""

    def scaled_lr(self, global_batch_size: int) -> float:
        """Return the peak learning rate at a global batch size; with `adascale`, before the gain of each step."""
        ratio = global_batch_size / self.base_batch_size
        return self.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio), "adascale": 1.0}[self.lr_scaling]

    def excluded_options(self) -> dict[str, Any]:
        """Return the optimizer options of parameters that `weight_decay_exclude` names; empty if they do not differ."""
        return {"weight_decay": 0.0} if self.weight_decay else {}
