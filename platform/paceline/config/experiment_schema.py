"""The sections of an experiment, and nothing of how they are loaded and checked: see `experiment`."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from paceline.config.base import Component, Section
from paceline.config.components import COMPONENT_SECTIONS
from paceline.config.metric import MetricConfig
from paceline.config.registry import component_union, components
from paceline.config.scale import ScaleConfig
from paceline.config.sections import (
    CheckpointConfig,
    ParallelConfig,
    ScalingConfig,
    StorageConfig,
    TrackingConfig,
    TrainerConfig,
)
from paceline.config.sweep import SweepConfig
from paceline.config.tuneup import TuneupConfig

if TYPE_CHECKING:
    # The fields that all components of a kind have: callbacks and tasks have none. What else they can do is known to
    # their rooms, see `Component.of`.
    CallbackSection = Component
    TaskSection = Component

    from paceline.config.data import DataSection
    from paceline.config.lr_scheduler import LRSchedulerSection
    from paceline.config.model import ModelSection
    from paceline.config.optimizer import OptimizerSection
else:
    CallbackSection = component_union("paceline.callbacks")
    DataSection = component_union("paceline.data")
    LRSchedulerSection = component_union("paceline.lr_schedulers")
    ModelSection = component_union("paceline.models")
    OptimizerSection = component_union("paceline.optimizers")
    TaskSection = component_union("paceline.tasks")

NAME_PATTERN = r"^[A-Za-z0-9][\w.-]{0,99}$"


class ExperimentSchema(Section):
    """The fields of an `ExperimentConfig`. Checks take this class; only `ExperimentConfig` runs them."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Names the run within its storage: 1 to 100 letters, digits, `_`, `-` and `.`, a letter or digit first."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Seed of initial weights, data order and augmentation, 0 to 2^63 - 1."""
    task: TaskSection = Field(default_factory=lambda: _default("task", "classification"), validate_default=True)
    """What is learned: the loss and the metrics."""
    model: ModelSection
    """The network."""
    data: DataSection
    """The training and validation sets, and how they are loaded."""
    optimizer: OptimizerSection = Field(default_factory=lambda: _default("optimizer", "sgd"), validate_default=True)
    """The update rule, its learning rate and how that follows the batch size."""
    lr_scheduler: LRSchedulerSection = Field(
        default_factory=lambda: _default("lr_scheduler", "constant"), validate_default=True
    )
    """How the learning rate changes over training."""
    metrics: list[MetricConfig] = Field(default_factory=list)
    """Further metrics of the evaluation, each computed over the whole set and all workers."""
    callbacks: list[CallbackSection] = Field(default_factory=list)
    """What happens beside the optimizer steps, in this order."""
    trainer: TrainerConfig = TrainerConfig()
    """Length, precision, accumulation and the techniques of the training step."""
    parallel: ParallelConfig = ParallelConfig()
    """How the work is spread over the workers."""
    scaling: ScalingConfig = ScalingConfig()
    """How many workers there are, and what each one gets."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the training state is saved."""
    storage: StorageConfig = Field(default_factory=StorageConfig)
    """Where runs and their checkpoints are kept."""
    tracking: TrackingConfig = TrackingConfig()
    """Which MLflow store the run is recorded in."""
    sweep: SweepConfig | None = None
    """What `paceline sweep` tries out. `null`, and with `paceline train`: nothing."""
    scale: ScaleConfig | None = None
    """What `paceline scale` looks for, without effect on `train` and `sweep`. `null`: as the defaults of the section
    say."""
    tuneup: TuneupConfig | None = None
    """How `paceline tuneup` measures, without effect on `train` and `sweep`. `null`: as the defaults of the section
    say."""


def _default(section: str, name: str) -> Any:
    return components(COMPONENT_SECTIONS[section])[name](name=name)  # type: ignore[call-arg]
