"""The form of an optimizer's state that torch's fused kernels rely on, and do not check."""

import torch
from torch.optim import SGD, Optimizer

from paceline.optimizers._several import members_of


def complete_state(optimizer: Optimizer) -> None:
    """Bring the state into the form that the kernels assume. Call it once built, and after loading a state.

    The kernels read the memory of parameter and state in the same order, so both need one layout (such as channels
    last), which a file does not keep. SGD's kernel takes either all momentum buffers or none: it fails if a parameter
    gets its first gradient later than others, and it reads uninitialised memory if fp16 skips the first step. A buffer
    of zeros gives the same first step as a missing buffer.
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
    """Return True if the kernels can update a parameter: it is floating point and has no gaps in memory."""
    return parameter.is_floating_point() and bool(torch.ops.aten.is_non_overlapping_and_dense(parameter))
