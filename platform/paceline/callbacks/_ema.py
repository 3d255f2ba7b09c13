"""The callback behind `ema`."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from paceline._compat.torch import foreach_lerp_
from paceline.callbacks.callback import Callback, TrainContext


class EMA(Callback):
    """Holds a second copy of the trained weights on the device, in the layout of the parameters (shards under fsdp)."""

    def __init__(self, decay: float, warmup: bool) -> None:
        self.decay = decay
        self.warmup = warmup
        self.num_updates = 0
        """Steps that are in the average."""
        self._parameters: dict[str, nn.Parameter] = {}
        self._averages: dict[str, torch.Tensor] = {}

    def setup(self, ctx: TrainContext) -> None:
        """Start from the weights."""
        trained = ctx.model.named_parameters()
        self._parameters = {name: each for name, each in trained if each.requires_grad and not each.is_meta}
        self._averages = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def on_step_end(self, ctx: TrainContext) -> None:
        """Take in the weights of this step. No synchronisation with the device."""
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates)) if self.warmup else self.decay
        self.num_updates += 1
        averages = [_local(tensor) for tensor in self._averages.values()]
        foreach_lerp_(averages, [_local(tensor) for tensor in self._parameters.values()], 1 - decay)

    def evaluation_context(self, ctx: TrainContext) -> AbstractContextManager[None]:
        """Evaluate with the average."""
        return self._swapped()

    def state_dict(self) -> dict[str, Any]:
        """The average by parameter name, and the number of steps in it."""
        return {"num_updates": self.num_updates, "average": dict(self._averages)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        self.num_updates = state["num_updates"]
        for name, tensor in self._averages.items():
            tensor.copy_(state["average"][name])

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # values rather than memory: FSDP and CUDA graphs hold on to the parameters' memory
        for name, parameter in self._parameters.items():
            weights = parameter.detach().clone()
            parameter.copy_(self._averages[name])
            self._averages[name].copy_(weights)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a DTensor, or the tensor itself; shares its memory."""
    to_local = getattr(tensor, "to_local", None)
    return tensor.detach() if to_local is None else to_local().detach()
