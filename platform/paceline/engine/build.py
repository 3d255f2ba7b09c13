"""From a config to a trainer that is ready to run, on each rank."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.callbacks.base import CallbackConfig
from paceline.callbacks.callback import Callback
from paceline.config.batch_sizes import BatchSizes, batch_sizes, sizes_with
from paceline.config.experiment import ExperimentConfig
from paceline.data.base import DataConfig
from paceline.direction import default_mode
from paceline.engine.adascale import AdaScale, AdaScaleLR
from paceline.engine.best_checkpoints import BestCheckpoints
from paceline.engine.build_data import (
    build_loaders,
    build_order,
    build_stream,
    chosen,
    name_of,
    require_steps,
    require_streamable,
)
from paceline.engine.build_optimizer import build_optimizer, first_lr, report_untrained
from paceline.engine.build_strategy import build_strategy
from paceline.engine.checkpoint import CheckpointStore, CheckpointWriter, Elsewhere, Files, newest_valid
from paceline.engine.checkpointer import Checkpointer
from paceline.engine.comm_hooks import build_compression, build_powersgd
from paceline.engine.compile_trial import try_compilation
from paceline.engine.data_stream import MapStyleStream
from paceline.engine.dataset_identity import DataRecord, identities, read_contents
from paceline.engine.ddp import hook_into_exchange, needs_lockstep
from paceline.engine.evaluation_metrics import EvaluationMetrics
from paceline.engine.evaluator import Evaluator
from paceline.engine.forward_backward import LocalForwardBackward
from paceline.engine.initial_weights import load_initial_weights
from paceline.engine.iterable_stream import IterableStream
from paceline.engine.largest_batch import LargestBatch
from paceline.engine.length_change import build_schedule, length_change, plan_values
from paceline.engine.loading import BatchLoader
from paceline.engine.loop_context import LoopContext
from paceline.engine.lr_policy import LRPolicy
from paceline.engine.manual_step import ManualStep, require_plain
from paceline.engine.meter import Meter
from paceline.engine.metric_logger import MetricLogger
from paceline.engine.observing.observer import Observer
from paceline.engine.plan import TrainPlan
from paceline.engine.precision import Precision
from paceline.engine.prepare import apply_process_settings, prepare
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import Reporter
from paceline.engine.rungs import ROUND_SECONDS, Rungs, RungStopper
from paceline.engine.running import RunningLoss
from paceline.engine.seeding import StepSeeds, draws_only_from_torch, seed_everything
from paceline.engine.state import TrainState, weights_sha256
from paceline.engine.strategy import Strategy
from paceline.engine.train_step import TrainStep
from paceline.engine.trainer import Trainer
from paceline.engine.trial_steps import Parts
from paceline.engine.unrecorded import UNRECORDED, as_file, metrics_of
from paceline.engine.weight_contract import WeightContract
from paceline.engine.weight_scale import WeightScale
from paceline.errors import UnusableCode
from paceline.lr_schedulers.base import Schedule
from paceline.models.base import ModelConfig
from paceline.tasks._task import Task
from paceline.tasks.base import TaskConfig

RECORDED_SECONDS = 30.0
"""How long a checkpoint waits for the metrics before it to be safe."""


def build_trainer(
    config: ExperimentConfig,
    ranks: Ranks,
    reporter: Reporter,
    checkpoints: Path | None = None,
    rungs: Rungs | None = None,
    store: CheckpointStore | None = None,
    shown_name: Callable[[str], str] = str,
    extended_from_step: int | None = None,
    find_weights: Callable[[str], Path] | None = None,
) -> Trainer:
    """Everything of one rank, from the config. Every rank must call it.

    Args:
        checkpoints: folder of the run's checkpoints; the newest valid one is resumed. None: neither save nor resume.
        rungs: how far to train before the reporter is asked whether to go on. None: to the end at once.
        store: where checkpoints count; the folder has working copies of them then. None: the folder itself.
        shown_name: what a metric of the task is called in what is reported: its name may hold a secret.
        extended_from_step: the last step of the finished run that this one trains further; None: it does not.
        find_weights: returns the file or the folder that `model.weights` means. None: the fresh weights are kept, which
            is enough to measure memory.
    """
    apply_process_settings(config.trainer)
    newest = find_newest(checkpoints, ranks, reporter, config, store) if checkpoints is not None else None
    sizes, settled = settle_sizes(config, ranks, reporter, newest)
    task = build_task(config, sizes)
    source = config.model.initial_weights
    if newest is None and source is not None and find_weights is not None:
        weights = load_initial_weights(task, config, find_weights(source))
        if ranks.is_first:
            reporter.event("initial_weights", weights=source, sha256=weights_sha256(weights))
    precision = Precision(config.trainer.precision, ranks.device)
    strategy = build_strategy(config.parallel, ranks)

    def warn_of(code: str) -> Callable[[str], None]:
        return lambda message: reporter.event("warning", message=message, code=code) if ranks.is_first else None

    model = prepare(task, config.trainer, precision, strategy, warn_of("no-effect"))
    optimizer = build_optimizer(
        config, task, config.optimizer.scaled_lr(sizes.global_batch_size), ranks.device, strategy.layout
    )
    report_untrained(task, optimizer, warn_of("untrained-parameters"))
    for code, message in task.notices():
        warn_of(code)(message)
    peak_lr = first_lr(task, optimizer, config.optimizer.scaled_lr(sizes.global_batch_size))
    state = TrainState(task, optimizer, precision, layout=strategy.layout)
    adascale = build_adascale(config, state.trainable, sizes, ranks)
    powersgd = build_powersgd(config.parallel, state.trainable, ranks, config.seed, warn_of("powersgd-restarted"))
    hook_into_exchange(model, build_compression(config.parallel, powersgd), adascale)
    sets = DataConfig.of(config.data).sets()
    contents = read_contents(sets.roles, config.data.num_workers, checkpoints is not None) if ranks.is_first else None
    train_loader, validation_loaders = build_loaders(config, sets, precision, ranks.device)
    data: MapStyleStream | IterableStream
    if train_loader is None:
        data = build_stream(config, sets, sizes, precision, strategy)
        steps_per_epoch, samples_per_epoch = config.trainer.max_steps or 1, float("inf")
    else:
        is_lockstep = strategy.layout.is_sliced or needs_lockstep(task)
        order = build_order(config, len(train_loader.fetcher), sizes, strategy, is_lockstep, sets.sampler)
        data = MapStyleStream(order, train_loader)
        steps_per_epoch, samples_per_epoch = order.steps_per_epoch, order.samples_per_epoch
    plan = TrainPlan(config.trainer, config.checkpoint, steps_per_epoch)
    settled = {**settled, **plan_values(plan)}
    running = RunningLoss(ranks)
    schedule = build_schedule(config, plan.total_steps, plan.steps_per_epoch, sizes.global_batch_size)
    lr = build_lr(config, state, peak_lr, schedule, adascale)
    seeds_of = partial(StepSeeds, config.seed, only_torch=draws_only_from_torch(config, task, optimizer))
    forward_backward = strategy.forward_backward(model, precision, running, seeds_of, adascale)
    weight_scale = None
    if isinstance(forward_backward, LocalForwardBackward) and not task.weight_is_samples:
        weight_scale = forward_backward.weight_scale = WeightScale(ranks)
    contract = WeightContract(task, precision, ranks.device, is_whole=may_evaluate_alike(strategy, sizes))
    step: TrainStep | ManualStep
    if task.automatic_optimization:
        step = TrainStep(
            state,
            forward_backward,
            lr,
            running,
            ranks,
            max_grad_norm=config.trainer.max_grad_norm,
            set_to_none=config.trainer.zero_grad == "set_to_none",
            contract=contract,
        )
    else:
        step = ManualStep(
            state, lr, running, ranks, seeds_of(ranks), config.trainer.max_grad_norm, strategy.own_time, contract
        )
    writer = build_writer(config, checkpoints, reporter, store) if checkpoints and ranks.is_first else None
    timeout_seconds = config.parallel.timeout_seconds
    record = DataRecord(config, contents) if contents is not None else None
    checkpointer = Checkpointer(
        state, ranks, writer, checkpoints is not None, data.identity, settled, timeout_seconds, record
    )
    checkpointer.register("running", running)
    if isinstance(data, IterableStream):
        checkpointer.register("data", data)
    if weight_scale is not None:
        checkpointer.register("weight_scale", weight_scale)
    if adascale is not None:
        checkpointer.register("adascale", adascale)
    if powersgd is not None:
        checkpointer.register("powersgd", powersgd)
    meter = Meter(drain=partial(torch.cuda.synchronize, ranks.device) if ranks.device.type == "cuda" else None)
    context = LoopContext(state, ranks, config, reporter)
    callbacks = build_callbacks(config, context, checkpointer)
    if config.checkpoint.monitor is not None:
        mode = config.checkpoint.mode or default_mode(config.checkpoint.monitor)
        best = BestCheckpoints(config.checkpoint.monitor, mode, config.checkpoint.keep_best, writer)
        checkpointer.register("best_checkpoints", best)
        callbacks.append(best)
    rung_stopper = None
    if rungs is not None:
        rung_stopper = RungStopper(
            rungs, reporter, ranks, samples_per_epoch, state, plan, checkpointer, meter, timeout_seconds
        )
        checkpointer.register("rungs", rung_stopper)
        callbacks.append(rung_stopper)
    observer = build_observer(config, strategy, reporter)
    callbacks.append(MetricLogger(state, plan, data, lr, running, meter, observer))
    evaluator = Evaluator(
        state,
        validation_loaders,
        plan,
        strategy,
        sizes.micro_batch_size,
        data.epochs,
        meter,
        is_wanted=lambda: rung_stopper is not None and rung_stopper.is_due,
        metrics=EvaluationMetrics(config.metrics, strategy.ranks) if config.metrics else None,
        shown_name=shown_name,
        callbacks=callbacks,
    )
    callbacks.append(evaluator)
    trainer = Trainer(
        model=model,
        state=state,
        step=step,
        data=data,
        evaluator=evaluator,
        observer=observer,
        plan=plan,
        checkpointer=checkpointer,
        callbacks=callbacks,
        context=context,
        meter=meter,
        reporter=reporter,
        ranks=ranks,
        strategy=strategy,
    )
    if contents is not None:
        reporter.event("plan", total_steps=plan.total_steps, steps_per_epoch=plan.steps_per_epoch)
        reporter.event("datasets", **identities(name_of(config.data), contents))
        if not any(len(loader.fetcher) for loader in validation_loaders.values()):
            warn_of("no-validation")("the validation set is empty, so nothing is evaluated")
    if config.trainer.compile != "none":
        try_compilation(trainer, config.trainer)
    if newest is not None:
        values = resume(trainer, newest)
        was_stopped_early = continue_if_extended(state, extended_from_step)
        change = length_change(config, plan, values, peak_lr, sizes.global_batch_size, was_stopped_early)
        if change is not None and ranks.is_first:
            text = change.text(config.lr_scheduler.describe())
            reporter.event("length", **asdict(change), text=text)
    return trainer


def may_evaluate_alike(strategy: Strategy, sizes: BatchSizes) -> bool:
    """True if every rank holds the whole task and can halve its first micro-batch.

    A model may communicate in its forward pass, so that all ranks evaluate it equally often or not at all.
    """
    least = min(sizes.global_batch_size // strategy.data_ranks.world_size, sizes.micro_batch_size)
    return not strategy.layout.is_spread and least >= 2


def seed_model(seed: int) -> None:
    """Seed all that a model's code may draw its first weights from."""
    torch.manual_seed(seed)
    seed_everything(seed)


