"""The functions that do a tune-up's jobs, on all ranks of a worker group or in this process alone."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import torch

from paceline._compat.torch import BatchNormBase
from paceline.bench.stepper import ENDLESS, Quiet
from paceline.bench.surroundings import surroundings
from paceline.config.batch_sizes import largest_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.data.base import DataConfig
from paceline.engine.blocks import find_blocks
from paceline.engine.build import build_trainer
from paceline.engine.build_task import seed_model
from paceline.engine.dist_context import DistContext
from paceline.engine.loading import SlicedDataset
from paceline.engine.redundant_bias import find_redundant_bias
from paceline.engine.trial_steps import release
from paceline.memory.measuring import measure_peak
from paceline.memory.predicting import ask
from paceline.models.base import ModelConfig
from paceline.profiling.diagnosis import diagnose
from paceline.profiling.parts import PARTS
from paceline.tasks.base import TaskConfig
from paceline.tuneups.facts import TuneupFacts
from paceline.tuneups.paired_benchmark import BenchmarkRules, paired_benchmark

Configs = Sequence[ExperimentConfig]
Options = Mapping[str, Any]


def look(configs: Configs, options: Options, ranks: DistContext) -> Mapping[str, Any]:
    """Return the facts of the model and the data that decide which techniques apply."""
    (config,) = configs
    seed_model(config.seed)
    task = TaskConfig.of(config.task).build(ModelConfig.of(config.model).build())
    sets = DataConfig.of(config.data).sets()
    train = sets.train
    parameters = list(task.parameters())
    facts = TuneupFacts(
        parameters=sum(each.numel() for each in parameters),
        has_convolutions=any(each.dim() == 4 for each in parameters),
        redundant_biases=_redundant_biases(task.model),
        blocks=sum(1 for _ in find_blocks(task.model)),
        is_sliced=isinstance(train, SlicedDataset),
        train_samples=len(train),
        validation_samples=sum(map(len, sets.validation.values())),
        normalises_batches=any(isinstance(each, BatchNormBase) for each in task.modules()),
        **surroundings(config, ranks),
    )
    return asdict(facts)


def _redundant_biases(model: torch.nn.Module) -> int:
    with suppress(Exception):  # user code that is run on fake tensors may raise anything
        return len(find_redundant_bias(model))
    return 0


def split(configs: Configs, options: Options, ranks: DistContext) -> Mapping[str, Any]:
    """Split the time of a step, and return the bottleneck with its fixes."""
    release(ranks.device)
    (config,) = configs
    endless = config.with_overrides(ENDLESS)
    found = diagnose(endless, lambda each: build_trainer(each, ranks, Quiet()), **options)
    bottleneck = found.bottleneck
    return {
        "fractions": {part: found.split.fraction(part) for part in PARTS},
        "seconds_per_sample": found.split.sample_seconds,
        "kind": bottleneck.kind,
        "share": bottleneck.share,
        "reason": bottleneck.reason,
        "fixes": [asdict(fix) for fix in bottleneck.fixes],
    }


def benchmark(configs: Configs, options: Options, ranks: DistContext) -> Mapping[str, Any]:
    """A technique against the baseline."""
    baseline, technique = configs
    return asdict(paired_benchmark(baseline, technique, BenchmarkRules(**options), ranks))


def build(configs: Configs, options: Options, ranks: DistContext) -> Mapping[str, Any]:
    """One benchmark after the other, each of two configs that are built again."""
    found = []
    for baseline, technique, own in options["comparisons"]:
        release(ranks.device)  # of the trainers before
        rules = BenchmarkRules(**{**options["rules"], **own})
        found.append({"pairs": paired_benchmark(configs[baseline], configs[technique], rules, ranks).pairs})
    return {"benchmarks": found}


def memory(configs: Configs, options: Options, ranks: DistContext) -> Mapping[str, Any]:
    """The peak of one worker's share of the work in a fresh process beside this one, without what the exchange of
    gradients takes."""
    (config,) = configs
    if not ranks.is_first:
        return {}
    workers = max(1, config.scaling.num_workers)
    batch = max(1, batch_of(config) // workers)
    one_size = {"data.batch_size_schedule": None, "data.global_batch_size": batch}
    share = config.with_overrides({"scaling.num_workers": 0, **one_size})
    return {"bytes": measure_peak(share, ranks.device.type == "cuda", options["timeout_seconds"])}


def predict(configs: Configs, options: Options, ranks: DistContext) -> Mapping[str, Any]:
    """Predict the memory of one worker with each of some overrides; None where that is not possible."""
    if not ranks.is_first:
        return {}
    (config,) = configs
    on_cuda, timeout_seconds = ranks.device.type == "cuda", options["timeout_seconds"]
    found = ask(config, options["points"], on_cuda, facts=False, timeout_seconds=timeout_seconds)
    return {"bytes": [None if each is None else sum(each["memory"].values()) for each in found["points"]]}


def batch_of(config: ExperimentConfig) -> int:
    """The global batch size of a config; of a schedule, the largest."""
    return largest_sizes(config).global_batch_size
