"""Every metric and tag that Paceline writes: its key, its unit and what it says."""

# --- metrics -----------------------------------------------------------------------------------------------------

TRAIN_LOSS = "train/loss"
"""Mean loss per unit of weight (sample, token) over the global batches since the last point; without infinite losses of
steps that `16-mixed` left out."""

VAL_LOSS = "val/loss"
"""Mean loss per unit of weight over the whole validation set."""

VAL_ACCURACY = "val/accuracy"
"""Share of validation samples that are classified right, 0 to 1. Other tasks have other metrics, see `val_metric`."""

LR = "lr"
"""Learning rate of the optimizer step."""

ADASCALE_GAIN = "adascale_gain"
"""What the schedule's learning rate was multiplied by at the optimizer step; only with `lr_scaling: adascale`."""

EPOCH = "epoch"
"""Passes over the training set so far; a fraction within an epoch."""

SAMPLES_PER_SECOND = "samples_per_second"
"""Training samples a second over all workers, since the last point; evaluation and checkpoints are not counted."""

STEP_SECONDS = "step_seconds"
"""Mean duration of an optimizer step since the last point, in seconds."""

DATA_WAIT_FRACTION = "data_wait_fraction"
"""Share of the step's time that the worker waited for data, 0 to 1."""

PEAK_MEMORY_BYTES = "peak_memory_bytes"
"""Largest memory that tensors took on one worker's device since the start, in bytes (of the process on CPU)."""

GRAD_NORM = "grad_norm"
"""L2 norm of the step's whole gradient before clipping; only with `trainer.max_grad_norm`."""

SKIPPED_STEPS = "skipped_steps"
"""Optimizer steps left out since the start of the run because a gradient overflowed; only with `16-mixed`."""


def val_metric(name: str) -> str:
    """Key of a task's own validation metric: `accuracy` becomes `val/accuracy`."""
    return f"val/{name}"


# On a sweep's own run. The step of these points is the number of trials that have ended.


def best_metric(name: str) -> str:
    """Key of the best value of a metric among the trials so far, in that metric's unit: `best/val/accuracy`."""
    return f"best/{name}"


TRIAL_COUNTS = ("finished", "failed", "pruned")
"""How trials end, as they are counted: `failed` has those that ran out of memory or diverged, too."""


def trials_metric(ending: str) -> str:
    """Key of the number of trials that have ended so, one of `TRIAL_COUNTS`: `trials/finished`."""
    if ending not in TRIAL_COUNTS:
        raise ValueError(f"trials are counted as {', '.join(TRIAL_COUNTS)}, not as {ending!r}")
    return f"trials/{ending}"


# --- tags --------------------------------------------------------------------------------------------------------

RUN_ID = "paceline.run_id"
"""The run's identity: an MLflow run is found again by it, so that a resumed run goes on in the same one."""

NAME = "paceline.name"
"""The config's `name`."""

KIND = "paceline.kind"
"""`sweep` for a sweep's own run, `trial` for one of its trials, `run` for any other."""

SWEEP_ID = "paceline.sweep_id"
"""The sweep that a `sweep` or `trial` belongs to."""

TRIAL_ID = "paceline.trial_id"
"""Which of the sweep's trials it is, such as `0007`."""

TRIAL_STATE = "paceline.trial_state"
"""How the trial stands: `running`, `paused`, `finished`, `pruned`, `failed`, `oom`, `diverged`."""

PARENT_RUN = "mlflow.parentRunId"
"""MLflow's id of the sweep's own run: MLflow shows its trials under it."""

COMMAND = "paceline.command"
"""The command line that started the run."""

STATUS_REASON = "paceline.status_reason"
"""Why the run ended as it did; absent when it finished."""

CHANGED_PARAMS = "paceline.changed_params"
"""Params that differ on a resumed run, or were changed while it went on, old and new value: MLflow's params cannot be
changed."""

NOT_RECORDED = "paceline.not_recorded"
"""What MLflow refused to store and why; the run's journal still has it."""

DIVERGED = "diverged"
"""The first metric that became infinite, and at which step. MLflow cannot store an infinite value."""

NOTE = "mlflow.note.content"
"""Markdown that MLflow shows on the run's page."""

GIT_COMMIT = "mlflow.source.git.commit"
"""Full hash of the commit that the working folder was at."""

GIT_BRANCH = "mlflow.source.git.branch"
"""Branch of that commit; absent when detached."""

GIT_DIRTY = "mlflow.source.git.dirty"
"""`true` when tracked files differed from the commit."""

SOURCE_NAME = "mlflow.source.name"
"""What was started: the command line."""

SOURCE_TYPE = "mlflow.source.type"
"""Always `LOCAL`: MLflow shows the source name for it."""

USER = "mlflow.user"
"""Login name of whoever started the run."""

DEVICE = "paceline.device"
"""What the workers compute on: `cpu`, or the GPU's name."""
FOUND_SIZES = {
    "paceline.micro_batch_size": "micro_batch_size",
    "paceline.gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""What was found for `data.micro_batch_size: max`, by tag; absent with a number, whose params say it all."""
HOST = "paceline.host"
"""Name of the machine that the run was started on."""

OS = "paceline.os"
"""Operating system and processor architecture of that machine."""

CPU_COUNT = "paceline.cpu_count"
"""Cores that the starting process may use."""


def version_tag(package: str) -> str:
    """Tag that holds the version of a package, such as `paceline.version.torch`."""
    return f"paceline.version.{package}"
