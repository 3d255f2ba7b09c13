"""fp16's loss scaling without CUDA."""

import torch

from paceline.engine.precision import Precision


def scaled(precision: str, **options: float) -> type[Precision]:
    """fp16's scaler, which needs CUDA otherwise, over another number format."""

    class Scaled(Precision):
        def __init__(self, name: str, device: torch.device) -> None:
            super().__init__(precision, device)
            self._scaler = torch.amp.GradScaler("cpu", **options)  # type: ignore[arg-type]

    return Scaled
