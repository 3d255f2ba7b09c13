"""Memory of DDP in addition to the model: the buckets in which gradients are exchanged."""

import torch
from torch import nn

from paceline.config.sections import ParallelConfig

COPIES = {"none": 0.0, "bf16": 0.5, "fp16": 0.5, "powersgd": 2.0}
"""Upper limit of the memory of each `comm_hook`, as a multiple of the gradients' size. Casting hooks hold the
compressed gradients. PowerSGD holds the error of the previous step, and a working copy."""


class Buckets:
    """Buckets for all gradients. With bucket views, gradients are views of the buckets once they are exchanged."""

    def __init__(self, parallel: ParallelConfig, parameters: list[nn.Parameter]) -> None:
        self.exchanging = False
        """True if the backward pass exchanges gradients, False if it only accumulates them."""
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
