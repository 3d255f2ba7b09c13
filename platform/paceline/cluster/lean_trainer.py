"""Ray Train without those of its helper processes that our runs have no use for.

Each costs several seconds of imports, which on a machine of few cores is most of the time from the command to the first
step.
"""

import ray.train.torch

from paceline._compat.ray import CLEANER_CALLBACK, DATASETS_CALLBACK, CallbackFilter
from paceline._compat.ray import start_autoscaling_coordinator as start_autoscaling_coordinator

__all__ = ["ONLY_FOR_CLUSTERS", "UNUSED", "LeanTorchTrainer", "start_autoscaling_coordinator"]

UNUSED = DATASETS_CALLBACK
"""Our data sets are torch's, not Ray Data's."""
ONLY_FOR_CLUSTERS = CLEANER_CALLBACK
"""A private Ray ends together with its driver. It has no dashboard, for which this actor would only wait."""


class LeanTorchTrainer(CallbackFilter, ray.train.torch.TorchTrainer):  # type: ignore[misc]
    """A TorchTrainer that leaves out what is not used."""

    private = False
    """Whether Ray was started for this process alone."""

    def unused_callbacks(self) -> set[str]:
        """Dotted paths of the classes to leave out."""
        return {UNUSED, ONLY_FOR_CLUSTERS} if self.private else {UNUSED}
