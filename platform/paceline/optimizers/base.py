"""Base class of the optimizer configs, which build a torch optimizer with parameter groups."""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from paceline.config.optimizer import OptimizerSection
from paceline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class OptimizerConfig(OptimizerSection):
    """An update rule: builds a torch optimizer."""

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
        """Return True if the update is to run in one fused kernel. False here: only some optimizers have such a kernel.

        Args:
            device_type: as in `torch.device.type`.
            fusable: True if torch's kernels support the parameters and, as far as is known, their gradients.
        """
        return False

    def require_matches(self, names: Iterable[str]) -> None:
        """Check that each of `param_groups` matches a parameter.

        Args:
            names: names of all parameters of the model.

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
    complex or a view with gaps, or `sgd` updates weights that `fsdp` has cut up. Sparse gradients that custom code
    makes need `false`."""

    def wants_fused(self, device_type: str, fusable: bool) -> bool:
        """Return True if the update is to run in one fused kernel."""
        return fusable and device_type in ("cuda", "cpu") if self.fused == "auto" else self.fused

    def path_options(self, fused: bool) -> dict[str, Any]:
        """Return the arguments that select torch's fused implementation; empty to leave the choice to torch."""
        return {"fused": True} if fused else {}
