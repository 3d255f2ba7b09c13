"""Checks that `data.batch_size_schedule` is consistent with itself and with the rest of the config."""

from collections.abc import Callable, Iterator

from paceline.config.batch_size_schedule import SCHEDULE
from paceline.config.batch_sizes import ACCUMULATION, GLOBAL, MICRO, WORKERS, stage_sizes
from paceline.config.disagreement import Disagreement, contradiction
from paceline.config.experiment_schema import ExperimentSchema
from paceline.errors import ConfigError


def _stages(config: ExperimentSchema) -> Iterator[Disagreement]:
    stages = config.data.batch_size_schedule or []
    if stages and stages[0].samples != 0:
        reason = f"the first stage begins after {stages[0].samples:,} samples, and those before have no batch size"
        yield contradiction(reason, "write samples: 0", f"{SCHEDULE}.0.samples", SCHEDULE)
    for index in range(1, len(stages)):
        before, samples = stages[index - 1].samples, stages[index].samples
        if samples <= before:
            reason = f"a stage begins after {samples:,} samples, and the one before it after {before:,}"
            hint = f"write more than {before:,}, or leave the stage out"
            yield contradiction(reason, hint, f"{SCHEDULE}.{index}.samples", SCHEDULE)
    total = config.data.global_batch_size
    if stages and total not in (None, stages[0].global_batch_size):
        reason = f"is {total}, and the first stage of {SCHEDULE} has {stages[0].global_batch_size}"
        yield contradiction(reason, "leave it out: the schedule has the sizes", GLOBAL, SCHEDULE)


def _adascale(config: ExperimentSchema) -> Iterator[Disagreement]:
    if config.optimizer.lr_scaling != "adascale" or config.scaling.fewest_workers > 1:
        return
    try:
        sizes = stage_sizes(config)
    except ConfigError:
        return
    if len({each.gradient_accumulation_steps == 1 for each in sizes}) == 2:  # else the check of adascale has it
        reason = "adascale compares the gradients of a step, and a stage without accumulation has only one"
        hint = f"write a smaller {MICRO}, or {ACCUMULATION}: 2"
        yield contradiction(reason, hint, SCHEDULE, "optimizer.lr_scaling", WORKERS, MICRO)


SCHEDULE_CHECKS: tuple[Callable[[ExperimentSchema], Iterator[Disagreement]], ...] = (
    _stages,
    _adascale,
)
