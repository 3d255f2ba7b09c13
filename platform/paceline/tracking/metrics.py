"""Every metric and tag that Paceline writes: its key, its unit and its meaning."""

import re

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

GLOBAL_BATCH_SIZE = "global_batch_size"
"""Global batch size of the optimizer step's stage, in samples; only with `data.batch_size_schedule`."""

ADASCALE_GAIN = "adascale_gain"
"""Factor of the schedule's learning rate at the optimizer step; only with `lr_scaling: adascale`."""

NOISE_SCALE = "noise_scale"
"""Gradient noise scale in samples (McCandlish et al. 2018, arXiv:1812.06162), over the newest measured steps; only with
`trainer.noise_scale`, from the eighth measured step on."""

NOISE_SCALE_LOW = "noise_scale_low"
"""Lower end of the 95 % interval of `noise_scale`, in samples."""

NOISE_SCALE_HIGH = "noise_scale_high"
"""Upper end of the 95 % interval of `noise_scale`, in samples; missing where none is known."""

EPOCH = "epoch"
"""Passes over the training set so far; a fraction within an epoch."""

VALIDATION_EPOCH = "validation_epoch"
"""Passes over the training set at each evaluation. MLflow plots one metric over another only at steps where both have a
value, and samples 320 points of each. In a long run, hardly any evaluation would be at a sampled step of `epoch`."""

SAMPLES_PER_SECOND = "samples_per_second"
"""Training samples a second over all workers, since the last point; evaluation and checkpoints are not counted."""

SAMPLES_PER_SECOND_OVERALL = "samples_per_second_overall"
"""Training samples a second from the second point to the last one, at the last step: until the first one, things
warm up. A run's result and a sweep's table call it `samples_per_second`. A run with one point has it over that; of a
resumed run it is over the part since then."""

STEP_SECONDS = "step_seconds"
"""Mean duration of an optimizer step since the last point, in seconds."""

DATA_WAIT_FRACTION = "data_wait_fraction"
"""Share of the step's time that the worker waited for data, 0 to 1."""

PEAK_MEMORY_BYTES = "peak_memory_bytes"
"""Largest memory that tensors took on a worker's device since the start, in bytes (of the process on CPU): that of the
worker with the most."""

MEMORY_BYTES = "memory_bytes"
"""Memory that tensors take on a worker's device at the time of the point, in bytes (resident memory of the process on
CPU): that of the worker with the most."""

ENERGY_JOULES = "energy_joules"
"""Energy since the workers began to train, this time, in joules: of all GPUs of the run, or without GPUs of the
processors and memory modules of its machines, whatever else runs on these. Only if all of the devices report it."""

GRAD_NORM = "grad_norm"
"""L2 norm of the step's whole gradient before clipping; only with `trainer.max_grad_norm`."""

SKIPPED_STEPS = "skipped_steps"
"""Optimizer steps left out since the start of the run because a gradient overflowed; only with `16-mixed`."""


def val_metric(name: str) -> str:
    """Key of a task's own validation metric: `accuracy` becomes `val/accuracy`."""
    return f"val/{name}"


def mlflow_key(name: str) -> str:
    """Return the name of a metric or a param as MLflow takes it: letters, digits and `_-. :/`, 250 characters."""
    return re.sub(r"[^\w. :/-]", "_", name)[:250]


def axis_metric(name: str) -> str:
    """Key of an axis of a sweep whose values are numbers, in each trial's record: `axis/optimizer.lr`, from step 0 on.

    MLflow compares params as text; only a metric can be the axis of a chart.

    Args:
        name: the dotted key of the config; what MLflow does not take in a key becomes `_`.
    """
    return mlflow_key(f"axis/{name}")


RANK_FIGURES = ("min", "median", "max")
"""Figures over the ranks' times."""


def rank_seconds(figure: str) -> str:
    """Key of one of `RANK_FIGURES` of the ranks' own time per optimizer step since the last point, in seconds:
    `rank_seconds/max`. Only with more than one rank.

    A rank's own time ends where it has to wait for others: it is that of waiting for data, of the forward passes, and
    of the backward passes but for the last, in which gradients are exchanged. With `fsdp`, `pipeline` and SyncBatchNorm
    the forward passes are exchanges, too, and it is that of the data alone. On a GPU only the last step is looked at.
    """
    if figure not in RANK_FIGURES:
        raise ValueError(f"the ranks' times are reported as {', '.join(RANK_FIGURES)}, not as {figure!r}")
    return f"rank_seconds/{figure}"


HOST_METRICS = (
    "cpu_utilization_percentage",
    "system_memory_usage_megabytes",
    "system_memory_usage_percentage",
    "disk_usage_percentage",
    "disk_usage_megabytes",
    "disk_available_megabytes",
    "network_receive_megabytes",
    "network_transmit_megabytes",
)
"""State of each machine every few seconds, by whatever program it is used, under MLflow's names: of its cores (0
to 100 of all of them, as a mean since the last point), its memory, the disk of its root folder, and the megabytes (10^6
bytes) that went through its network since the training began."""

