"""Sections that are not components: training, parallelism, scaling, checkpoints, storage, tracking."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from paceline.config.base import Section
from paceline.config.effects import NotWith, OnlyWith
from paceline.config.limits import Epochs, Metric, Regex, Steps, Target
from paceline.direction import Direction, default_mode
from paceline.places import default_storage

Auto = Literal["auto"]
PrecisionName = Literal["64-true", "32-true", "16-mixed", "bf16-mixed"]


CPU_ALONE = NotWith("scaling.use_gpu", False)
WITH_DDP = OnlyWith("parallel.strategy", "ddp")
WITH_FSDP = OnlyWith("parallel.strategy", "fsdp")
WITH_POWERSGD = OnlyWith("parallel.comm_hook", "powersgd")
WITH_EXCHANGE = NotWith("scaling.num_workers", 0, 1, because="one process exchanges no gradients")
WITH_WORKERS = NotWith("scaling.num_workers", 0, because="with scaling.num_workers 0 there are no workers")


def _or_range(schema: dict[str, Any]) -> None:
    """Extend the JSON Schema of a number so that it also accepts a list of two, the minimum and the maximum."""
    number = {key: schema.pop(key) for key in ("type", "minimum", "maximum") if key in schema}
    both = {"type": "array", "items": {**number, "minimum": 1}, "minItems": 2, "maxItems": 2}
    schema["anyOf"] = [number, both]


class TrainerConfig(Section):
    """Training settings: length, precision, accumulation and the techniques of the training step."""

    epochs: Epochs | None = None
    """Passes over the training set, 1 to 10^6. Training ends at `epochs` or `max_steps`, whichever comes first;
    1 epoch when neither is set."""
    max_steps: Steps | None = None
    """Optimizer steps, 1 to 10^12. `null`: no such limit."""
    precision: PrecisionName = "32-true"
    """Number format of the computation. `bf16-mixed` and `16-mixed` run the forward pass under autocast, the latter
    (CUDA only) with a gradient scaler. `64-true` is for numerical verification."""
    gradient_accumulation_steps: Annotated[
        Annotated[int, Field(ge=1, le=10**6)] | Auto,
        NotWith("data.micro_batch_size", "max", because="it follows from data.micro_batch_size max"),
    ] = "auto"
    """Micro batches per optimizer step, 1 to 10^6. `auto` follows from the batch sizes and the world size."""
    activation_checkpointing: Literal["none", "full", "selective", "budget"] = "none"
    """Activations that the backward pass recomputes instead of keeping them. `full`: all inside the model's blocks.
    `selective`: the same, except for the results of convolutions, matrix products and attention. `budget`: the compiler
    chooses, within `activation_memory_budget` (needs `compile`). `none` disables."""
    activation_checkpointing_blocks: Annotated[
        list[Annotated[str, Field(min_length=1)]] | None,
        OnlyWith("trainer.activation_checkpointing", "full", "selective"),
    ] = None
    """Names of the modules to which `full` and `selective` apply, with `*`, `?` and `[...]` as in file names, such as
    `["layer3.*", "layer4.*"]`. `null`: the repeated blocks that are found in the model."""
    activation_memory_budget: Annotated[
        float, Field(ge=0, le=1), OnlyWith("trainer.activation_checkpointing", "budget")
    ] = 0.5
    """Share of the activation memory that `activation_checkpointing: budget` may keep, 0 (as little as possible) to 1
    (everything)."""
    max_grad_norm: Annotated[float, Field(gt=0, le=1e20)] | None = None
    """Clip the gradient's global L2 norm to this value, in (0, 10^20]. `null` disables."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """Memory layout of 4-d weights and inputs. `channels_last` suits convolutions on tensor cores. With `fsdp`, which
    does not support `channels_last` weights, it applies only to the inputs."""
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = "none"
    """Compile the model with torch.compile in one of its modes; takes up to minutes at the start. If compilation fails,
    training continues without it and reports why. Compiled code draws other dropout masks. `none` disables."""
    compile_scope: Annotated[Literal["model", "blocks"], NotWith("trainer.compile", "none")] = "model"
    """Compile the whole model (`model`), or each of its repeated blocks (`blocks`), which takes less time and fuses
    less."""
    remove_redundant_bias: bool = False
    """Remove the biases of convolutions whose output goes into batch normalisation alone, which subtracts them again.
    They are found by tracing the model. If tracing fails, none is removed, and a warning gives the reason."""
    freeze: list[Regex] = Field(default_factory=list)
    """Python regular expressions, searched for anywhere in a parameter's name in the model, such as `^backbone\\.`.
    Parameters that match one of them are not trained. The statistics of batch normalisation still follow the data.
    Empty: all parameters are trained."""
    zero_grad: Literal["set_to_none", "zero"] = "set_to_none"
    """Method to clear gradients between steps. `set_to_none`: free the memory. `zero`: fill it with zeros (the old
    way)."""
    float32_matmul_precision: Annotated[
        Literal["highest", "high", "medium"],
        NotWith("trainer.precision", "64-true", because="with trainer.precision 64-true there are no float32 products"),
    ] = "highest"
    """Internal precision of float32 matrix products. `high` allows TF32 on CUDA."""
    cudnn_allow_tf32: Annotated[bool, CPU_ALONE] = True
    """Let cuDNN compute float32 convolutions in TF32, as PyTorch does by default. CUDA only."""
    cudnn_benchmark: Annotated[bool, CPU_ALONE] = False
    """Let cuDNN time its convolution algorithms and keep the fastest. Contradicts `deterministic`."""
    deterministic: bool = False
    """Use only deterministic algorithms, and fail if an operation does not have one."""
    log_every_n_steps: Steps = 10
    """Optimizer steps between two records of the training metrics, 1 to 10^12."""
    noise_scale: bool = False
    """Log the gradient noise scale (McCandlish et al. 2018, arXiv:1812.06162) as `noise_scale`, in samples, with a 95 %
    interval. Far below it, doubling the batch halves the number of steps; far above it, the number stays the same. The
    measurement compares the gradients of a step, so it needs several workers, or accumulation."""
    noise_scale_every_n_steps: Annotated[Steps, NotWith("trainer.noise_scale", False)] = 10
    """Optimizer steps between two measurements of the noise scale, 1 to 10^12. The estimate uses the last 100
    measurements."""
    evaluate_every_n_steps: Steps | None = None
    """Optimizer steps between two evaluations, 1 to 10^12, beside `evaluate_every_n_epochs`. `null` disables."""
    evaluate_every_n_epochs: Annotated[int, Field(ge=0, le=10**6)] = 1
    """Epochs between two evaluations on the validation set, 0 to 10^6. 0: only at the end of training."""


class ParallelConfig(Section):
    """Parallelism strategy over the workers, and its settings."""

    strategy: Literal["ddp", "fsdp", "pipeline", "data_parallel"] = "ddp"
    """`ddp`: every worker holds the whole model, and the gradients are averaged. `fsdp`: weights, gradients and
    optimizer state are sharded over the workers. `pipeline`: each worker holds some of the model's layers.
    `data_parallel`: one worker splits each micro batch over its GPUs with the old `torch.nn.DataParallel`; it is slow,
    and only meant for comparison."""
    shard_size: Annotated[Annotated[int, Field(ge=2, le=65_536)] | None, WITH_FSDP] = None
    """With `fsdp`: number of workers over which a copy of the model is sharded, 2 to 65,536. Groups of this size
    average their gradients (hybrid shard). `null`: all workers."""
    gather_dtype: Annotated[Literal["full", "mixed"], WITH_FSDP] = "full"
    """With `fsdp`: number format in which weights are gathered. `full`: as they are stored. `mixed`: that of a mixed
    `trainer.precision`, which halves the traffic and the gathered memory, but also rounds norms, embeddings and the
    activations between blocks (torch's `MixedPrecisionPolicy`). Gradients are averaged in float32 either way."""
    pipeline_stages: Annotated[
        Annotated[int, Field(ge=2, le=65_536)] | None, OnlyWith("parallel.strategy", "pipeline")
    ] = None
    """With `pipeline`: number of stages into which the model is split, 2 to 65,536. With fewer stages than workers,
    several pipelines train in parallel and average their gradients. `null`: one stage per worker."""
    comm_hook: Annotated[Literal["none", "bf16", "fp16", "powersgd"], WITH_EXCHANGE] = "none"
    """Compression of the gradients that DDP exchanges. `bf16`, `fp16`: rounded to this format; `fp16` is finer, but
    turns values below 6e-8 into 0 and values above 65,504 into infinity. `powersgd`: each weight's gradient as the
    product of two thin matrices, and the error is added to the gradient of the next step (Vogels et al. 2019,
    arXiv:1905.13727). `none`: not compressed. The format applies only to the exchange, whatever `trainer.precision`
    is."""
    powersgd_rank: Annotated[int, Field(ge=1, le=1024), WITH_POWERSGD] = 1
    """Width of the thin matrices of `comm_hook: powersgd`, 1 to 1024. The gradient of a weight that it would not
    compress to half its size is exchanged uncompressed."""
    powersgd_start_step: Annotated[int, Field(ge=2, le=10**12), WITH_POWERSGD] = 1000
    """Optimizer steps with uncompressed exchange before `comm_hook: powersgd` begins to compress, 2 to 10^12."""
    bucket_cap_mb: Annotated[Annotated[float, Field(ge=0.001, le=1e6)] | None, WITH_EXCHANGE, WITH_DDP] = None
    """Size of DDP's gradient buckets in MiB, 0.001 to 10^6. `null`: torch's default, 25."""
    gradient_as_bucket_view: Annotated[bool, WITH_EXCHANGE, WITH_DDP] = True
    """Store gradients as views of DDP's buckets; saves one copy of the gradients."""
    static_graph: Annotated[bool, WITH_EXCHANGE, WITH_DDP] = False
    """Declare to DDP that the set of used parameters never changes from step to step."""
    find_unused_parameters: Annotated[bool, WITH_EXCHANGE, WITH_DDP] = False
    """Let DDP search in every step for parameters that the loss does not depend on, so that it does not wait for their
    gradients; costs a traversal of the graph per step. `false`: all trainable parameters must be used in every step."""
    timeout_seconds: Annotated[float, Field(ge=1, le=86_400), WITH_WORKERS] = 300.0
    """Maximum time that a collective operation waits for the slowest worker before the run ends with an error, 1 to
    86,400 seconds."""


class ScalingConfig(Section):
    """Number of workers, and the resources of each."""

    num_workers: Annotated[int, Field(ge=0, le=65_536, json_schema_extra=_or_range)] = 1
    """Training processes under Ray Train, 0 to 65,536. 0: train in this process, without Ray. `[2, 8]` is short for
    `min_workers: 2` and `num_workers: 8`."""
    min_workers: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Elastic training: minimum number of workers with which a run begins, and continues when nodes are lost, 1 to
    `num_workers`. When resources are free again, the run resumes with more workers from its newest checkpoint. The
    global batch and the order of the samples do not change; fewer workers take more micro batches each. `null`: always
    `num_workers`. No effect in a sweep, whose worker groups keep their size."""
    use_gpu: bool | Auto = "auto"
    """Use one GPU per worker. `auto`: if this machine or the cluster has GPUs; fewer than the workers need are an
    error."""
    cpus_per_worker: Annotated[float, Field(ge=0.001, le=4096)] = 1
    """Logical CPU cores that Ray reserves for each worker, 0.001 to 4096. On CPU, also the number of torch threads,
    rounded down, at least 1."""
    gpus_per_worker: Annotated[float, Field(ge=0.001, le=64)] | Auto = "auto"
    """GPUs that Ray reserves for each worker, 0.001 to 64; more than 1 only with `parallel.strategy: data_parallel`,
    which needs at least 2, and less than 1 only with one worker. `auto` is 1 when GPUs are used."""
    placement: Annotated[Literal["pack", "spread", "strict_pack", "strict_spread"], WITH_WORKERS] = "pack"
    """Ray's strategy for placing the workers on nodes."""
    max_failures: Annotated[int, Field(ge=0, le=10**6), WITH_WORKERS] = 3
    """Maximum number of restarts from the newest checkpoint after the worker group has lost a process or a node, 0 to
    10^6. An exception in the training code ends the run at once and is never retried. 0 disables restarts."""

    @property
    def fewest_workers(self) -> int:
        """Minimum number of workers that a run needs."""
        return self.num_workers if self.min_workers is None else self.min_workers

    @property
    def is_elastic(self) -> bool:
        """True if the number of workers may change during a run."""
        return self.min_workers is not None and self.min_workers < self.num_workers

    @model_validator(mode="before")
    @classmethod
    def _split_range(cls, values: Any) -> Any:
        asked = values.get("num_workers") if isinstance(values, dict) else None
        if isinstance(asked, list | tuple) and [type(each) for each in asked] == [int, int]:
            return {**values, "min_workers": asked[0], "num_workers": asked[1]}
        return values


class CheckpointConfig(Section):
    """Intervals at which the training state is saved, and number of checkpoints that are kept. A checkpoint is always
    saved at the end."""

    every_n_steps: Steps | None = None
    """Optimizer steps between two checkpoints, 1 to 10^12. `null` disables."""
    every_n_epochs: Epochs | None = None
    """Epochs between two checkpoints, 1 to 10^6. `null`: 1 if `every_n_steps` is not set either, else disabled."""
    keep: Annotated[int, Field(ge=1, le=10**6)] = 3
    """Number of newest checkpoints that are kept, 1 to 10^6."""
    monitor: Metric | None = None
    """Metric of the evaluation by which the best checkpoints are chosen, such as `val/accuracy`. A checkpoint is saved
    after each evaluation that is among the best `keep_best`. `null` disables."""
    mode: Annotated[Literal["min", "max"] | None, NotWith("checkpoint.monitor", None)] = None
    """`min`: lower values of `monitor` are better. `max`: higher values are better. `null`: follows from the metric's
    name."""
    keep_best: Annotated[int, Field(ge=1, le=10**6)] = 1
    """Number of best checkpoints that are kept in addition to the newest `keep`, 1 to 10^6. Needs `monitor`."""

    @property
    def objective(self) -> tuple[str, Direction] | None:
        """Monitored metric and its direction; None without `monitor`."""
        return None if self.monitor is None else (self.monitor, self.mode or default_mode(self.monitor))


class StorageConfig(Section):
    """Storage of runs and their checkpoints."""

    path: Annotated[str, Field(min_length=1)] | None = Field(default_factory=default_storage)
    """Folder of the runs, or an address in an object store, such as `s3://bucket/prefix` (also `gs://`, `abfss://`).
    Default: the environment variable PACELINE_STORAGE, else `./runs`. A cluster of several nodes needs an object store,
    or a folder that all nodes share.

    An S3-compatible server is set by AWS_ENDPOINT_URL, or in the address (`?endpoint_override=host:port&scheme=http`,
    `region`). The address must not contain credentials: they are read from the environment, the store's configuration
    files or the machine's role, on each node. A run works in a local copy below PACELINE_CACHE (`~/.cache/paceline`); a
    checkpoint is valid once it is in the store. Sweeps need a folder."""


class TrackingConfig(Section):
    """MLflow store that the run is recorded in."""

    uri: Annotated[str, Field(min_length=1)] | None = None
    """MLflow tracking URI. `null`: the environment variable MLFLOW_TRACKING_URI, else `sqlite:///mlflow.db` in the
    working folder."""
    experiment: Annotated[str, Field(min_length=1, max_length=250)] | None = None
    """MLflow experiment that holds the run. `null`: the `name` of the config."""
    offline: Literal["refuse", "allow"] = "refuse"
    """Behaviour if the MLflow store does not answer at the start. `refuse`: the run does not start. `allow`: the run
    starts, and its metrics are kept only in its journal."""
    system_metrics: bool = True
    """Record the system metrics of the machines and of the run's GPUs every few seconds under MLflow's names, and their
    energy use if they report it. `false`: not recorded."""
    target: Annotated[dict[Metric, Target], Field(min_length=1, max_length=1)] | None = None
    """Metric and the value that training is to reach, such as `{val/accuracy: 0.97}`, -10^20 to 10^20. The cost of
    reaching it is reported; training does not end there. The direction is that of `sweep.mode` for a metric of
    `sweep.metric`, else it follows from the metric's name. `null`: the target of `sweep.stop`, if set."""
    price_per_hour: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Price of one GPU for an hour, or of one CPU core if training does not use GPUs; 0 to 10^9, in any currency.
    `null`: prices are not reported."""
    git_diff: bool = False
    """Save the changes to tracked files since the commit as the artifact `git.diff`, at most 1 MB and without known
    secrets. `false`: only the names of the files and a hash."""
