"""Memory of the device: the two trainers of a benchmark are on it together, or one after the other."""

from collections.abc import Mapping

from paceline.config.experiment import ExperimentConfig
from paceline.memory.plan import STATED_ERROR


class DeviceMemory:
    """Memory of a worker's device, and the predicted memory of configs."""

    def __init__(self) -> None:
        self.limit_bytes: int | None = None
        """None: it is not known, and taken for enough."""
        self._sizes: dict[str, int] = {}

    def set_sizes(self, limit_bytes: int | None, sizes: Mapping[str, int]) -> None:
        """Take a prediction.

        Args:
            sizes: bytes by the JSON of a config.
        """
        self.limit_bytes = limit_bytes
        self._sizes = dict(sizes)

    def holds(self, *configs: ExperimentConfig) -> bool:
        """Return True if it surely holds these at once. A config without a prediction counts as the largest of the
        others; without any prediction, everything is tried."""
        if self.limit_bytes is None or not self._sizes:
            return True
        largest = max(self._sizes.values())
        total = sum(self._sizes.get(config.model_dump_json(), largest) for config in configs)
        return total * (1 + STATED_ERROR) <= self.limit_bytes