GPU_METRICS = (
    "memory_usage_percentage",
    "memory_usage_megabytes",
    "utilization_percentage",
    "power_usage_watts",
    "power_usage_percentage",
    "temperature_celsius",
    "clock_megahertz",
)
"""State of each of the run's GPUs every few seconds, under MLflow's names as far as it has them: the memory that
is taken, by whatever program, the share of the time in which it computed, power in watts and as a share of its limit,
temperature, and clock of its processors."""


SYSTEM = "system/"
"""Prefix of the keys of machines and GPUs."""


def system_metric(name: str, node: str = "") -> str:
    """Key of one of `HOST_METRICS`, or of a name by `gpu_metric`: `system/cpu_utilization_percentage`. MLflow shows
    these keys by themselves.

    Args:
        node: name of the machine; empty when the run has only one.
    """
    return f"{SYSTEM}{node}/{name}" if node else f"{SYSTEM}{name}"


def gpu_metric(number: int, name: str) -> str:
    """Name of one of `GPU_METRICS` of a GPU: `gpu_0_utilization_percentage`.

    Args:
        number: as `nvidia-smi` counts the GPUs of the machine, those that are not the run's included.
    """
    if name not in GPU_METRICS:
        raise ValueError(f"of GPUs {', '.join(GPU_METRICS)} are reported, not {name!r}")
    return f"gpu_{number}_{name}"


# On a sweep's own run. The step of these points is the number of trials that have ended.


def best_metric(name: str) -> str:
    """Key of the best value of a metric among the trials so far, in that metric's unit: `best/val/accuracy`."""
    return f"best/{name}"


TRIAL_COUNTS = ("finished", "failed", "pruned")
"""Endings of trials, as they are counted: `failed` has those that ran out of memory or diverged, too."""


def trials_metric(ending: str) -> str:
    """Key of the number of trials that have ended so, one of `TRIAL_COUNTS`: `trials/finished`."""
    if ending not in TRIAL_COUNTS:
        raise ValueError(f"trials are counted as {', '.join(TRIAL_COUNTS)}, not as {ending!r}")
    return f"trials/{ending}"


# On the run of a tune-up. Each is logged once, at step 0.

SCALE_CRITICAL_BATCH = "scale/critical_batch_size"
"""Critical batch size in samples, of a scale study."""

SCALE_NOISE = "scale/noise_scale"
"""Gradient noise scale in samples, of a scale study; the step is the number of samples trained on before."""

SCALE_SPEEDUP = "scale/speedup"
"""Seconds to the target of the config as it is over those of the recommendation, as verified by a scale study."""

SCALE_SAMPLES_SPENT = "scale/samples_spent"
"""Training samples that a scale study has used."""

TUNEUP_SPEEDUP = "tuneup/speedup"
"""Samples a second with all recommended changes, over those of the config as it was."""


def speedup_metric(name: str) -> str:
    """Key of the samples a second with one technique over those without: `tuneup/speedup/cache-memory`.

    What MLflow takes in no name, such as the plus of `bf16 + compile`, becomes an underscore.
    """
    return f"{TUNEUP_SPEEDUP}/{re.sub(r'[^A-Za-z0-9_. -]', '_', name)}"


def split_metric(part: str) -> str:
    """Key of the share of a step's time that a part of it takes with the original config, 0 to 1:
    `tuneup/split/data`."""
    return f"tuneup/split/{part}"


def recommended_split_metric(part: str) -> str:
    """Key of the same share with the recommended config, of that config's step: `tuneup/recommended_split/data`."""
    return f"tuneup/recommended_split/{part}"


COSTS = (
    "core_seconds",
    "gpu_seconds",
    "price",
    "joules",
    "to_target_core_seconds",
    "to_target_gpu_seconds",
    "to_target_price",
    "to_target_joules",
)
"""Cost of a run or a sweep, all launches together: time of cores or GPUs in seconds, whatever of it
was used; the price in the currency of `tracking.price_per_hour`; energy in joules; each in all, and until
`tracking.target` was reached for the first time."""


def cost_metric(name: str) -> str:
    """Key of a cost, one of `COSTS`: `cost/core_seconds`. Recorded at the end, at the last step."""
    if name not in COSTS:
        raise ValueError(f"costs are {', '.join(COSTS)}, not {name!r}")
    return f"cost/{name}"


# --- tags --------------------------------------------------------------------------------------------------------

RUN_ID = "paceline.run_id"
"""The run's identity: an MLflow run is found again by it, so that a resumed run continues in the same one."""

NAME = "paceline.name"
"""The config's `name`."""

KIND = "paceline.kind"
"""`sweep` for a sweep's own run, `trial` for one of its trials, `tuneup` for that of a tune-up, `scale` for that of a
scale study, `run` for any other."""

