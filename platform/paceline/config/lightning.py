"""Facts about LightningModules for checks of the config; neither lightning nor torch is imported."""

from paceline.config.experiment_schema import ExperimentSchema
from paceline.config.imports import LIGHTNING_TASK, Called, Imported

LIGHTNING_TASKS = (LIGHTNING_TASK, "paceline.adapters.lightning:LightningTask")
"""Import paths of the task for a LightningModule."""
OWN_OPTIMIZER = "task.args.configure_optimizers"
BECAUSE = f"{OWN_OPTIMIZER} is true, so the module's own optimizer is used"

HINT = f'write task: {{path: "{LIGHTNING_TASK}"}}'


def is_lightning_module(kind: type) -> bool:
    """True if a class derives from the LightningModule of `lightning` or `pytorch_lightning`."""
    return any(is_lightning_base(each) for each in kind.__mro__)


def is_lightning_base(kind: type, name: str = "LightningModule") -> bool:
    """True for that class itself, or another one of lightning with this name."""
    return kind.__name__ == name and kind.__module__.split(".")[0] in ("lightning", "pytorch_lightning")


def has_own_optimizer(kind: type) -> bool:
    """True if the class of a LightningModule, or a base of its own, defines `configure_optimizers`."""
    own = next((each for each in kind.__mro__ if "configure_optimizers" in vars(each)), None)
    return own is not None and own.__module__.split(".")[0] not in ("lightning", "pytorch_lightning")


def has_other_task(config: ExperimentSchema, model: type) -> bool:
    """True if a shipped task would train a LightningModule, whose `training_step` is then not called."""
    return is_lightning_module(model) and not isinstance(config.task, Called)


def uses_own_optimizer(config: ExperimentSchema) -> bool:
    """True if the config asks for the optimizer of the LightningModule."""
    task = config.task
    return (
        isinstance(task, Imported)
        and task.import_path in LIGHTNING_TASKS
        and task.args.get("configure_optimizers") is True
    )


def unused_sections(config: ExperimentSchema) -> set[str]:
    """The sections that say nothing about a run, since its LightningModule decides instead."""
    return {"optimizer"} if uses_own_optimizer(config) else set()
