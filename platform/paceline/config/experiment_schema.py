"""Sections of an experiment's config. `experiment` loads and checks them."""

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
    # Fields that all components of a kind share; callbacks and tasks share none. Their packages know the other methods,
    # see `Component.of`.
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
    """Fields of an `ExperimentConfig`. Checks take this class; only `ExperimentConfig` runs them."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Names the run within its storage: 1 to 100 letters, digits, `_`, `-` and `.`, a letter or digit first."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Seed of initial weights, data order and augmentation, 0 to 2^63 - 1."""
    task: TaskSection = Field(default_factory=lambda: _default("task", "classification"), validate_default=True)
    """Task to learn: the loss and the metrics."""
    model: ModelSection
    """The network."""
    data: DataSection
    """The training and validation sets, and how they are loaded."""
    optimizer: OptimizerSection = Field(default_factory=lambda: _default("optimizer", "sgd"), validate_default=True)
    """The update rule, its learning rate and the scaling of the learning rate with the batch size."""
    lr_scheduler: LRSchedulerSection = Field(
        default_factory=lambda: _default("lr_scheduler", "constant"), validate_default=True
    )
    """Learning-rate schedule over the training."""
    metrics: list[MetricConfig] = Field(default_factory=list)
    """Further metrics of the evaluation, each computed over the whole set and all workers."""
    callbacks: list[CallbackSection] = Field(default_factory=list)
    """Callbacks, run between optimizer steps in the given order."""
    trainer: TrainerConfig = TrainerConfig()
    """Length, precision, accumulation and the techniques of the training step."""
    parallel: ParallelConfig = ParallelConfig()
    """Parallelism strategy over the workers, and its settings."""
    scaling: ScalingConfig = ScalingConfig()
    """Number of workers, and the resources of each."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Intervals at which the training state is saved, and number of checkpoints that are kept."""
    storage: StorageConfig = Field(default_factory=StorageConfig)
    """Storage of runs and their checkpoints."""
    tracking: TrackingConfig = TrackingConfig()
    """MLflow store that the run is recorded in."""
    sweep: SweepConfig | None = None
    """Search space and settings of `paceline sweep`; ignored by `paceline train`. `null`: no sweep."""
    scale: ScaleConfig | None = None
    """Target and settings of `paceline scale`; ignored by `train` and `sweep`. `null`: the defaults of the section."""
    tuneup: TuneupConfig | None = None
    """Settings of `paceline tuneup`; ignored by `train` and `sweep`. `null`: the defaults of the section."""


def _default(section: str, name: str) -> Any:
    return components(COMPONENT_SECTIONS[section])[name](name=name)  # type: ignore[call-arg]
