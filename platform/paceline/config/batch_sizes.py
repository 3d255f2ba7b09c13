"""Division of the global batch over the workers and into micro batches."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.config.batch_size_schedule import SCHEDULE, BatchSizeSchedule
from paceline.config.limits import LARGEST_BATCH
from paceline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from paceline.config.experiment_schema import ExperimentSchema

DEFAULT_MICRO_BATCH_SIZE = 32
GLOBAL = "data.global_batch_size"
MICRO = "data.micro_batch_size"
ACCUMULATION = "trainer.gradient_accumulation_steps"
WORKERS = "scaling.num_workers"


class Takers(NamedTuple):
    """Data-parallel replicas, each with samples of its own: the workers, or the pipelines with `strategy: pipeline`."""

    number: int
    unit: str = "worker"

    def __str__(self) -> str:
        return f"{self.number} {self.unit}{'' if self.number == 1 else 's'}"


def takers(config: "ExperimentSchema") -> Takers:
    """Return the number of data-parallel replicas: of workers, or of pipelines with `strategy: pipeline`."""
    workers = max(config.scaling.num_workers, 1)
    if config.parallel.strategy != "pipeline":
        return Takers(workers)
    return Takers(max(workers // (config.parallel.pipeline_stages or workers), 1), "pipeline")


@dataclass(frozen=True)
class BatchSizes:
    """global_batch_size = micro_batch_size x gradient_accumulation_steps x world_size.

    The product may be larger for sizes found with `micro_batch_size: max`, and in elastic runs: a worker's share of the
    global batch need not divide evenly, and some micro batches then have fewer samples.
    """

    global_batch_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    world_size: int
    """Number of data-parallel replicas, see `takers`."""
    unit: str = "worker"
    """Kind of replica: `worker` or `pipeline`."""

    def text(self) -> str:
        """Return the sizes as one line of text for the user."""
        micro, total = f"{self.micro_batch_size} micro", f"= {self.global_batch_size}"
        if self.micro_batch_size * self.gradient_accumulation_steps * self.world_size != self.global_batch_size:
            micro, total = f"at most {micro}", f"for {self.global_batch_size}"
        by = Takers(self.world_size, self.unit)
        return f"{micro} x {self.gradient_accumulation_steps} accumulation x {by} {total} global"


@dataclass(frozen=True)
class OpenBatchSizes:
    """Batch sizes with `micro_batch_size: max`: micro batch and accumulation are known only after trial steps."""

    global_batch_size: int
    world_size: int
    micro_batch_size: None = None
    gradient_accumulation_steps: None = None

    @property
    def share(self) -> int:
        """Largest number of samples of a global batch that one worker gets; no micro batch is larger."""
        return -(-self.global_batch_size // self.world_size)

    def settled(self, largest: int) -> BatchSizes:
        """Return the sizes if micro batches of at most `largest` samples fit: as few and as equal as possible."""
        accumulation = -(-self.share // largest)
        return BatchSizes(self.global_batch_size, -(-self.share // accumulation), accumulation, self.world_size)

    def text(self) -> str:
        """Return the sizes as one line of text for the user."""
        by = Takers(self.world_size)
        return f"largest micro that fits, found at the start; {self.global_batch_size:,} global over {by}"


def batch_sizes(config: "ExperimentSchema") -> BatchSizes | OpenBatchSizes:
    """Return the four batch numbers: any two of global size, micro size and accumulation determine the third.

    With the global size alone, accumulation is 1; without both sizes, the micro batch is 32. `max` leaves the micro
    size and accumulation open. With a schedule, the numbers are those of the first stage.

    Raises:
        ConfigError: they contradict each other, or do not divide evenly; it names the nearest sizes that do.
    """
    stages = config.data.batch_size_schedule
    return _sizes_at(config, stages[0].global_batch_size if stages else config.data.global_batch_size)


def _sizes_at(config: "ExperimentSchema", total: int | None) -> BatchSizes | OpenBatchSizes:
    by, micro = takers(config), config.data.micro_batch_size
    if micro == "max":
        return _open(total, by.number)
    asked = config.trainer.gradient_accumulation_steps
    return _solve(total, micro, None if asked == "auto" else asked, by)


def schedule_of(config: "ExperimentSchema") -> BatchSizeSchedule | None:
    """Return the schedule of a config with several stages; None for a single global batch size."""
    stages = config.data.batch_size_schedule
    if stages is None or len(stages) < 2:
        return None
    return BatchSizeSchedule(
        tuple(stage.samples for stage in stages), tuple(stage.global_batch_size for stage in stages)
    )


def stage_sizes(config: "ExperimentSchema", workers: int | None = None) -> list[BatchSizes]:
    """Return the batch numbers of each stage of `data.batch_size_schedule`; empty for a single global batch size.

    Args:
        workers: number of workers with which an elastic run continues, see `sizes_with`; None: as configured.

    Raises:
        ConfigError: the numbers of a stage do not divide evenly; it names the stage.
    """
    schedule, found = schedule_of(config), []
    if schedule is None:
        return []
    _require_one_open(config)
    for index, total in enumerate(schedule.sizes):
        try:
            sizes = _with_workers(config, _sizes_at(config, total), workers)
        except ConfigError as error:
            key = f"{SCHEDULE}.{index}.global_batch_size"
            raise ConfigError([replace(problem, key=key) for problem in error.problems]) from None
        assert isinstance(sizes, BatchSizes)
        found.append(sizes)
    return found


def _require_one_open(config: "ExperimentSchema") -> None:
    """Check that the micro batch or the accumulation can vary with a schedule.

    Raises:
        ConfigError: both are set, or the micro batch is `max`.
    """
    if config.data.micro_batch_size == "max":
        reason = f"is searched for one global batch size, and {SCHEDULE} has several"
        hint = "write the number that fits, such as the one that `paceline plan` names"
        raise ConfigError([Problem("batch", reason, MICRO, hint=hint)])
    if config.data.micro_batch_size is not None and config.trainer.gradient_accumulation_steps != "auto":
        reason = f"with {MICRO} it fixes the global batch size, and {SCHEDULE} has several"
        raise ConfigError([Problem("batch", reason, ACCUMULATION, hint="leave one of the two out")])


def largest_sizes(config: "ExperimentSchema") -> BatchSizes | OpenBatchSizes:
    """Return the batch numbers of the stage with the largest global batch, which needs the most memory.

    Raises:
        ConfigError: see `batch_sizes`.
    """
    return max(stage_sizes(config), key=lambda sizes: sizes.global_batch_size, default=None) or batch_sizes(config)


def at_largest_stage(config: "ExperimentSchema") -> dict[str, Any]:
    """Return overrides that give all steps the largest batch of a schedule, to measure it; empty without a schedule."""
    if schedule_of(config) is None:
        return {}
    return {SCHEDULE: None, GLOBAL: largest_sizes(config).global_batch_size}


def sizes_with(config: "ExperimentSchema", workers: int) -> BatchSizes | OpenBatchSizes:
    """Return the batch numbers of an elastic run that continues with `workers` workers.

    The global batch and the largest micro batch stay the same, so that fewer workers take more micro batches.

    Raises:
        ConfigError: see `batch_sizes`.
    """
    return _with_workers(config, batch_sizes(config), workers)


def _with_workers(
    config: "ExperimentSchema", usual: BatchSizes | OpenBatchSizes, workers: int | None
) -> BatchSizes | OpenBatchSizes:
    if not config.scaling.is_elastic or workers is None or workers == usual.world_size:
        return usual
    share = OpenBatchSizes(usual.global_batch_size, workers)
    return share if isinstance(usual, OpenBatchSizes) else share.settled(usual.micro_batch_size)


def accumulation(config: "ExperimentSchema") -> int | None:
    """Return the micro batches per step, for the largest stage; None if not known or the sizes are invalid."""
    try:
        return largest_sizes(config).gradient_accumulation_steps
    except ConfigError:
        return None


def _open(total: int | None, world: int) -> OpenBatchSizes:
    if total is None:
        reason = f"is needed with {MICRO}: max, which says nothing about the samples of an optimizer step"
        raise ConfigError([Problem("batch", reason, GLOBAL, hint=f"write a number, such as {GLOBAL}: 256")])
    return OpenBatchSizes(total, world)


def _solve(total: int | None, micro: int | None, accumulation: int | None, by: Takers) -> BatchSizes:
    world = by.number
    if total is None:
        micro, accumulation = micro or DEFAULT_MICRO_BATCH_SIZE, accumulation or 1
        total = micro * accumulation * world
        if total > LARGEST_BATCH:
            raise ConfigError([_too_large(micro, accumulation, by)])
    elif micro is None:
        accumulation = accumulation or 1
        micro = _divide(total, accumulation * world, _product(accumulation, "accumulation", by))
    elif accumulation is None:
        accumulation = _divide(total, micro * world, _product(micro, "micro", by), f", or change {MICRO}")
    elif micro * accumulation * world != total:
        raise ConfigError([_mismatch(total, micro, accumulation, by)])
    return BatchSizes(total, micro, accumulation, world, by.unit)


def _divide(total: int, unit: int, product: str, other_hint: str = "") -> int:
    if total % unit:
        below, above = total // unit * unit, total // unit * unit + unit
        nearest = f"{below} or {above}" if below else f"{above}"
        reason = f"{total} does not divide evenly by {product}" + (f" = {unit}" if " x " in product else "")
        raise ConfigError([Problem("batch", reason, GLOBAL, hint=f"write {nearest}{other_hint}")])
    return total // unit


def _too_large(micro: int, accumulation: int, by: Takers) -> Problem:
    product = f"{_all_three(micro, accumulation, by)} = {micro * accumulation * by.number}"
    reason = f"{product}, more than the largest global batch of {LARGEST_BATCH}"
    return Problem("batch", reason, MICRO, hint=f"lower {MICRO}, {ACCUMULATION} or {WORKERS}")


def _mismatch(total: int, micro: int, accumulation: int, by: Takers) -> Problem:
    actual = micro * accumulation * by.number
    reason = f"{_all_three(micro, accumulation, by)} = {actual}, not {total}"
    hint = f"write {GLOBAL}: {actual}"
    if total % (micro * by.number) == 0:
        hint += f", or {ACCUMULATION}: {total // (micro * by.number)}"
    elif total % (accumulation * by.number) == 0:
        hint += f", or {MICRO}: {total // (accumulation * by.number)}"
    return Problem("batch", reason, GLOBAL, hint=hint)


def _all_three(micro: int, accumulation: int, by: Takers) -> str:
    return f"{micro} micro x {accumulation} accumulation x {by}"


def _product(number: int, name: str, by: Takers) -> str:
    """Return the factors that are not 1, as text."""
    shown = [f"{number} {name}"] if number > 1 else []
    return " x ".join([*shown, str(by)] if by.number > 1 else shown)
