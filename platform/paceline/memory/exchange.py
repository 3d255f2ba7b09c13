"""Memory of DDP beside the model: the buckets in which gradients travel."""

import torch
from torch import nn

from paceline.config.sections import ParallelConfig

COPIES = {"none": 0.0, "bf16": 0.5, "fp16": 0.5, "powersgd": 2.0}
"""What a `comm_hook` holds at most, in sizes of the gradients: their compressed form; or what was left out of the step
before, and a copy to work on."""


class Buckets:
    """Buckets for all gradients; with bucket views, these live in there once they are exchanged."""

    def __init__(self, parallel: ParallelConfig, parameters: list[nn.Parameter]) -> None:
        self.exchanging = False
        """Whether backward now exchanges gradients, or only adds them up."""
        self._views = {parameter: torch.empty_like(parameter) for parameter in parameters}
        total = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        self.tensors = [
            *self._views.values(),
            torch.empty(round(COPIES[parallel.comm_hook] * total), dtype=torch.uint8),
        ]
        if parallel.gradient_as_bucket_view:
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(self._exchange)  # type: ignore[no-untyped-call]

    def _exchange(self, parameter: torch.Tensor) -> None:
        if self.exchanging:
            parameter.grad = self._views[parameter]  # type: ignore[index]
