"""Predictions for many configs that differ in their techniques and batch sizes. Runs in a process of its own."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from paceline.config.batch_sizes import BatchSizes, largest_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.errors import ConfigError, PacelineError, coded, text_of
from paceline.memory.kernels import Kernels
from paceline.memory.samples import Samples
from paceline.memory.sharing import share
from paceline.memory.timeline import Growing, Role, Timeline
from paceline.memory.tracing import BatchMaker, How, Step, count_flops, count_parameters, gathered_bytes, trace

BATCHING = {
    *("global_batch_size", "micro_batch_size", "batch_size_schedule"),
    *("num_workers", "pin_memory", "prefetch_factor"),
}
LENGTH = {"epochs", "max_steps", "log_every_n_steps", "evaluate_every_n_steps", "evaluate_every_n_epochs"}
"""Fields of `trainer` that change no step; all others may change the memory of a step."""
MACHINE = {"gradient_accumulation_steps", "deterministic", "cudnn_benchmark", "cudnn_allow_tf32"}
"""Fields that no trace depends on. Kernels are not run, and the key has a separate entry for several micro-batches."""
LEFT_OUT = "what some kernels take for themselves is left out: they are too large, or too many, to be tried out"
LOADING, STEPPING = "loading the data", "building the model, with some steps,"
HOWS: tuple[How, ...] = ("fake", "converted", "real")


@dataclass(frozen=True)
class Prediction:
    """Peak memory of one rank's second step, by use."""

    memory: dict[Role, int]
    """Bytes by use."""
    notes: tuple[str, ...] = ()
    """Approximations in the prediction."""

    @property
    def peak_memory_bytes(self) -> int:
        """Sum of the bytes over all uses."""
        return sum(self.memory.values())


@dataclass
class _Data:
    """Source of the batches of one data set."""

    samples: Samples
    maker: BatchMaker
    """Makes the batches that take the most memory."""


