"""Configs that ask for the optimizer of the model, so that the section `optimizer` is not used."""

from paceline.config.experiment_schema import ExperimentSchema
from paceline.config.imports import Imported

LIGHTNING_TASK = "paceline.adapters:LightningTask"
LIGHTNING_TASKS = (LIGHTNING_TASK, "paceline.adapters.lightning:LightningTask")
"""Import paths of the task for a LightningModule."""
OWN_OPTIMIZER = "task.args.configure_optimizers"
BECAUSE = f"{OWN_OPTIMIZER} is true, so the module's own optimizer is used"


def uses_own_optimizer(config: ExperimentSchema) -> bool:
    """True if the config asks for the optimizer of the LightningModule."""
    task = config.task
    return (
        isinstance(task, Imported)
        and task.import_path in LIGHTNING_TASKS
        and task.args.get("configure_optimizers") is True
    )
