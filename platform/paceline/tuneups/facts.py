"""Facts of the model, the data and the hardware that decide which techniques apply."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LOOK = "paceline.tuneups.job_execution:look"
"""Job that finds them."""


@dataclass(frozen=True)
class TuneupFacts:
    """Found by the workers that are going to train."""

    device_type: str
    """`cpu` or `cuda`."""
    world_size: int
    cores: int
    """Threads of a worker."""
    parameters: int
    has_convolutions: bool
    """Whether there are weights of four dimensions, whose layout can be chosen."""
    redundant_biases: int
    """Biases of convolutions that go into batch normalisation alone."""
    blocks: int
    """Repeated parts of the model, which can be checkpointed or compiled one by one."""
    is_sliced: bool
    """Whether the data set gives whole batches out of memory."""
    train_samples: int
    validation_samples: int
    normalises_batches: bool = False
    """Whether what the model computes for a sample depends on the others of its micro batch."""
    device: str = ""
    """Name of the GPU, or of the processor."""
    device_memory_bytes: int = 0
    """Of a GPU; 0 on CPU."""
    usable_cores: int = 0
    """Cores that a worker may use, whatever number of threads it has."""
    software: str = ""
    """Versions of what the speed depends on."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Digests of the user code by name, see `own_digests`."""