@dataclass
class Predictor:
    """Traces each combination of techniques at no more than two batch sizes."""

    on_cuda: bool
    """True if the memory of a GPU is predicted."""
    workspace_bytes: int = 0
    """Additional bytes that the device's libraries take."""
    warnings: list[str] = field(default_factory=list)
    """Warnings that apply to all predictions together."""
    limited: Callable[[str], AbstractContextManager[Any]] = nullcontext
    """Applies a limit to each piece of work that runs the user's code. Its argument names the work in messages."""

    def __post_init__(self) -> None:
        self._kernels = None if self.on_cuda else Kernels()
        self._data: dict[str, _Data] = {}
        self._how: dict[str, How] = {}

    def predict(self, configs: Sequence[ExperimentConfig]) -> list[Prediction | PacelineError]:
        """Return the prediction for each config, or the error if a config does not suit the model.

        Raises:
            EnvironmentFault: the data are missing.
        """
        groups: dict[str, list[ExperimentConfig]] = {}
        for config in configs:
            groups.setdefault(_techniques(config), []).append(config)
        found: dict[int, Prediction | PacelineError] = {}
        for group in groups.values():
            found.update(zip(map(id, group), self._of_group(group), strict=True))
        return [found[id(config)] for config in configs]

    def facts(self, config: ExperimentConfig) -> dict[str, Any]:
        """Return the parameter counts and the FLOPs per sample of a model that has been predicted."""
        how = self._how.get(_model_key(config), "fake")
        samples = self._of(config).samples
        with self.limited(LOADING):
            maker = samples.first if how == "real" else samples.maker(samples.first)
        with self.limited(STEPPING):
            parameters, trainable = count_parameters(config, how)
            forward, backward = count_flops(config, 2, maker, how)
        return {
            "parameters": parameters,
            "trainable_parameters": trainable,
            "flops_per_sample": round(forward + backward),
            "forward_flops_per_sample": round(forward),
        }

    def _of_group(self, group: Sequence[ExperimentConfig]) -> list[Prediction | PacelineError]:
        """Predict configs that differ only in the size of the micro batch."""
        config = group[0]
        sizes = [_sizes(each).micro_batch_size for each in group]
        try:
            timelines = self._timelines(config, sorted(set(sizes)))
        except ConfigError as error:
            return [error] * len(group)
        return [self._prediction(each, timelines[size]) for each, size in zip(group, sizes, strict=True)]

    def _timelines(self, config: ExperimentConfig, sizes: list[int]) -> dict[int, Timeline]:
        traced = {size: self._trace(config, size) for size in {sizes[0], sizes[-1]}}
        between = sizes[1:-1]
        if between and traced[sizes[0]].is_like(traced[sizes[-1]]):
            growing = Growing(traced[sizes[0]], sizes[0], traced[sizes[-1]], sizes[-1])
            return traced | {size: growing.at(size) for size in between}
        return traced | {size: self._trace(config, size) for size in between}

    def _trace(self, config: ExperimentConfig, size: int) -> Timeline:
        sizes = _sizes(config)
        step = Step(
            size,
            accumulates=sizes.gradient_accumulation_steps > 1,
            exchanges=config.parallel.strategy == "ddp" and config.scaling.num_workers > 1,
            ahead=self.on_cuda and config.data.pin_memory is not False,
        )
        key = _model_key(config)
        hows = HOWS[HOWS.index(self._how.get(key, "fake")) :]
        for how in hows:
            maker = self._maker(config, how)
            try:
                with self.limited(STEPPING):
                    timeline = trace(config, step, maker, self._kernels, how)
            except PacelineError:
                raise
            except Exception as error:
                if how == "real":
                    raise
                reason = f"{type(error).__name__}: {(text_of(error).splitlines() or [''])[0]}"
                continue
            if how == "real" and key not in self._how:
                no_trace = f"the model cannot be traced on tensors without data ({reason})"
                text = f"{no_trace}: a real step on the CPU was looked at instead"
                self.warnings.append(coded(text, "real-step-measured"))
            self._how[key] = how
            return timeline
        raise AssertionError("the last way raises what is wrong")

    def _prediction(self, config: ExperimentConfig, timeline: Timeline) -> Prediction:
        memory = timeline.peak(rounded=self.on_cuda)
        memory["workspace"] += self.workspace_bytes
        memory["activations"] += self._kept_samples(config)
        memory, notes = share(memory, config, _sizes(config), self.on_cuda, self._gathered_bytes(config))
        if self._kernels is not None and self._kernels.left_out:
            notes = (*notes, LEFT_OUT)
        return Prediction(memory, notes)

    def _gathered_bytes(self, config: ExperimentConfig) -> int:
        if config.parallel.strategy != "fsdp":
            return 0
        return gathered_bytes(config, self._how[_model_key(config)])

    def _kept_samples(self, config: ExperimentConfig) -> int:
        return self._of(config).samples.kept_bytes() if config.data.cache == "device" and self.on_cuda else 0

    def _maker(self, config: ExperimentConfig, how: How) -> BatchMaker:
        data = self._of(config)
        return data.samples.real if how == "real" else data.maker

    def _of(self, config: ExperimentConfig) -> _Data:
        key = config.data.model_dump_json(exclude=BATCHING)
        if key not in self._data:
            with self.limited(LOADING):
                samples = Samples(config)
                self._data[key] = _Data(samples, samples.maker(samples.real))
        return self._data[key]


def _sizes(config: ExperimentConfig) -> BatchSizes:
    sizes = largest_sizes(config)
    if isinstance(sizes, BatchSizes):
        return sizes
    return sizes.settled(-(-sizes.global_batch_size // sizes.world_size))


def _techniques(config: ExperimentConfig) -> str:
    """Return everything in a config that its timeline depends on, except for the size of the micro batch."""
    several = _sizes(config).gradient_accumulation_steps > 1
    optimizer = {name: bool(value) if isinstance(value, float) else value for name, value in config.optimizer}
    trainer = config.trainer.model_dump_json(exclude=LENGTH | MACHINE)
    return f"{several} {optimizer} {trainer} {config.parallel} {config.scaling.num_workers} {_model_key(config)}"


def _model_key(config: ExperimentConfig) -> str:
    return config.model_dump_json(include={"model", "task", "data"}, exclude={"data": BATCHING})
