"""Execution of each kind of job, by all ranks of a worker group or by this process alone."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from time import perf_counter
from typing import Any

import torch

import paceline
from paceline._compat.torch import BatchNormBase
from paceline.bench.jobs import Answer, Job, config_of
from paceline.bench.stepper import ENDLESS, Quiet, Until
from paceline.cluster.initial_weights import weights_finder
from paceline.cluster.preflight import worker_threads
from paceline.cluster.worker_spec import WorkerSpec
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.data.base import DataConfig
from paceline.engine.blocks import find_blocks
from paceline.engine.build import build_trainer
from paceline.engine.build_task import seed_model
from paceline.engine.dist_context import DistContext
from paceline.engine.failure import RankFailed, failing_together
from paceline.engine.loading import SlicedDataset
from paceline.engine.monitoring.stamp import device_name, usable_cores
from paceline.engine.redundant_bias import find_redundant_bias
from paceline.engine.trial_steps import release
from paceline.memory.measuring import measure_peak
from paceline.memory.predicting import ask
from paceline.models.base import ModelConfig
from paceline.profiling.diagnosis import diagnose
from paceline.profiling.parts import PARTS
from paceline.tasks.base import TaskConfig
from paceline.tuneups.facts import TuneupFacts
from paceline.tuneups.own_digests import own_digests
from paceline.tuneups.paired_benchmark import BenchmarkRules, paired_benchmark


def do_job(job: Job, base: WorkerSpec, ranks: DistContext) -> Answer:
    """Do a job. Every rank must call it; the answer of rank 0 counts, or that of a rank that failed.

    Raises:
        Exception: the loss of a process or of its connection.
    """

    def body() -> Mapping[str, Any]:
        torch.set_num_threads(worker_threads(config_of(base, job.configs[0])))
        return _WAYS[job.kind](job, base, ranks)

    try:
        return Answer(failing_together(ranks, body))
    except RankFailed as error:
        return Answer(problem=error.failure.reason, kind=error.failure.kind)


def _look(job: Job, base: WorkerSpec, ranks: DistContext) -> Mapping[str, Any]:
    """Return the facts of the model and the data that decide which techniques apply."""
    config = config_of(base, job.configs[0])
    seed_model(config.seed)
    task = TaskConfig.of(config.task).build(ModelConfig.of(config.model).build())
    sets = DataConfig.of(config.data).sets()
    train = sets.train
    parameters = list(task.parameters())
    facts = TuneupFacts(
        device_type=ranks.device.type,
        world_size=ranks.world_size,
        cores=torch.get_num_threads(),
        parameters=sum(each.numel() for each in parameters),
        has_convolutions=any(each.dim() == 4 for each in parameters),
        redundant_biases=_redundant_biases(task.model),
        blocks=sum(1 for _ in find_blocks(task.model)),
        is_sliced=isinstance(train, SlicedDataset),
        train_samples=len(train),
        validation_samples=sum(map(len, sets.validation.values())),
        normalises_batches=any(isinstance(each, BatchNormBase) for each in task.modules()),
        device=device_name(ranks.device),
        device_memory_bytes=_device_memory_bytes(ranks.device),
        usable_cores=usable_cores(),
        software=f"paceline {paceline.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}",
        code=own_digests(config) if ranks.is_first else {},
    )
    return asdict(facts)


def _device_memory_bytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 0


def _redundant_biases(model: torch.nn.Module) -> int:
    with suppress(Exception):  # user code that is run on fake tensors may raise anything
        return len(find_redundant_bias(model))
    return 0


def _split(job: Job, base: WorkerSpec, ranks: DistContext) -> Mapping[str, Any]:
    """Split the time of a step, and return the bottleneck with its fixes."""
    release(ranks.device)
    config = config_of(base, job.configs[0])
    endless = config.with_overrides(ENDLESS)
    found = diagnose(endless, lambda each: build_trainer(each, ranks, Quiet()), **job.options)
    split, bottleneck = found.split, found.bottleneck
    return {
        "fractions": {part: split.fraction(part) for part in PARTS},
        "seconds_per_sample": split.sample_seconds,
        "kind": bottleneck.kind,
        "share": bottleneck.share,
        "reason": bottleneck.reason,
        "fixes": [asdict(fix) for fix in bottleneck.fixes],
    }


def _benchmark(job: Job, base: WorkerSpec, ranks: DistContext) -> Mapping[str, Any]:
    """A technique against the baseline."""
    baseline, technique = (config_of(base, part) for part in job.configs)
    return asdict(paired_benchmark(baseline, technique, BenchmarkRules(**job.options), ranks))


def _build(job: Job, base: WorkerSpec, ranks: DistContext) -> Mapping[str, Any]:
    """One benchmark after the other, each of two configs that are built again."""
    configs = [config_of(base, part) for part in job.configs]
    found = []
    for baseline, technique, own in job.options["comparisons"]:
        release(ranks.device)  # of the trainers before
        rules = BenchmarkRules(**{**job.options["rules"], **own})
        found.append({"pairs": paired_benchmark(configs[baseline], configs[technique], rules, ranks).pairs})
    return {"benchmarks": found}


def _train(job: Job, base: WorkerSpec, ranks: DistContext) -> Mapping[str, Any]:
    """Train to the end, without checkpoints, unless the time is over before; `seconds` are those of the training steps
    alone."""
    release(ranks.device)  # of the jobs before
    reporter = Until(job.options["seconds"])
    begun = perf_counter()
    config = config_of(base, job.configs[0])
    trainer = build_trainer(config, ranks, reporter, find_weights=weights_finder(config))
    outcome = trainer.fit()
    validation = [(step, values) for step, values in reporter.points if any(key.startswith("val/") for key in values)]
    return {
        "stopped": outcome.stopped,
        "metrics": outcome.metrics,
        "seconds": outcome.seconds.get("training", 0.0),
        "wall_seconds": perf_counter() - begun,
        "samples": outcome.samples,
        "validation": validation,
    }


def _memory(job: Job, base: WorkerSpec, ranks: DistContext) -> Mapping[str, Any]:
    """The peak of one worker's share of the work in a fresh process beside this one, without what the exchange of
    gradients takes."""
    config = config_of(base, job.configs[0])
    if not ranks.is_first:
        return {}
    workers = max(1, config.scaling.num_workers)
    batch = max(1, batch_of(config) // workers)
    share = config.with_overrides({"scaling.num_workers": 0, "data.global_batch_size": batch})
    return {"bytes": measure_peak(share, ranks.device.type == "cuda", job.options["timeout_seconds"])}


def _predict(job: Job, base: WorkerSpec, ranks: DistContext) -> Mapping[str, Any]:
    """Predict the memory of one worker with each of some overrides; None where that is not possible."""
    if not ranks.is_first:
        return {}
    config = config_of(base, job.configs[0])
    on_cuda, timeout_seconds = ranks.device.type == "cuda", job.options["timeout_seconds"]
    found = ask(config, job.options["points"], on_cuda, facts=False, timeout_seconds=timeout_seconds)
    return {"bytes": [None if each is None else sum(each["memory"].values()) for each in found["points"]]}


def batch_of(config: ExperimentConfig) -> int:
    """The global batch size of a config."""
    return derive(config, None).batch.global_batch_size


_WAYS: dict[str, Callable[[Job, WorkerSpec, DistContext], Mapping[str, Any]]] = {
    "look": _look,
    "split": _split,
    "benchmark": _benchmark,
    "build": _build,
    "train": _train,
    "memory": _memory,
    "predict": _predict,
}
