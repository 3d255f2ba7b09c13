"""The user's own task, by import path."""

from typing import TYPE_CHECKING

from paceline.config.imports import Called, Imported
from paceline.errors import UnusableCode
from paceline.tasks.base import TaskConfig

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks._task import Task


class CalledTaskConfig(Called, TaskConfig):
    """A callable (a `Task` class, say) that takes `model` and `args` and returns a `Task`."""

    def build(self, model: "nn.Module") -> "Task":
        """Call the user's builder.

        Raises:
            UnusableCode: what it returned is not a task.
        """
        from paceline.tasks._task import Task

        task = self.call(model=model)
        if not isinstance(task, Task):
            message = f"{self.chosen('task')} returned {type(task).__name__}, not a paceline.Task"
            raise UnusableCode(message, "not-a-task")
        return task


class ImportedTaskConfig(Imported, CalledTaskConfig):
    """`path` leads to a callable (a `Task` class, say) that takes `model` and `args` and returns a `Task`."""
