"""An optimizer's state as named tensors and JSON values, whatever containers it is nested in.

Parameters are numbered by their position in the model. The state of parameter 3 is the part `3`: `pack` splits it into
JSON values and tensors, which are saved as `3.<place>`. The part `group3` holds what the optimizer has changed in the
options of the group whose first parameter is 3, the part `extra` everything else.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.engine.layout import WHOLE, Replicated
from paceline.engine.stateful import pack, unpack
from paceline.optimizers._state import complete_state

EXTRA, GROUP = "extra", "group"
STANDARD = ("state", "param_groups")
"""Keys of every optimizer's `state_dict()`."""


def options_of_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """A copy of each parameter group without its parameters and learning rate, which follow from the config."""
    return [
        {key: _copied(value) for key, value in group.items() if key not in ("params", "lr")}
        for group in optimizer.param_groups
    ]


def optimizer_tensors(
    optimizer: Optimizer, group_options: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, torch.Tensor]:
    """Tensors of the optimizer's state, as `<part>.<place>`; see `optimizer_values`."""
    return {
        f"{part}.{name}": tensor
        for part, state in _parts(optimizer, group_options).items()
        for name, tensor in pack(state, _owner(optimizer))[1].items()
    }


def optimizer_values(optimizer: Optimizer, group_options: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """JSON values of the optimizer's state, by part.

    Args:
        group_options: options of the groups as they were built. None: nothing of the groups is saved.

    Raises:
        UnusableCode: the state holds something that can only be pickled.
    """
    return {part: pack(state, _owner(optimizer))[0] for part, state in _parts(optimizer, group_options).items()}


def load_optimizer(
    optimizer: Optimizer,
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, Any],
    layout: Replicated = WHOLE,
    keeps_dtypes: bool = True,
) -> None:
    """Restore what `optimizer_tensors` and `optimizer_values` returned for the optimizer's parameters.

    Args:
        keeps_dtypes: floating tensors keep their saved dtype. False: they take that of their parameter.
    """
    by_part: dict[str, dict[str, torch.Tensor]] = {part: {} for part in values}
    for key, tensor in tensors.items():
        part, _, name = key.partition(".")
        by_part[part][name] = tensor
    groups = optimizer.state_dict()["param_groups"]
    pairs = zip(groups, optimizer.param_groups, strict=True)
    numbered = {n: each for saved, own in pairs for n, each in zip(saved["params"], own["params"], strict=True)}
    state: dict[Any, Any] = {}
    for part, packed in values.items():
        parameter = numbered.get(int(part)) if part.isdigit() else None
        if parameter is not None:
            placed = {name: layout.place(tensor, parameter) for name, tensor in by_part[part].items()}
            state[int(part)] = unpack(packed, placed)
    extra = unpack(values.get(EXTRA, {}), _moved(by_part.get(EXTRA, {}), optimizer))
    saved_groups = [unpack(packed, by_part[part]) for part, packed in values.items() if part.startswith(GROUP)]
    options = [_saved_options(group, saved_groups) for group in groups]
    own = [dict(group) for group in optimizer.param_groups]
    groups = [{**group, **changed} for group, changed in zip(groups, options, strict=True)]
    whole = {**extra.get("rest", {}), "state": {**state, **extra.get("state", {})}, "param_groups": groups}
    optimizer.load_state_dict(whole)
    for group, before, changed in zip(optimizer.param_groups, own, options, strict=True):
        # the config's and not the checkpoint's; torch has put copies in their place
        group.update({key: value for key, value in before.items() if key not in changed})
    for number, saved in state.items():
        parameter = numbered[number]
        optimizer.state[parameter] = _with_saved_dtypes(optimizer.state[parameter], saved, keeps_dtypes)
    complete_state(optimizer)


def _owner(optimizer: Optimizer) -> str:
    return f"the optimizer {type(optimizer).__name__}"


def _parts(optimizer: Optimizer, group_options: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    whole = optimizer.state_dict()
    parts: dict[str, Any] = {str(key): entry for key, entry in whole["state"].items() if isinstance(key, int)}
    for before, group in zip(group_options or (), whole["param_groups"], strict=group_options is not None):
        changed = {
            key: value
            for key, value in group.items()
            if key not in ("params", "lr") and not (key in before and _is_equal(before[key], value))
        }
        if changed:
            parts[f"{GROUP}{min(group['params'])}"] = {"params": group["params"], "options": changed}
    extra = {
        "state": {key: entry for key, entry in whole["state"].items() if not isinstance(key, int)},
        "rest": {key: value for key, value in whole.items() if key not in STANDARD},
    }
    return {**parts, EXTRA: extra} if any(extra.values()) else parts


def _copied(value: Any) -> Any:
    """A copy of what may be changed in place; other objects as they are."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if type(value) is list else value


def _is_equal(before: Any, now: Any) -> bool:
    if before is now:
        return True
    if isinstance(before, torch.Tensor) or isinstance(now, torch.Tensor):
        return isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor) and torch.equal(before, now)
    return type(before) is type(now) and bool(before == now)


def _saved_options(group: Mapping[str, Any], saved: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    first = min(group["params"])
    found: Mapping[str, Any] = next((each["options"] for each in saved if first in each["params"]), {})
    return found


def _moved(tensors: Mapping[str, torch.Tensor], optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Tensors that belong to no parameter, on the parameters' device; single numbers stay on the CPU."""
    parameter: nn.Parameter = optimizer.param_groups[0]["params"][0]
    return {name: tensor.to(parameter.device) if tensor.ndim else tensor for name, tensor in tensors.items()}


def _with_saved_dtypes(loaded: Any, saved: Any, floats: bool, key: Any = None) -> Any:
    """`loaded` with the dtypes of `saved`: torch casts everything but `step` to the dtype of the parameter."""
    if isinstance(saved, torch.Tensor) and isinstance(loaded, torch.Tensor):
        casts = key != "step" and (floats or not saved.is_floating_point()) and saved.dtype != loaded.dtype
        return saved.to(loaded.device) if casts else loaded
    if isinstance(saved, dict) and isinstance(loaded, dict):
        inner = {name: _with_saved_dtypes(loaded[name], saved[name], floats, name) for name in loaded if name in saved}
        return {**loaded, **inner}
    if isinstance(saved, list | tuple) and isinstance(loaded, list | tuple) and len(saved) == len(loaded):
        return type(saved)(_with_saved_dtypes(*pair, floats) for pair in zip(loaded, saved, strict=True))
    return saved if isinstance(saved, str) else loaded  # torch takes text apart
