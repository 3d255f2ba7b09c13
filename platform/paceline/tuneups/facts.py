"""Facts of the model, the data and the hardware that decide which techniques apply."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.batch_scaling.earlier_study import EarlierStudy

LOOK = "paceline.tuneups.job_execution:look"
"""Job that finds them."""


@dataclass(frozen=True)
class TuneupFacts:
    """Facts found by the workers that will train."""

    device_type: str
    """`cpu` or `cuda`."""
    world_size: int
    cores: int
    """Number of threads of a worker."""
    parameters: int
    has_convolutions: bool
    """True if the model has weights of four dimensions, whose memory layout can be chosen."""
    redundant_biases: int
    """Number of biases of convolutions whose output is used only by batch normalisation."""
    blocks: int
    """Number of repeated parts of the model, which can be checkpointed or compiled one by one."""
    is_sliced: bool
    """True if the data set returns whole batches from memory."""
    train_samples: int
    validation_samples: int
    normalises_batches: bool = False
    """True if the model's output for a sample depends on the other samples of its micro batch."""
    device: str = ""
    """Name of the GPU, or of the processor."""
    device_memory_bytes: int = 0
    """Memory of the GPU, in bytes; 0 on CPU."""
    usable_cores: int = 0
    """Number of cores that a worker may use, regardless of its number of threads."""
    shares_machines: bool = False
    """True if others may use the cores that the workers have not reserved, as on a cluster."""
    software: str = ""
    """Versions of the software that the speed depends on."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Digests of the user code by name, see `own_digests`."""
    scale_study: EarlierStudy | None = None
    """Scale study of the same config, from which batch sizes and their learning-rate rules are taken."""
