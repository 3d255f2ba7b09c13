"""Names the parameters in an optimizer's saved state by their place in the model."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer


def number_by_position(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter], numbers: Sequence[int] | None = None
) -> None:
    """Let `optimizer.state_dict()` number the parameters by their position in `parameters`, or by `numbers`.

    Torch numbers them through its groups, so that another grouping would give a saved state to other parameters.
    `load_state_dict` goes by the numbers that it is given, and needs no change.
    """
    positions = {
        id(parameter): position
        for position, parameter in zip(numbers or range(len(parameters)), parameters, strict=True)
    }

    def renumber(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        through_groups = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        numbers = [positions[id(parameter)] for parameter in through_groups]
        groups = [{**group, "params": [numbers[index] for index in group["params"]]} for group in state["param_groups"]]
        return {
            **state,
            "state": {numbers[key] if isinstance(key, int) else key: each for key, each in state["state"].items()},
            "param_groups": groups,
        }

    optimizer.register_state_dict_post_hook(renumber)
