"""The user's own optimizer, by import path."""

import inspect
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator

from paceline.config.imports import Called, Imported
from paceline.errors import UnusableCode
from paceline.optimizers.base import OptimizerConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class CalledOptimizerConfig(Called, OptimizerConfig):
    """A callable `build(param_groups, lr=..., **args) -> torch.optim.Optimizer`, such as an optimizer's class.

    `param_groups` is a list of mappings with `params` and what differs from the optimizer's defaults: `lr` and
    `weight_decay`.
    """

    lr: Annotated[float, Field(gt=0, le=1e6)] = 1e-3
    """Learning rate at `base_batch_size`, in (0, 10^6]. Passed to the call as `lr`."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Decay of the weights, 0 to 10^6. 0: not passed, so that the optimizer's own default counts."""

    @field_validator("args")
    @classmethod
    def _lr_is_a_field(cls, args: dict[str, Any]) -> dict[str, Any]:
        if "lr" in args:
            raise ValueError("lr is passed from optimizer.lr: write it there")
        return args

    def build(
        self, parameters: "Mapping[str, nn.Parameter]", lr: float, fused: bool, model: "nn.Module | None" = None
    ) -> "Optimizer":
        """Call the user's code.

        Raises:
            UnusableCode: it returned no optimizer, or one that does not fit the training loop.
        """
        from torch.optim import Optimizer

        assert not fused, "a fused kernel is asked for in args"
        given = self.grouped(parameters, lr)
        groups = given if given and isinstance(given[0], dict) else [{"params": given}]
        if self.weight_decay:
            groups = [{"weight_decay": self.weight_decay, **group} for group in groups]
        optimizer = self.call(groups, lr=lr)
        require_usable(optimizer, parameters.values(), self.chosen("optimizer"))
        assert isinstance(optimizer, Optimizer)
        return optimizer

    def excluded_options(self) -> dict[str, Any]:
        """No decay, whatever the optimizer's default is."""
        return {"weight_decay": 0.0}


class ImportedOptimizerConfig(Imported, CalledOptimizerConfig):
    """`path` leads to a callable `build(param_groups, lr=..., **args) -> torch.optim.Optimizer`, such as
    `torch.optim:RAdam`."""


def require_usable(optimizer: Any, parameters: "Iterable[nn.Parameter]", maker: str) -> None:
    """Check what code outside of Paceline returned as an optimizer.

    Args:
        parameters: those that it may hold.
        maker: what returned it, for messages.

    Raises:
        UnusableCode: it is not an optimizer, or one that does not fit the training loop.
    """
    from torch.optim import Optimizer

    if not isinstance(optimizer, Optimizer):
        message = f"{maker} returned {type(optimizer).__name__}, not a torch.optim.Optimizer"
        raise UnusableCode(message, "not-an-optimizer")
    _require_own_parameters(optimizer, parameters, maker)
    _require_learning_rates(optimizer, maker)
    _require_plain_steps(optimizer, maker)


def _require_own_parameters(optimizer: "Optimizer", parameters: "Iterable[nn.Parameter]", chosen: str) -> None:
    own = {id(parameter) for parameter in parameters}
    foreign = [each for group in optimizer.param_groups for each in group["params"] if id(each) not in own]
    if foreign:
        raise UnusableCode(
            f"{chosen} holds {len(foreign)} tensors that are not parameters of the model. Build the optimizer from the "
            "parameter groups that it is given",
            "foreign-parameters",
            count=len(foreign),
        )


def _require_learning_rates(optimizer: "Optimizer", chosen: str) -> None:
    rates: list[Any] = [group.get("lr") for group in optimizer.param_groups]
    wrong = [rate for rate in rates if not isinstance(rate, Real) and getattr(rate, "ndim", 1) != 0]
    if wrong:
        raise UnusableCode(
            f"{chosen}: a parameter group has the learning rate {wrong[0]!r}, which no schedule can change. Use an "
            "optimizer with a number for lr in each group",
            "no-learning-rate",
        )


def _require_plain_steps(optimizer: "Optimizer", chosen: str) -> None:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UnusableCode(
            f"{chosen}: its step() needs a closure that computes the loss again, which the training loop does not "
            "have. Use an optimizer whose step() works without",
            "closure-required",
        )
