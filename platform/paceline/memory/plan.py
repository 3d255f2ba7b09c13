"""`plan`: the peak memory of a training step on one worker, and the settings that fit, before anything is trained."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from paceline.cluster.preflight import local_resources, needs_gpu, uses_gpu
from paceline.cluster.user_code import with_objects
from paceline.config.batch_sizes import MICRO, OpenBatchSizes, largest_sizes
from paceline.config.derived import Derived, derive
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import missing_modules
from paceline.config.shareable import secrets_of
from paceline.errors import ConfigError
from paceline.memory.grid import CHECKPOINTING, PRECISION, Overrides, grid_of
from paceline.memory.timeline import Role
from paceline.redaction import learn, redact, redact_tree

if TYPE_CHECKING:
    from torch import nn

    from paceline.tasks.base import Task

STATED_ERROR = 0.08
"""Relative error that a prediction may have. A prediction that is closer to the memory limit decides nothing."""

PATIENCE_SECONDS = 120.0
"""Seconds after which the user's code counts as hanging."""

Device = Literal["auto", "cpu", "cuda"]
HEADING = ("micro batch", "precision", "checkpointing", "peak memory", "fits")


@dataclass(frozen=True)
class GridPoint:
    """Settings, and the peak memory of a step with them."""

    overrides: Overrides
    peak_memory_bytes: int
    fits: bool | None
    """True if the peak is within the device's memory; None if the size of that memory is not known."""
    is_tight: bool = False
    """True if the memory limit is within the error of the prediction."""

    def cells(self) -> list[str]:
        """Return the row of a table."""
        values = [str(self.overrides[key]) for key in (MICRO, PRECISION, CHECKPOINTING)]
        fits = "?" if self.fits is None else "yes" if self.fits else "no"
        return [*values, size_text(self.peak_memory_bytes), f"{fits}, barely" if self.is_tight and self.fits else fits]


def size_text(count: int) -> str:
    """Return a number of bytes as text."""
    if count >= 2**30:
        return f"{count / 2**30:,.2f} GiB"
    return f"{count / 2**20:,.1f} MiB" if count >= 2**20 / 10 else f"{count / 2**10:,.1f} KiB"


@dataclass(frozen=True, repr=False)
class MemoryPlan:
    """Result of `plan`. Sizes are one worker's, in bytes."""

    parameters: int
    trainable_parameters: int
    flops_per_sample: int
    """Floating-point operations per training sample, forward and backward; a multiply-add counts as two."""
    forward_flops_per_sample: int
    peak_memory_bytes: int
    """Peak memory in bytes during the second optimizer step."""
    memory: dict[Role, int]
    """Peak memory by its use at that moment; `weights` includes buffers, `activations` the batch."""
    micro_batch_size: int
    device: str
    device_memory_bytes: int | None
    fits: bool | None
    grid: tuple[GridPoint, ...]
    cheapest: Overrides | None
    """Overrides of the first point of the grid that fits. The config's own precision is preferred, then the least
    recomputation, then the largest micro batch. None if nothing fits, or if the memory is not known."""
    derived: Derived
    notes: tuple[str, ...] = ()
    """Approximations in the prediction."""
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the plan as the plain JSON values that `paceline plan --json` prints."""
        tree: dict[str, Any] = redact_tree(asdict(self))
        return tree

    def rows(self) -> list[tuple[str, str]]:
        """Return the plan of the config itself as a small table: label and text."""
        limit, settings = self.device_memory_bytes, (self.cheapest or {}).items()
        peak = f"{size_text(self.peak_memory_bytes)} on {self.device} at micro batch {self.micro_batch_size}"
        forward = f"{self.forward_flops_per_sample:,} forward"
        rows = [
            ("parameters", f"{self.parameters:,}"),
            ("FLOPs a sample", f"{self.flops_per_sample:,} forward and backward, {forward}"),
            ("peak memory", f"{peak}, of tensors: the process itself comes on top"),
            *((f"  {role}", size_text(size)) for role, size in self.memory.items()),
            ("device memory", "not known: give --memory" if limit is None else size_text(limit)),
            ("cheapest that fits", " ".join(f"{key}={value}" for key, value in settings) or "none"),
            *self.derived.lines(),
            *(("approximate", note) for note in self.notes),
        ]
        return [(label, redact(text)) for label, text in rows]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the other settings as a table: heading and rows."""
        return list(HEADING), [point.cells() for point in self.grid]

    def __repr__(self) -> str:
        width = max(len(label) for label, _ in self.rows())
        return "MemoryPlan\n" + "\n".join(f"  {label:<{width}}  {text}" for label, text in self.rows())

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in self.rows())
        head = "".join(f"<th>{escape(cell)}</th>" for cell in HEADING)
        grid = (f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in point.cells())}</tr>" for point in self.grid)
        return f"<table>{rows}</table><table><tr>{head}</tr>{''.join(grid)}</table>"


