"""The sections that are not components: training, parallelism, scaling, checkpoints, storage, tracking."""

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
    """Let the schema of a number also take two of them, the fewest and the most."""
    number = {key: schema.pop(key) for key in ("type", "minimum", "maximum") if key in schema}
    both = {"type": "array", "items": {**number, "minimum": 1}, "minItems": 2, "maxItems": 2}
    schema["anyOf"] = [number, both]


class TrainerConfig(Section):
    """How the model is trained: length, precision, accumulation and the techniques of the training step."""

    epochs: Epochs | None = None
    """Passes over the training set, 1 to 10^6. Training ends at `epochs` or `max_steps`, whichever comes first;
    1 epoch when neither is set."""
    max_steps: Steps | None = None
    """Optimizer steps, 1 to 10^12. `null`: no such limit."""
    precision: PrecisionName = "32-true"
    """Number format of the computation. `bf16-mixed` and `16-mixed` run the forward pass under autocast, the latter
    (CUDA only) with a gradient scaler; `64-true` is for proofs."""
    gradient_accumulation_steps: Annotated[
        Annotated[int, Field(ge=1, le=10**6)] | Auto,
        NotWith("data.micro_batch_size", "max", because="it follows from data.micro_batch_size max"),
    ] = "auto"
    """Micro batches per optimizer step, 1 to 10^6. `auto` follows from the batch sizes and the world size."""
    activation_checkpointing: Literal["none", "full", "selective", "budget"] = "none"
    """Activations that backward computes again instead of keeping them. `full`: all inside the model's blocks;
    `selective`: the same, but for the results of convolutions, matrix products and attention; `budget`: the compiler
    chooses, within `activation_memory_budget` (needs `compile`). `none` disables."""
    activation_checkpointing_blocks: Annotated[
        list[Annotated[str, Field(min_length=1)]] | None,
        OnlyWith("trainer.activation_checkpointing", "full", "selective"),
    ] = None
    """Names of the modules that `full` and `selective` are applied to, with `*`, `?` and `[...]` as in file names, such
    as `["layer3.*", "layer4.*"]`. `null`: the repeated blocks that are found in the model."""
    activation_memory_budget: Annotated[
        float, Field(ge=0, le=1), OnlyWith("trainer.activation_checkpointing", "budget")
    ] = 0.5
    """Share of the activation memory that `activation_checkpointing: budget` may keep, 0 (as little as possible) to 1
    (everything)."""
    max_grad_norm: Annotated[float, Field(gt=0, le=1e20)] | None = None
    """Clip the gradient's global L2 norm to this value, in (0, 10^20]. `null` disables."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """Layout of 4-d weights and inputs. `channels_last` suits convolutions on tensor cores. With `fsdp`, which takes no
    such weights, it is that of the inputs alone."""
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = "none"
    """Compile the model with torch.compile in one of its modes; takes up to minutes at the start. Where that fails,
    training continues without it and reports why. Compiled code draws other dropout masks. `none` disables."""
    compile_scope: Annotated[Literal["model", "blocks"], NotWith("trainer.compile", "none")] = "model"
    """Compile the whole model, or each of its repeated blocks, which takes less time and fuses less."""
    remove_redundant_bias: bool = False
    """Remove the biases of convolutions whose output goes into batch normalisation alone, which subtracts them again.
    They are found by tracing the model; where that fails, none is removed, and a warning says why."""
    freeze: list[Regex] = Field(default_factory=list)
    """Python regular expressions, searched for anywhere in a parameter's name in the model, such as `^backbone\\.`:
    what matches one of them is not trained. The statistics of batch normalisation still follow the data. Empty: all
    parameters are trained."""
    zero_grad: Literal["set_to_none", "zero"] = "set_to_none"
    """How gradients are cleared between steps: free the memory, or fill it with zeros (the old way)."""
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
    """Use deterministic algorithms only, and fail where there is none."""
    log_every_n_steps: Steps = 10
    """Optimizer steps between two points of the training metrics, 1 to 10^12."""
    noise_scale: bool = False
    """Log the gradient noise scale (McCandlish et al. 2018, arXiv:1812.06162) as `noise_scale`, in samples, with a 95 %
    interval: far below it a batch of twice the size needs half the steps, far above it as many. It compares the
    gradients of a step, so it needs several workers, or accumulation."""
    noise_scale_every_n_steps: Annotated[Steps, NotWith("trainer.noise_scale", False)] = 10
    """Optimizer steps between two measurements of the noise scale, 1 to 10^12. The estimate is over the last 100."""
    evaluate_every_n_steps: Steps | None = None
    """Optimizer steps between two evaluations, 1 to 10^12, beside `evaluate_every_n_epochs`. `null` disables."""
    evaluate_every_n_epochs: Annotated[int, Field(ge=0, le=10**6)] = 1
    """Epochs between two evaluations on the validation set, 0 to 10^6. 0: only at the end of training."""


class ParallelConfig(Section):
    """How the work is spread over the workers."""

    strategy: Literal["ddp", "fsdp", "pipeline", "data_parallel"] = "ddp"
    """`ddp`: every worker holds the whole model, and the gradients are averaged. `fsdp`: weights, gradients and
    optimizer state are cut up over the workers. `pipeline`: each worker holds some of the model's layers.
    `data_parallel`: one worker cuts each micro batch over its GPUs, by the old `torch.nn.DataParallel`; for comparison,
    since it is slow."""
    shard_size: Annotated[Annotated[int, Field(ge=2, le=65_536)] | None, WITH_FSDP] = None
    """With `fsdp`: over how many workers a copy of the model is cut up, 2 to 65,536; the groups average their gradients
    (hybrid shard). `null`: over all of them."""
    gather_dtype: Annotated[Literal["full", "mixed"], WITH_FSDP] = "full"
    """With `fsdp`: number format in which weights are gathered. `full`: as they are stored. `mixed`: that of a mixed
    `trainer.precision`, which halves the traffic and the gathered memory, and rounds norms, embeddings and what passes
    between the blocks too (torch's `MixedPrecisionPolicy`). Gradients are averaged in float32 either way."""
    pipeline_stages: Annotated[
        Annotated[int, Field(ge=2, le=65_536)] | None, OnlyWith("parallel.strategy", "pipeline")
    ] = None
    """With `pipeline`: into how many stages the model is cut, 2 to 65,536. With fewer stages than workers there are
    several pipelines, which average their gradients. `null`: as many as workers."""
    comm_hook: Annotated[Literal["none", "bf16", "fp16", "powersgd"], WITH_EXCHANGE] = "none"
    """How DDP compresses the gradients that are exchanged: not at all; rounded to `bf16`, or to `fp16`, which is finer
    but turns what is below 6e-8 into 0 and above 65,504 into infinity; or each weight's as the product of two thin
    matrices (`powersgd`, Vogels et al. 2019, arXiv:1905.13727), where what is lost is added to the next step's. The
    format is that of the exchange alone, whatever `trainer.precision`."""
    powersgd_rank: Annotated[int, Field(ge=1, le=1024), WITH_POWERSGD] = 1
    """Width of the thin matrices of `comm_hook: powersgd`, 1 to 1024. A weight that it would not make smaller by half
    is exchanged whole."""
    powersgd_start_step: Annotated[int, Field(ge=2, le=10**12), WITH_POWERSGD] = 1000
    """Optimizer steps in which gradients are exchanged whole, before `comm_hook: powersgd` compresses, 2 to 10^12."""
    bucket_cap_mb: Annotated[Annotated[float, Field(ge=0.001, le=1e6)] | None, WITH_EXCHANGE, WITH_DDP] = None
    """Size of DDP's gradient buckets in MiB, 0.001 to 10^6. `null`: torch's default, 25."""
    gradient_as_bucket_view: Annotated[bool, WITH_EXCHANGE, WITH_DDP] = True
    """Let gradients live in DDP's buckets instead of beside them; saves one copy of the gradients."""
    static_graph: Annotated[bool, WITH_EXCHANGE, WITH_DDP] = False
    """Tell DDP that the set of used parameters never changes from step to step."""
    find_unused_parameters: Annotated[bool, WITH_EXCHANGE, WITH_DDP] = False
    """Let DDP look in every step for parameters that the loss does not depend on, so that it does not wait for their
    gradients; costs a walk through the graph. `false`: all trainable parameters are used in every step."""
    timeout_seconds: Annotated[float, Field(ge=1, le=86_400), WITH_WORKERS] = 300.0
    """How long a collective operation may wait for the slowest worker before the run ends with an error: 1 to 86,400
    seconds, a day."""


class ScalingConfig(Section):
    """How many workers there are, and what each one gets."""

    num_workers: Annotated[int, Field(ge=0, le=65_536, json_schema_extra=_or_range)] = 1
    """Training processes under Ray Train, 0 to 65,536. 0: train in this process, without Ray. `[2, 8]` is short for
    `min_workers: 2` and `num_workers: 8`."""
    min_workers: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Elastic training: the fewest workers with which a run begins, and continues when nodes are lost, 1 to
    `num_workers`. When there is room again, it continues with more from its newest checkpoint. The global batch and the
    order of the samples stay; fewer workers take more micro batches each. `null`: always `num_workers`. Without effect
    in a sweep, whose worker groups keep their size."""
    use_gpu: bool | Auto = "auto"
    """One GPU a worker. `auto`: when this machine or the cluster has any; fewer than the workers need are an error."""
    cpus_per_worker: Annotated[float, Field(ge=0.001, le=4096)] = 1
    """Logical CPU cores that Ray reserves for each worker, 0.001 to 4096. On CPU also the number of torch threads,
    rounded down and at least 1."""
    gpus_per_worker: Annotated[float, Field(ge=0.001, le=64)] | Auto = "auto"
    """GPUs that Ray reserves for each worker, 0.001 to 64; more than 1 only with `parallel.strategy: data_parallel`,
    which needs at least 2, and less than 1 only with one worker. `auto` is 1 when GPUs are used."""
    placement: Annotated[Literal["pack", "spread", "strict_pack", "strict_spread"], WITH_WORKERS] = "pack"
    """How Ray places the workers on nodes."""
    max_failures: Annotated[int, Field(ge=0, le=10**6), WITH_WORKERS] = 3
    """How often a worker group that lost a process or a node is started again from the newest checkpoint, 0 to 10^6.
    An exception in the training code ends the run at once and is never retried. 0 disables restarts."""

    @property
    def fewest_workers(self) -> int:
        """How many workers a run needs at the least."""
        return self.num_workers if self.min_workers is None else self.min_workers

    @property
    def is_elastic(self) -> bool:
        """Whether the number of workers may change during a run."""
        return self.min_workers is not None and self.min_workers < self.num_workers

    @model_validator(mode="before")
    @classmethod
    def _split_range(cls, values: Any) -> Any:
        asked = values.get("num_workers") if isinstance(values, dict) else None
        if isinstance(asked, list | tuple) and [type(each) for each in asked] == [int, int]:
            return {**values, "min_workers": asked[0], "num_workers": asked[1]}
        return values


class CheckpointConfig(Section):
    """When the training state is saved, and how many checkpoints are kept. One is always saved at the end."""

    every_n_steps: Steps | None = None
    """Optimizer steps between two checkpoints, 1 to 10^12. `null` disables."""
    every_n_epochs: Epochs | None = None
    """Epochs between two checkpoints, 1 to 10^6. `null` disables; 1 when `every_n_steps` is not set either."""
    keep: Annotated[int, Field(ge=1, le=10**6)] = 3
    """How many of the newest checkpoints are kept, 1 to 10^6."""
    monitor: Metric | None = None
    """Metric of the evaluation by which the best checkpoints are chosen, such as `val/accuracy`. One is saved after
    each evaluation that is among the best `keep_best`. `null` disables."""
    mode: Annotated[Literal["min", "max"] | None, NotWith("checkpoint.monitor", None)] = None
    """`min`: lower values of `monitor` are better. `max`: higher ones. `null`: follows from the metric's name."""
    keep_best: Annotated[int, Field(ge=1, le=10**6)] = 1
    """How many of the best checkpoints are kept beside the newest `keep`, 1 to 10^6. Needs `monitor`."""

    @property
    def objective(self) -> tuple[str, Direction] | None:
        """The monitored metric and its direction; None without `monitor`."""
        return None if self.monitor is None else (self.monitor, self.mode or default_mode(self.monitor))


class StorageConfig(Section):
    """Where runs and their checkpoints are kept."""

    path: Annotated[str, Field(min_length=1)] | None = Field(default_factory=default_storage)
    """Folder of the runs, or the address of a place in an object store, such as `s3://bucket/prefix` (also `gs://`,
    `abfss://`). By default PACELINE_STORAGE of the environment, else `./runs`. A cluster of several nodes needs a
    store, or a folder that all nodes share.

    An S3-compatible server is named by AWS_ENDPOINT_URL, or in the address (`?endpoint_override=host:port&scheme=http`,
    `region`). Credentials never stand in the address: they come from the environment, the store's configuration files
    or the machine's role, on each node. A run is worked on in a copy below PACELINE_CACHE (`~/.cache/paceline`), and a
    checkpoint counts once it is in the store. Sweeps need a folder."""


class TrackingConfig(Section):
    """Which MLflow store the run is recorded in."""

    uri: Annotated[str, Field(min_length=1)] | None = None
    """MLflow's tracking address. `null`: the environment's MLFLOW_TRACKING_URI, else `sqlite:///mlflow.db` in the
    working folder."""
    experiment: Annotated[str, Field(min_length=1, max_length=250)] | None = None
    """MLflow experiment that holds the run. `null`: the run's `name`."""
    offline: Literal["refuse", "allow"] = "refuse"
    """When the address does not answer at start: `refuse` to run, or `allow` and keep the metrics in the run's
    journal only."""
    system_metrics: bool = True
    """Record every few seconds what the machines and the run's GPUs are doing, and the energy that they take where they
    tell it, under MLflow's own names. `false`: nothing of it."""
    target: Annotated[dict[Metric, Target], Field(min_length=1, max_length=1)] | None = None
    """A metric and the value that training is to reach, such as `{val/accuracy: 0.97}`, -10^20 to 10^20: its cost
    is reported. Whether it is reached from above or below is as `sweep.mode` says, or follows from the metric's
    name as there; nothing ends by it. `null`: the target of `sweep.stop`, if there is one."""
    price_per_hour: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Price of a GPU for an hour, of a core where training uses no GPU; 0 to 10^9, in any currency. `null`: no prices
    are reported."""
    git_diff: bool = False
    """Keep the changes to tracked files since the commit as the artifact `git.diff`, at most 1 MB and without secrets
    that are known as such. `false`: their names and a hash alone."""