def settle_sizes(
    config: ExperimentConfig, ranks: Ranks, reporter: Reporter, checkpoint: Path | None
) -> tuple[BatchSizes, dict[str, Any]]:
    """The batch sizes, and what each checkpoint is to remember of them. Every rank must call it.

    Args:
        checkpoint: the one that training goes on from.
    """
    asked = sizes_with(config, ranks.world_size) if config.scaling.is_elastic else batch_sizes(config)
    if isinstance(asked, BatchSizes):
        if config.scaling.is_elastic and ranks.is_first:
            reporter.event("batch", **asdict(asked), text=asked.text())
        return asked, {}

    def task() -> Task:
        return build_task(config)

    def optimizer(task: Task) -> Optimizer:
        peak_lr = config.optimizer.scaled_lr(asked.global_batch_size)
        return build_optimizer(config, task, peak_lr, ranks.device)

    def loaders() -> tuple[BatchLoader, dict[str, BatchLoader]]:
        precision = Precision(config.trainer.precision, ranks.device)
        train, validation = build_loaders(config, DataConfig.of(config.data).sets(), precision, ranks.device)
        if train is None:
            require_streamable(config)
        assert train is not None
        require_steps(config, len(train.fetcher), asked.global_batch_size)
        return train, validation

    search = LargestBatch(config, asked, ranks, reporter)
    sizes = search.settle(checkpoint, Parts(task, optimizer, loaders))
    return sizes, search.values(sizes)