SWEEP_ID = "paceline.sweep_id"
"""The sweep that a `sweep` or `trial` belongs to."""

TRIAL_ID = "paceline.trial_id"
"""Id of the trial within its sweep, such as `0007`."""

TRIAL_STATE = "paceline.trial_state"
"""State of the trial: `running`, `paused`, `finished`, `pruned`, `failed`, `oom`, `diverged`."""

PREDICTED_PEAK_MEMORY_BYTES = "paceline.predicted_peak_memory_bytes"
"""Predicted peak memory of the tensors on one worker before the trial began, in bytes; on a GPU to be compared with
`peak_memory_bytes`. Only where points were checked for whether they fit."""

PARENT_RUN = "mlflow.parentRunId"
"""MLflow's id of the sweep's own run: MLflow shows its trials under it."""

COMMAND = "paceline.command"
"""The command line that started the run."""

STATUS_REASON = "paceline.status_reason"
"""Reason for the run's end; absent when it finished."""

CHANGED_PARAMS = "paceline.changed_params"
"""Params that differ on a resumed run, or were changed while it ran, old and new value: MLflow's params cannot be
changed."""

NOT_RECORDED = "paceline.not_recorded"
"""Entries that MLflow does not have, and why: refused ones, which the run's journal still has; files that were
gone; and the number of readings that were dropped, since nothing had taken them for too long."""

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

GIT_CHANGED_FILES = "paceline.git.changed_files"
"""Names of the files that differed from the commit, one on each line, and of those that git does not track."""

GIT_DIFF_SHA256 = "paceline.git.diff_sha256"
"""SHA-256 over the diff of the tracked files against the commit, where it is not empty: two runs of one commit with the
same value had the same code in them."""

SOURCE_NAME = "mlflow.source.name"
"""The command line."""

SOURCE_TYPE = "mlflow.source.type"
"""Always `LOCAL`: MLflow shows the source name for it."""

USER = "mlflow.user"
"""Login name of whoever started the run."""

CHECKPOINT_URI = "checkpoint_uri"
"""Address of a registered checkpoint's folder."""

CHECKPOINT_SHA256 = "paceline.checkpoint_sha256"
"""SHA-256 of a registered checkpoint's file `model.safetensors`."""

CHECKPOINT_STEP = "paceline.checkpoint_step"
"""Optimizer step that a registered checkpoint was saved at."""

FORKED_FROM = "paceline.forked_from"
"""The id of the unfinished run that this one has branched off."""

EXTENDED_FROM = "paceline.extended_from"
"""The id of the finished run that this one trains further."""

INITIAL_WEIGHTS = "paceline.initial_weights"
"""The run or the file that the first weights were loaded from: `model.weights`."""

INITIAL_WEIGHTS_SHA256 = "paceline.initial_weights_sha256"
"""SHA-256 of those weights, as `weights_sha256` of a run's result: over name, dtype, shape and bytes of each."""

OPTIMIZER = "paceline.optimizer"
"""The optimizers that the task or the LightningModule made itself, with their learning rates, such as `AdamW, lr 0.001
(from configure_optimizers)`; absent where the section `optimizer` alone made it."""

RANKS = "paceline.ranks"
"""Ranks on each machine, such as `node-a: 0 1; node-b: 2 3`. One line for each group of workers that the run has had,
if they were placed differently."""

PREEMPTIONS = "paceline.preemptions"
"""Number of times that a machine was announced to be taken away while the run trained on it; these are not failures."""

SPEED_STAMP = "paceline.speed_stamp"
"""Conditions under which the run's speed was measured, as a JSON object: device, workers, clocks in MHz, torch's
threads, usable cores, versions, the share of the machines' cores that other programs used (0 to 1), and the optimizer
steps and seconds that `samples_per_second_overall` leaves out and is over. `tracking.speed_stamps.differences` compares
two of them."""

STOPPED_EARLY = "paceline.stopped_early"
"""Reason for which a callback finished the run before its end, such as `stopped early after 250 of 3000 steps:
val/accuracy not better than 0.6225 for 4 evaluations`."""

STRAGGLER = "paceline.straggler"
"""The workers that the others had to wait for, one on each line: rank, machine, and how much longer its steps took."""

DEVICE = "paceline.device"
"""Device of the workers: `cpu`, or the GPU's name."""

FOUND_SIZES = {
    "paceline.micro_batch_size": "micro_batch_size",
    "paceline.gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""Sizes that were found for `data.micro_batch_size: max`, by tag; absent with a number, whose params say it all."""

HOST = "paceline.host"
"""Name of the machine that the run was started on."""

OS = "paceline.os"
"""Operating system and processor architecture of that machine."""

CPU_COUNT = "paceline.cpu_count"
"""Cores that the starting process may use."""


def version_tag(package: str) -> str:
    """Tag that holds the version of a package, such as `paceline.version.torch`."""
    return f"paceline.version.{package}"
