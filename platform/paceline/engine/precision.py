"""Number formats: one object owns autocast, loss scaling, clipping, the optimizer's step and the scaler's state."""

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

AS_IT_IS = nullcontext()

MINIMUM_SCALE = 2.0**-14
"""A loss scale below this means that gradients overflow whatever is done: fp16 cannot train this model."""


class Precision:
    """One of `64-true`, `32-true`, `16-mixed`, `bf16-mixed` on one kind of device.

    Raises:
        ValueError: `16-mixed` away from CUDA.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "16-mixed" and device.type != "cuda":
            raise ValueError("16-mixed needs a CUDA device; on CPU use bf16-mixed")
        self.name = name
        self.parameter_dtype = torch.float64 if name == "64-true" else torch.float32
        self._device_type = device.type
        self._autocast_dtype = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}.get(name)
        self._scaler = torch.amp.GradScaler(device.type) if name == "16-mixed" else None

    @property
    def input_dtype(self) -> torch.dtype | None:
        """What floating inputs are cast to; None leaves them alone."""
        return torch.float64 if self.name == "64-true" else None

    def autocast(self) -> Any:
        """The context of the forward pass."""
        if self._autocast_dtype is None:
            return AS_IT_IS
        return torch.autocast(self._device_type, dtype=self._autocast_dtype)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call `backward` on."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def step(self, optimizer: Optimizer, parameters: Iterable[torch.nn.Parameter], max_grad_norm: float | None) -> None:
        """Unscale and clip the gradients, then update the weights.

        With a scaler the update is left out when a gradient is not finite; gradients are equal on all ranks by then,
        so all of them leave it out together.
        """
        if max_grad_norm is not None:
            if self._scaler is not None:
                self._scaler.unscale_(optimizer)
            clip_grad_norm_(parameters, max_grad_norm)
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()

    def check(self, loss: float) -> str | None:
        """Why training cannot go on, given a loss that has just been read; None when it can."""
        if self._scaler is not None:
            scale = self._scaler.get_scale()
            return f"the fp16 loss scale fell to {scale:g}" if scale < MINIMUM_SCALE else None
        finite = loss == loss and abs(loss) != float("inf")
        return None if finite else f"the training loss is {loss}"

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the scaler's state, or nothing."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a saved scaler."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)
