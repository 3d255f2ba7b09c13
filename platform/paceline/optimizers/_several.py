"""Several optimizers of one task behind the interface of one, for schedules, checkpoints and callbacks."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.optim import Optimizer

from paceline.errors import UnusableCode
from paceline.optimizers._modes import has_modes

MEMBERS = "members"
"""Key in the state of what belongs to no parameter, by optimizer."""


class SeveralOptimizers(Optimizer):
    """Parameter groups and state of all members, in their order.

    Args:
        members: by name; no two hold the same parameter, and their `state_dict()` number the parameters of the whole
            task (`number_by_position`).
    """

    def __init__(self, members: Mapping[str, Optimizer]) -> None:
        # not Optimizer.__init__, which would make groups and a state of its own
        self.members = dict(members)
        self.defaults: dict[str, Any] = {}
        if any(map(has_modes, self.members.values())):
            self.eval = lambda: self._switch("eval")
            self.train = lambda: self._switch("train")

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups themselves, so that a learning rate that is set in one takes effect."""
        return [group for member in self.members.values() for group in member.param_groups]

    @property
    def state(self) -> MutableMapping[torch.Tensor, Any]:  # type: ignore[override]
        """State of each parameter."""
        return _States(self.members)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: a group belongs to one of the members.

        Raises:
            UnusableCode: always.
        """
        raise UnusableCode(
            "parameter groups cannot be added in training. Build them in Task.configure_optimizers",
            "parameter-groups-changed",
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all members."""
        for member in self.members.values():
            member.zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Refuse: the task steps each member.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("several optimizers have no common step: step each of them in Task.training_step")

    def state_dict(self) -> dict[str, Any]:
        """State of all parameters by their number, all groups, and the rest by member."""
        states = {name: member.state_dict() for name, member in self.members.items()}
        whole: dict[str, Any] = {
            "state": {key: each for part in states.values() for key, each in part["state"].items() if _is_number(key)},
            "param_groups": [group for part in states.values() for group in part["param_groups"]],
        }
        rest = {name: found for name, part in states.items() if (found := _rest(part))}
        return {**whole, MEMBERS: rest} if rest else whole

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Give each member its part of what `state_dict` returned."""
        groups = list(state_dict["param_groups"])
        for name, member in self.members.items():
            own, groups = groups[: len(member.param_groups)], groups[len(member.param_groups) :]
            numbers = {number for group in own for number in group["params"]}
            rest = state_dict.get(MEMBERS, {}).get(name, {})
            state = {key: each for key, each in state_dict["state"].items() if key in numbers}
            member.load_state_dict({**rest, "state": {**state, **rest.get("state", {})}, "param_groups": own})

    def _switch(self, mode: str) -> None:
        for member in self.members.values():
            if has_modes(member):
                getattr(member, mode)()


class _States(MutableMapping[torch.Tensor, Any]):
    """The state of each parameter, in the optimizer that updates it."""

    def __init__(self, members: Mapping[str, Optimizer]) -> None:
        self._states = [member.state for member in members.values()]
        self._owners = {
            parameter: member.state
            for member in members.values()
            for group in member.param_groups
            for parameter in group["params"]
        }

    def __getitem__(self, parameter: torch.Tensor) -> Any:
        return self._owners[parameter][parameter]

    def __setitem__(self, parameter: torch.Tensor, state: Any) -> None:
        self._owners[parameter][parameter] = state

    def __delitem__(self, parameter: torch.Tensor) -> None:
        del self._owners[parameter][parameter]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (parameter for state in self._states for parameter in state)

    def __len__(self) -> int:
        return sum(map(len, self._states))


def members_of(optimizer: Optimizer) -> list[Optimizer]:
    """The members of several optimizers; one alone is its own."""
    return list(optimizer.members.values()) if isinstance(optimizer, SeveralOptimizers) else [optimizer]


def type_name(optimizer: Optimizer) -> str:
    """The class of an optimizer, of each member where there are several."""
    if not isinstance(optimizer, SeveralOptimizers):
        return type(optimizer).__name__
    return ", ".join(f"{name}: {type(member).__name__}" for name, member in optimizer.members.items())


def _is_number(key: Any) -> bool:
    return isinstance(key, int)


def _rest(state: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in state.items() if key not in ("state", "param_groups")}
    others = {key: each for key, each in state["state"].items() if not _is_number(key)}
    return {**rest, "state": others} if others else rest
