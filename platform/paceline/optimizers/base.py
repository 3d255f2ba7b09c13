"""What every optimizer's config offers: the learning rate, how it follows the batch size, and parameter groups."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from paceline.config.base import Component, Section
from paceline.config.effects import NotWith
from paceline.config.limits import BatchSize, Regex
from paceline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class ParameterGroup(Section):
    """Settings of the parameters whose names match a regular expression."""

    match: Regex
    """Python regular expression, searched for anywhere in a parameter's name in the model, such as `^backbone\\.` or
    `bias$`."""
    lr_multiplier: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Factor of the learning rate, 0 to 10^6. 0: the parameters are not updated."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Decay of these weights, 0 to 10^6. `null`: that of the section."""


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

    def build(
        self, parameters: "Mapping[str, nn.Parameter]", lr: float, fused: bool, model: "nn.Module | None" = None
    ) -> "Optimizer":
        """Build the optimizer.

        Args:
            parameters: the parameters to update, by their name in the model.
            lr: the peak learning rate.
            fused: the result of `wants_fused`.
            model: the module that holds the parameters, for optimizers that treat kinds of layers differently.
        """
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

    def require_matches(self, names: Iterable[str]) -> None:
        """Check that each of `param_groups` matches a parameter.

        Args:
            names: of all parameters of the model.

        Raises:
            ConfigError: one matches none.
        """
        known = list(names)
        problems = []
        for index, group in enumerate(self.param_groups):
            if not any(re.search(group.match, name) for name in known):
                reason = f"{group.match!r} matches no parameter of the model"
                hint = f"near names: {', '.join(_near(group.match, known))}"
                problems.append(
                    Problem("no-such-parameters", reason, f"optimizer.param_groups.{index}.match", "", hint)
                )
        if problems:
            raise ConfigError(problems)

    def grouped(
        self,
        parameters: "Mapping[str, nn.Parameter]",
        lr: float,
        own: "Callable[[str, nn.Parameter], dict[str, Any]] | None" = None,
    ) -> "list[nn.Parameter] | list[dict[str, Any]]":
        """The parameters in the form that torch's optimizers take: groups, if some need other options.

        Args:
            parameters: by their name in the model.
            lr: the peak learning rate.
            own: options of a parameter that the update rule itself needs, given its name.
        """
        groups: dict[tuple[tuple[str, Any], ...], list[nn.Parameter]] = {}
        for name, parameter in parameters.items():
            options = self._options(name, parameter, lr, own(name, parameter) if own else {})
            groups.setdefault(tuple(sorted(options.items())), []).append(parameter)
        if list(groups) == [()]:
            return groups[()]
        return [{"params": members, **dict(options)} for options, members in groups.items()]

    def _options(self, name: str, parameter: "nn.Parameter", lr: float, own: dict[str, Any]) -> dict[str, Any]:
        options = dict(own)
        group = next((each for each in self.param_groups if re.search(each.match, name)), None)
        if group is not None and group.lr_multiplier != 1:
            options["lr"] = options.get("lr", lr) * group.lr_multiplier
        if group is not None and group.weight_decay is not None:
            options["weight_decay"] = group.weight_decay
        if self.weight_decay_exclude != "none" and parameter.ndim <= 1:
            if options.get("weight_decay"):
                options["weight_decay"] = 0.0
            options.update(self.excluded_options())
        return options


def _near(pattern: str, names: list[str]) -> list[str]:
    """The few names that look most like a pattern."""
    plain = re.sub(r"[^\w.]", "", pattern.replace("\\.", "."))
    return get_close_matches(plain, names, n=3, cutoff=0.0)


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