def build_task(config: ExperimentConfig, sizes: BatchSizes | None = None) -> Task:
    """The model in its task, on the CPU.

    Args:
        sizes: None while they are being searched for.

    Raises:
        UnusableCode: there is nothing to train.
        ConfigError: the task steps its optimizers itself, and the config asks for what does not go with that.
    """
    seed_model(config.seed)
    task = TaskConfig.of(config.task).build(ModelConfig.of(config.model).build())
    require_trainable(config, task)
    if not task.automatic_optimization:
        require_plain(config, sizes)
    return task


def require_trainable(config: ExperimentConfig, task: Task) -> None:
    """Check that there is something to optimize.

    Raises:
        UnusableCode: every parameter is frozen, or there is none.
    """
    if not any(parameter.requires_grad for parameter in task.parameters()):
        raise UnusableCode(
            f"{chosen('model', config.model)}: the model has no trainable parameters; leave requires_grad on for some",
            "nothing-to-train",
        )


def build_adascale(
    config: ExperimentConfig, parameters: list[nn.Parameter], sizes: BatchSizes, ranks: Ranks
) -> AdaScale | None:
    """What finds each step's gain, where the learning rate is to follow the gradient's noise."""
    if config.optimizer.lr_scaling != "adascale":
        return None
    return AdaScale(parameters, config.optimizer.base_batch_size, sizes.global_batch_size, ranks)


