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
"""Smallest usable loss scale. Below it, gradients overflow at any scale: fp16 cannot train this model."""


class Divergence(NamedTuple):
    """Reason why training cannot continue."""

    code: str
    reason: str
    steps_in_a_row: int = 0
    """Number of consecutive steps that were all skipped, if that is the reason; else 0."""


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
        """Number format that floating-point inputs are cast to; None if they are not cast."""
        return torch.float64 if self.name == "64-true" else None

    @property
    def mixed_dtype(self) -> torch.dtype | None:
        """The lower of the two formats of mixed precision; None with a single format."""
        return self._autocast_dtype

    def autocast(self) -> Any:
        """Return the context of the forward pass."""
        if self._autocast_dtype is None:
            return AS_IT_IS
        return torch.autocast(self._device_type, dtype=self._autocast_dtype)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss to call `backward` on."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def step(
        self,
        optimizer: Optimizer,
        parameters: Iterable[torch.nn.Parameter],
        max_grad_norm: float | None,
        clip: Callable[[Iterable[torch.nn.Parameter], float], torch.Tensor] = clip_grad_norm_,
    ) -> torch.Tensor | None:
        """Unscale and clip the gradients, then update the weights.

        With a scaler, the update is skipped if a gradient is not finite. Gradients are equal on all ranks by then, so
        all of them skip it together.

        Returns:
            A number on the device that is not 0 if the update was skipped; None without a scaler, which never skips.
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
        # the value that the scaler itself decided by, and resets in `update`
        left_out = found_inf(self._scaler, optimizer)
        self._scaler.update()
        self._skipped += left_out
        self._steps_since_check += 1
        return left_out

    def note_grad_norm(self, norm: torch.Tensor) -> None:
        """Keep the gradient norm of a step that was clipped elsewhere."""
        self._grad_norm = norm

    def metrics(self) -> dict[str, float]:
        """Return the newest gradient norm before clipping, and the number of skipped steps. Waits for the device."""
        values = {}
        if self._grad_norm is not None:
            norm = float(self._grad_norm)
            if self._scaler is None or isfinite(norm):  # the norm of a skipped step says nothing
                values["grad_norm"] = norm
        if self._scaler is not None:
            values["skipped_steps"] = float(self._skipped)
        return values

    def check(self, loss: float) -> "Divergence | None":
        """Return the reason why training cannot continue; None if it can.

        With a scaler, the mean loss leaves out values of skipped steps that were not finite: those steps changed no
        weight. If all of several steps were skipped, the loss does not recover.

        Args:
            loss: mean loss of the steps since the last check.
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
        """Return the state that a resumed run needs: the scaler's state and the counters; empty without a scaler."""
        if self._scaler is None:
            return {}
        return {
            **self._scaler.state_dict(),
            "skipped_steps": int(self._skipped),
            "skipped_steps_at_check": self._skipped_at_check,
            "steps_since_check": self._steps_since_check,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the values of `state_dict`."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)
            self._skipped.fill_(state["skipped_steps"])
            self._skipped_at_check = state["skipped_steps_at_check"]
            self._steps_since_check = state["steps_since_check"]
