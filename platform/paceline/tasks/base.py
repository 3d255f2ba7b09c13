"""A task: model and loss together, so that the engine knows neither images nor text."""

from typing import TYPE_CHECKING, Any, ClassVar

from paceline.config.base import Component
from paceline.tasks.output import TaskOutput as TaskOutput

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks._task import Task as Task


class TaskConfig(Component):
    """Builds a task around a model."""

    evaluation_metrics: ClassVar[tuple[str, ...]] = ()
    """Names of what it reports on a validation set. Empty: not known before."""

    def build(self, model: "nn.Module") -> "Task":
        """The task that trains `model`."""
        raise NotImplementedError


def __getattr__(name: str) -> Any:
    # `Task` derives from torch's Module; configs are checked without torch, so it is imported when asked for.
    if name != "Task":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from paceline.tasks._task import Task

    return Task