def build_lr(
    config: ExperimentConfig, state: TrainState, peak_lr: float, schedule: Schedule, adascale: AdaScale | None
) -> LRPolicy:
    """The learning rate of each step."""
    if adascale is None:
        return LRPolicy(state.optimizer, peak_lr, schedule)
    return AdaScaleLR(state.optimizer, peak_lr, schedule, adascale, state.precision.scale)


def build_callbacks(config: ExperimentConfig, context: LoopContext, checkpointer: Checkpointer) -> list[Callback]:
    """The callbacks of a config, set up, their states registered under the names that they have in it."""
    callbacks = []
    for name, callback in named_callbacks(config):
        callback.setup(context)
        checkpointer.register(name, callback)
        callbacks.append(callback)
    return callbacks


def named_callbacks(config: ExperimentConfig) -> Iterator[tuple[str, Callback]]:
    """The callbacks of a config, newly built, and the names that their states have in a checkpoint."""
    counts = Counter[str]()
    for component in config.callbacks:
        name = re.sub(r"[^\w.-]", ".", component.describe())
        counts[name] += 1
        suffix = f".{counts[name]}" if counts[name] > 1 else ""
        yield f"callback.{name}{suffix}", CallbackConfig.of(component).build()


def build_observer(config: ExperimentConfig, strategy: Strategy, reporter: Reporter) -> Observer:
    """What tells of the ranks and their machines. Every rank must call it."""
    all_gpus = config.parallel.strategy == "data_parallel"
    return Observer(strategy.ranks, reporter, strategy.own_time, all_gpus, config.tracking.system_metrics)


