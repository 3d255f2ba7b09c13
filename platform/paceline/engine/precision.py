"""Number formats: one object owns autocast, loss scaling, clipping, the optimizer's step and the scaler's state."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from paceline._compat.torch import found_inf

AS_IT_IS = nullcontext()

MINIMUM_SCALE = 2.0**-14
"""A loss scale below this means that gradients overflow whatever is done: fp16 cannot train this model."""


class Divergence(NamedTuple):
    """Why training cannot continue."""

    code: str
    reason: str
    steps_in_a_row: int = 0
    """Steps that were all left out, when that is the reason."""


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
        # both stay on the device until they are read
        self._grad_norm: torch.Tensor | None = None
        self._skipped = torch.zeros((), dtype=torch.float64, device=device)
        self._skipped_at_check = 0
        self._steps_since_check = 0

    @property
    def input_dtype(self) -> torch.dtype | None:
        """What floating inputs are cast to; None leaves them alone."""
        return torch.float64 if self.name == "64-true" else None

    @property
    def mixed_dtype(self) -> torch.dtype | None:
        """The lower of the two formats of mixed precision; None where there is one format."""
        return self._autocast_dtype

    def autocast(self) -> Any:
        """The context of the forward pass."""
        if self._autocast_dtype is None:
            return AS_IT_IS
        return torch.autocast(self._device_type, dtype=self._autocast_dtype)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call `backward` on."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def step(
        self,
        optimizer: Optimizer,
        parameters: Iterable[torch.nn.Parameter],
        max_grad_norm: float | None,
        clip: Callable[[Iterable[torch.nn.Parameter], float], torch.Tensor] = clip_grad_norm_,
    ) -> torch.Tensor | None:
        """Unscale and clip the gradients, then update the weights.

        With a scaler the update is left out when a gradient is not finite; gradients are equal on all ranks by then,
        so all of them leave it out together.

        Returns:
            Whether it was left out: a number on the device, not 0 if so. None where no step ever is.
        """
        if self._scaler is not None:
            # without clipping, too: an optimizer that skips steps itself would go through the gradients a second time
            self._scaler.unscale_(optimizer)
        if max_grad_norm is not None:
            self._grad_norm = clip(parameters, max_grad_norm)
        if self._scaler is None:
            optimizer.step()
            return None
        self._scaler.step(optimizer)
        # what the scaler itself went by, and forgets in `update`
        left_out = found_inf(self._scaler, optimizer)
        self._scaler.update()
        self._skipped += left_out
        self._steps_since_check += 1
        return left_out

    def note_grad_norm(self, norm: torch.Tensor) -> None:
        """Keep the gradient norm of a step that was clipped elsewhere."""
        self._grad_norm = norm

    def metrics(self) -> dict[str, float]:
        """The newest step's gradient norm before clipping, and the steps left out so far. Waits for the device."""
        values = {}
        if self._grad_norm is not None:
            norm = float(self._grad_norm)
            if self._scaler is None or isfinite(norm):  # that of a step that was left out says nothing
                values["grad_norm"] = norm
        if self._scaler is not None:
            values["skipped_steps"] = float(self._skipped)
        return values

    def check(self, loss: float) -> "Divergence | None":
        """Why training cannot continue, given the mean loss of the steps since the last check; None when it can.

        With a scaler, the mean is without what was not finite in steps that were left out: these changed nothing.
        If that is every step, and more than one, the loss does not recover.
        """
        if self._scaler is None:
            return None if isfinite(loss) else Divergence("loss-not-finite", f"the training loss is {loss}")
        steps, self._steps_since_check = self._steps_since_check, 0
        skipped = int(self._skipped)
        skipped, self._skipped_at_check = skipped - self._skipped_at_check, skipped
        scale = self._scaler.get_scale()
        if scale < MINIMUM_SCALE:
            return Divergence("loss-scale-collapsed", f"the fp16 loss scale fell to {scale:g}")
        if isfinite(loss) or skipped == steps == 1:
            return None
        row = steps if skipped == steps else 0
        reason = f"the training loss is {loss}" + (f" in {row} steps in a row" if row else "")
        return Divergence("loss-not-finite", reason, row)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the scaler's state and what was counted, or nothing."""
        if self._scaler is None:
            return {}
        return {
            **self._scaler.state_dict(),
            "skipped_steps": int(self._skipped),
            "skipped_steps_at_check": self._skipped_at_check,
            "steps_since_check": self._steps_since_check,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what `state_dict` gave."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)
            self._skipped.fill_(state["skipped_steps"])
            self._skipped_at_check = state["skipped_steps_at_check"]
            self._steps_since_check = state["steps_since_check"]
