"""Micro-batches of this rank, on the device, in canonical order."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from paceline.config.batch_size_schedule import ScheduledSteps
from paceline.engine.loading import BatchLoader
from paceline.engine.order import DataOrder, MicroBatch
from paceline.engine.state import Position


class DataStream(Protocol):
    """Training data of one rank."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of a pass over the data."""

    @property
    def samples_per_epoch(self) -> float:
        """Samples of a pass over the data that are trained on; infinite where that is not known."""

    @property
    def scheduled(self) -> ScheduledSteps | None:
        """The steps where the batch size follows a schedule; None for one batch size."""

    @property
    def wait_seconds(self) -> float:
        """Time spent waiting for data since the start, in seconds."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """JSON values without which a position in the data means nothing."""

    def batches(self, position: Position) -> Iterator[tuple[MicroBatch, Any]]:
        """Micro-batches from a position to the end of its epoch."""

    def epochs(self, samples: int) -> float:
        """Number of passes over the data set that so many samples are."""

    def close(self) -> None:
        """End the loader processes."""


class MapStyleStream:
    """A map-style data set in the order of `DataOrder`."""

    def __init__(self, order: DataOrder, loader: BatchLoader) -> None:
        self.order = order
        self.loader = loader

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of a pass over the data."""
        return self.order.steps_per_epoch

    @property
    def samples_per_epoch(self) -> float:
        """Samples of a pass over the data that are trained on."""
        return self.order.samples_per_epoch

    @property
    def scheduled(self) -> ScheduledSteps | None:
        """The steps where the batch size follows a schedule."""
        return self.order.scheduled

    @property
    def wait_seconds(self) -> float:
        """Time spent waiting for data since the start, in seconds."""
        return self.loader.wait_seconds

    @property
    def identity(self) -> Mapping[str, Any]:
        """JSON values without which a position in the data means nothing."""
        return self.order.identity

    def batches(self, position: Position) -> Iterator[tuple[MicroBatch, Any]]:
        """Micro-batches from a position to the end of its epoch."""
        order = self.order.micro_batches(position.epoch, position.epoch_samples, position.samples)
        return self.loader.load(position.epoch, order)

    def epochs(self, samples: int) -> float:
        """Number of passes over the data set that so many samples are."""
        return self.order.epochs(samples)

    def close(self) -> None:
        """End the loader processes."""
        self.loader.close()
