"""The fields that every learning-rate schedule has in the config: its warmup."""

from typing import Annotated

from pydantic import Field

from paceline.config.base import Component


class LRSchedulerSection(Component):
    """The section `lr_scheduler`, whatever the schedule. At most one of the three warmup fields may be set."""

    warmup_epochs: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Length of the linear warmup in epochs, 0 to 10^6. `null` disables."""
    warmup_steps: Annotated[int, Field(ge=0, le=10**12)] | None = None
    """Length of the linear warmup in optimizer steps, 0 to 10^12. `null` disables."""
    warmup_samples: Annotated[int, Field(ge=0, le=10**15)] | None = None
    """Length of the linear warmup in samples, 0 to 10^15, so that it does not change with the batch. `null`
    disables."""

    def warmup_length(self, steps_per_epoch: float, global_batch_size: int) -> int:
        """The warmup's length in optimizer steps."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        if self.warmup_samples is not None:
            return round(self.warmup_samples / global_batch_size)
        return round((self.warmup_epochs or 0) * steps_per_epoch)
