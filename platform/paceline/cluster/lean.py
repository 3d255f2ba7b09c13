"""Ray Train without those of its helper processes that our runs have no use for.

Each costs several seconds of imports, which on a machine of few cores is most of the time from the command to the first
step. The names are Ray's inner ones: where a version of Ray has others, everything runs as usual, only later.
"""

from contextlib import suppress
from typing import Any

import ray.train.torch

UNUSED = "DatasetsCallback"
"""Starts an actor that hands out shards of Ray Data sets; ours are torch's."""
ONLY_FOR_CLUSTERS = "PlacementGroupCleanerCallback"
"""Starts an actor that frees what a dead controller held; a private Ray ends together with its driver. Without Ray's
dashboard, which a private one lacks, it would only wait for it."""


class LeanTorchTrainer(ray.train.torch.TorchTrainer):  # type: ignore[misc]
    """A TorchTrainer that leaves out what is not used."""

    private = False
    """Whether Ray was started for this process alone."""

    def _create_default_callbacks(self) -> list[Any]:
        left_out = {UNUSED, ONLY_FOR_CLUSTERS} if self.private else {UNUSED}
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if type(callback).__name__ not in left_out]


def start_coordinator() -> None:
    """Start the actor that Ray Train's controller would start, and wait for, once it has come up itself."""
    with suppress(ImportError):
        from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
            get_or_create_autoscaling_coordinator,
        )

        get_or_create_autoscaling_coordinator()