def build_writer(
    config: ExperimentConfig, checkpoints: Path, reporter: Reporter, store: CheckpointStore | None = None
) -> CheckpointWriter:
    """Rank 0's writer, whose commits and failures are reported."""

    def wait_for_metrics() -> Files:
        if reporter.recorded(RECORDED_SECONDS) or not (left := reporter.unrecorded()):
            return {}
        kept = "they are kept in it, and recorded when training goes on from there"
        reporter.event(
            "warning",
            message=f"a checkpoint was saved before its metrics were recorded: {kept}",
            code="unrecorded-metrics",
        )
        return {UNRECORDED: as_file(checkpoints.parent.name, left)}

    def failed(step: int, error: Exception) -> None:
        if isinstance(error, OSError):
            code = "checkpoint-not-written"
            message = f"the checkpoint of step {step} could not be written: {error}; training goes on without it"
        else:
            code = "checkpoint-not-stored"
            message = f"the checkpoint of step {step} is not in its store: {error}; training goes on"
        reporter.event("warning", message=message, code=code, step=step)

    def committed(step: int, path: Path) -> None:
        reporter.event("checkpoint", step=step, path=str(path) if store is None else store.place_of(step))

    elsewhere = None if store is None else Elsewhere(store, lambda: reporter.stored(RECORDED_SECONDS))
    return CheckpointWriter(checkpoints, config.checkpoint.keep, wait_for_metrics, committed, failed, elsewhere)


def find_newest(
    checkpoints: Path,
    ranks: Ranks,
    reporter: Reporter,
    config: ExperimentConfig,
    store: CheckpointStore | None = None,
) -> Path | None:
    """The newest valid checkpoint, if there is one; rank 0 chooses for all. Every rank must call it."""

    def tell(path: Path, reason: str) -> None:
        message = f"checkpoint {path.name} is broken and was set aside: {reason}"
        reporter.event("warning", message=message, code="broken-checkpoint", checkpoint=path.name)

    def look() -> Path | None:
        if not ranks.is_first:
            return None
        if store is None:
            return newest_valid(checkpoints, tell)
        return store.newest(tell, lambda: reporter.stored(RECORDED_SECONDS))

    round_seconds = min(ROUND_SECONDS, config.parallel.timeout_seconds / 4)
    found = look() if store is None else ranks.each(look, round_seconds)
    step = int(ranks.from_first([float(found.name.removeprefix("step-")) if found else -1.0])[0])
    if step >= 0 and store is not None:
        ranks.each(lambda: store.fetch(step), round_seconds)
    return checkpoints / f"step-{step}" if step >= 0 else None


def resume(trainer: Trainer, checkpoint: Path) -> Mapping[str, Any]:
    """Go on from a valid checkpoint, and return its values. Every rank must call it."""
    values = trainer.checkpointer.load(checkpoint)
    writer = trainer.checkpointer.writer
    if writer is not None:
        if unrecorded := metrics_of(checkpoint):
            trainer.reporter.record_again(unrecorded)
        place = writer.place_of(checkpoint)
        trainer.reporter.event("resumed", step=trainer.state.position.step, path=place)
    return values


def continue_if_extended(state: TrainState, extended_from_step: int | None) -> bool:
    """Let a run continue that a callback had stopped and that the user extends; returns True if it had."""
    is_extended = extended_from_step is not None and state.position.step <= extended_from_step
    was_stopped_early = is_extended and state.is_stopped_early
    if was_stopped_early:
        state.is_stopped_early = False
    return was_stopped_early
