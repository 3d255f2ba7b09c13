"""The form of an optimizer's state that torch's fused kernels rely on, and do not check."""

import torch
from torch.optim import SGD, Optimizer

from paceline.optimizers._several import members_of


def complete_state(optimizer: Optimizer) -> None:
    """Bring the state into the form that the kernels take for granted. Call it once built, and after loading a state.

    They go through the memory of parameter and state side by side, so both need one layout (channels last, say), which
    a file does not keep. And SGD's takes either all momentum buffers or none: it fails where a parameter gets its first
    gradient later than others, and starts from whatever was in memory when fp16 leaves the first step out. From zeros
    the first step is the same as from nothing.
    """
    for member in members_of(optimizer):
        if isinstance(member, SGD):
            _fill_momentum(member)
    for parameter, state in optimizer.state.items():
        if isinstance(parameter, torch.Tensor) and isinstance(state, dict):  # an imported optimizer may hold more
            _take_layout(state, parameter)


def _fill_momentum(optimizer: SGD) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["fused"] and group["momentum"] else ():
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)


def _take_layout(state: dict[str, torch.Tensor], parameter: torch.Tensor) -> None:
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
            state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def is_fusable(parameter: torch.Tensor) -> bool:
    """Whether the kernels compute with a parameter as they should: of floating point, and without gaps in memory."""
    return parameter.is_floating_point() and bool(torch.ops.aten.is_non_overlapping_and_dense(parameter))
