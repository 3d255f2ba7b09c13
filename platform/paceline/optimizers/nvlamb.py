"""NVIDIA's variant of LAMB."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from paceline.optimizers.lamb import LayerwiseAdamConfig


class NVLAMBConfig(LayerwiseAdamConfig):
    """LAMB over the gradient divided by its norm over the whole model, as in NVIDIA's training of BERT
    (developer.nvidia.com/blog/pretraining-bert-with-layer-wise-adaptive-learning-rates).

    `trainer.max_grad_norm` has no effect with it. With `weight_decay_exclude: norms_and_biases` the excluded parameters
    count in that norm, and take plain Adam steps.
    """

    prenormalize: ClassVar[bool] = True
    needs_whole_gradient: ClassVar[bool] = True
    no_effect: ClassVar[Mapping[str, str]] = {"trainer.max_grad_norm": "nvlamb divides by the gradient's norm anyway"}
    name: Literal["nvlamb"]
    """Selects this optimizer."""