def plan(
    config: ExperimentConfig,
    *,
    memory_bytes: int | None = None,
    device: Device = "auto",
    timeout_seconds: float = PATIENCE_SECONDS,
    model: "Callable[..., nn.Module] | str | None" = None,
    data: "Callable[..., Any] | Mapping[str, Any] | Sequence[Any] | None" = None,
    task: "Callable[..., Task] | str | None" = None,
) -> MemoryPlan:
    """Predict the memory of a training step and what fits, without training and without a GPU.

    Args:
        config: from `load_config`.
        memory_bytes: memory of a worker's device, in bytes. By default that of this machine's GPU, or a worker's share
            of this machine's memory.
        device: device to train on. `auto`: a GPU if the config asks for one or this machine has enough.
        timeout_seconds: time limit for loading the data, and for building the model with each set of techniques.
        model: a callable in place of the config's `model`; likewise `data` and `task`, see `train`.

    Raises:
        ConfigError: something about the config is wrong, or it does not suit the model.
        EnvironmentFault: the data are missing, or the user's code has not finished in time.
        RunFailed: the user's code raised an error.
    """
    config = with_objects(config, model=model, data=data, task=task)
    learn(secrets_of(config))
    if problems := missing_modules(config.model_dump()):
        raise ConfigError(problems)
    derived = derive(config, config.data.sizes())
    return _planned(config, derived, trains_on_cuda(config, device), memory_bytes, timeout_seconds)


def trains_on_cuda(config: ExperimentConfig, device: Device = "auto") -> bool:
    """Return True if training uses a GPU, so that its memory counts."""
    if device != "auto":
        return device == "cuda"
    return needs_gpu(config) or uses_gpu(config, local_resources())


def _planned(
    config: ExperimentConfig, derived: Derived, on_cuda: bool, memory_bytes: int | None, timeout_seconds: float
) -> MemoryPlan:
    from paceline.memory.predicting import ask

    grid = grid_of(config)
    own = _own(config)
    found = ask(config, [own, *grid.values()], on_cuda, piece_seconds=timeout_seconds)
    limit = memory_bytes if memory_bytes is not None else found["device_memory_bytes"]
    first, *others = found["points"]
    points = [
        _point(overrides, sum(each["memory"].values()), limit)
        for overrides, each in zip(grid.values(), others, strict=True)
        if each is not None
    ]
    cheapest = cheapest_of(points)
    peak = sum(first["memory"].values())
    return MemoryPlan(
        **found["facts"],
        peak_memory_bytes=peak,
        memory=first["memory"],
        micro_batch_size=largest_sizes(config).micro_batch_size or own[MICRO],
        device="cuda" if on_cuda else "cpu",
        device_memory_bytes=limit,
        fits=None if limit is None else peak <= limit,
        grid=tuple(points),
        cheapest=cheapest.overrides if cheapest else None,
        derived=derived,
        notes=tuple(first["notes"]),
        warnings=tuple(found["warnings"]),
    )


def cannot_fit(predicted_bytes: int, limit_bytes: int) -> bool:
    """Return True if the prediction exceeds the limit by more than its error."""
    return predicted_bytes > (1 + STATED_ERROR) * limit_bytes


def _own(config: ExperimentConfig) -> Overrides:
    """Return the largest possible micro batch, a worker's whole share, for `micro_batch_size: max`; else nothing."""
    sizes = largest_sizes(config)
    if isinstance(sizes, OpenBatchSizes):
        return {MICRO: sizes.global_batch_size // sizes.world_size}
    return {}


def _point(overrides: Overrides, peak: int, limit: int | None) -> GridPoint:
    if limit is None:
        return GridPoint(overrides, peak, None)
    return GridPoint(overrides, peak, peak <= limit, abs(peak - limit) <= STATED_ERROR * peak)


def cheapest_of(points: Sequence[GridPoint]) -> GridPoint | None:
    """Return the first point that fits; of its precision and checkpointing, the first with room to spare."""
    fitting = [point for point in points if point.fits]
    if not fitting:
        return None
    first = fitting[0]
    alike = [
        each
        for each in fitting
        if all(each.overrides[key] == first.overrides[key] for key in (PRECISION, CHECKPOINTING))
    ]
    return next((point for point in alike if not point.is_tight), first)
