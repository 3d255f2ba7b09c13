"""From a config to a trainer that is ready to run, on each rank."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from paceline.config.experiment import ExperimentConfig
from paceline.config.hints import listed
from paceline.config.lightning import HINT, has_other_task
from paceline.data.base import DataConfig
from paceline.engine.build_callbacks import named_callbacks, set_up_callbacks
from paceline.engine.build_checkpointer import build_checkpointer, continue_if_extended, find_newest, resume
from paceline.engine.build_data import build_data, name_of
from paceline.engine.build_optimizer import build_optimizer, first_lr, optimizer_text, report_untrained
from paceline.engine.build_step import build_stages, build_step, overlapping_pass
from paceline.engine.build_strategy import build_strategy
from paceline.engine.build_task import build_task, settle_sizes
from paceline.engine.checkpoint_files import CheckpointStore
from paceline.engine.compile_trial import try_compilation
from paceline.engine.dataset_identity import DataRecord, identities, read_contents
from paceline.engine.dist_context import DistContext
from paceline.engine.evaluation_metrics import EvaluationMetrics
from paceline.engine.evaluator import Evaluator
from paceline.engine.initial_weights import load_initial_weights
from paceline.engine.length_change import length_change, plan_values
from paceline.engine.loop_context import LoopContext
from paceline.engine.meter import Meter
from paceline.engine.metric_logger import MetricLogger
from paceline.engine.monitoring.host_monitor import HostMonitor
from paceline.engine.plan import TrainPlan
from paceline.engine.precision import Precision
from paceline.engine.prepare import apply_process_settings, prepare
from paceline.engine.reporter import Reporter
from paceline.engine.rungs import Rungs, RungStopper
from paceline.engine.seeding import draws_only_from_torch
from paceline.engine.state import TrainState, weights_sha256
from paceline.engine.trainer import Trainer
from paceline.engine.user_code import changed_modules, code_record
from paceline.lr_schedulers.base import LRSchedulerConfig

CHANGED_CODE = "The run continues with the code as it is now; --new starts from scratch with it"


def build_trainer(
    config: ExperimentConfig,
    ranks: DistContext,
    reporter: Reporter,
    checkpoints: Path | None = None,
    rungs: Rungs | None = None,
    store: CheckpointStore | None = None,
    shown_name: Callable[[str], str] = str,
    extended_from_step: int | None = None,
    find_weights: Callable[[str], Path] | None = None,
) -> Trainer:
    """Build everything of one rank from the config. Every rank must call it.

    Args:
        checkpoints: folder of the run's checkpoints; the newest valid one is resumed. None: neither save nor resume.
        rungs: how far to train before the reporter is asked whether to continue. None: to the end at once.
        store: where checkpoints count; the folder has working copies of them then. None: the folder itself.
        shown_name: the name under which a metric of the task is reported: its own may hold a secret.
        extended_from_step: the last step of the finished run that this one trains further; None: it does not.
        find_weights: returns the file or the folder that `model.weights` means. None: the fresh weights are kept, which
            is enough to measure memory.
    """

    def warn_of(code: str) -> Callable[[str], None]:
        return lambda message: reporter.event("warning", message=message, code=code) if ranks.is_first else None

    apply_process_settings(config.trainer, ranks.device)
    newest = find_newest(checkpoints, ranks, reporter, config, store) if checkpoints is not None else None
    sizes, settled = settle_sizes(config, ranks, reporter, newest)

    # the model in its task, with every technique applied, and its optimizer
    task = build_task(config, sizes)
    source = config.model.initial_weights
    if newest is None and source is not None and find_weights is not None:
        place = find_weights(source)
        weights = load_initial_weights(task, config, place)
        if ranks.is_first:
            reporter.event("initial_weights", weights=source, path=str(place), sha256=weights_sha256(weights))
    precision, strategy = Precision(config.trainer.precision, ranks.device), build_strategy(config.parallel, ranks)
    model = prepare(task, config.trainer, precision, strategy, warn_of("no-effect"))
    scaled_lr = config.optimizer.scaled_lr(sizes.global_batch_size)
    optimizer = build_optimizer(config, task, scaled_lr, ranks.device, strategy.layout)
    if task.builds_optimizers and ranks.is_first:
        reporter.event("optimizer", text=optimizer_text(optimizer))
    report_untrained(task, optimizer, strategy.layout, warn_of("untrained-parameters"))
    if has_other_task(config, type(task.model)):
        reason = f"the model is a LightningModule, and task {config.task.describe()} does not call its training_step"
        warn_of("lightning-task")(f"{reason}. {HINT[0].upper()}{HINT[1:]}")
    for code, message in task.notices():
        warn_of(code)(message)
    state = TrainState(task, optimizer, precision, layout=strategy.layout)

    # the data, and with them the length of the training
    sets = DataConfig.of(config.data).sets()
    contents = read_contents(sets.roles, config.data.num_workers, checkpoints is not None) if ranks.is_first else None
    data, validation_loaders = build_data(config, sets, sizes, precision, strategy, task)
    plan = TrainPlan(config.trainer, config.checkpoint, data.steps_per_epoch, data.scheduled)
    warmup_steps = config.lr_scheduler.warmup_length(plan.lr_steps_per_epoch, sizes.global_batch_size)
    scheduler = LRSchedulerConfig.of(config.lr_scheduler)
    schedule = scheduler.build(plan.lr_steps, warmup_steps, plan.lr_steps_per_epoch)
    peak_lr = first_lr(task, optimizer, scaled_lr)
    stages = build_stages(config, state, data.scheduled, peak_lr)
    named = dict(named_callbacks(config))
    only_torch = draws_only_from_torch(config, task, optimizer, named.values())
    step, components = build_step(
        config, model, state, strategy, sizes, schedule, peak_lr, stages, only_torch, warn_of("powersgd-restarted")
    )

    record = DataRecord(config, contents) if contents is not None else None
    user_code = code_record(config) if checkpoints is not None and ranks.is_first else {}
    checkpointer = build_checkpointer(
        config, state, data, {**settled, **plan_values(plan), **user_code}, record, checkpoints, ranks, reporter, store
    )
    for name, component in components.items():
        checkpointer.register(name, component)

    # called in this order after a step: what the user has configured, rungs, logs, evaluation
    meter = Meter(drain=partial(torch.cuda.synchronize, ranks.device) if ranks.device.type == "cuda" else None)
    context = LoopContext(state, ranks, config, reporter)
    callbacks = set_up_callbacks(named, config, context, checkpointer)
    rung_stopper = None
    if rungs is not None:
        samples, timeout_seconds = data.samples_per_epoch, config.parallel.timeout_seconds
        rung_stopper = RungStopper(rungs, reporter, ranks, samples, state, plan, checkpointer, meter, timeout_seconds)
        checkpointer.register("rungs", rung_stopper)
        callbacks.append(rung_stopper)
    all_gpus = config.parallel.strategy == "data_parallel"
    monitor = HostMonitor(ranks, reporter, strategy.own_time, meter, all_gpus, config.tracking.system_metrics)
    beside = overlapping_pass(step, ranks)
    callbacks += [monitor, MetricLogger(state, plan, data, step.metrics, step.running, meter, monitor, beside)]
    evaluator = Evaluator(
        state,
        validation_loaders,
        plan,
        strategy,
        sizes.micro_batch_size,
        data.epochs,
        meter,
        is_wanted=lambda: rung_stopper is not None and rung_stopper.is_due,
        metrics=EvaluationMetrics(config.metrics, ranks) if config.metrics else None,
        shown_name=shown_name,
        callbacks=callbacks,
    )
    callbacks.append(evaluator)

    trainer = Trainer(
        model=model,
        state=state,
        step=step,
        data=data,
        plan=plan,
        checkpointer=checkpointer,
        callbacks=callbacks,
        context=context,
        meter=meter,
        reporter=reporter,
        strategy=strategy,
    )
    if contents is not None:
        reporter.event("plan", total_steps=plan.total_steps, steps_per_epoch=plan.steps_per_epoch)
        reporter.event("datasets", **identities(name_of(config.data), contents))
        if not any(len(loader.fetcher) for loader in validation_loaders.values()):
            warn_of("no-validation")("the validation set is empty, so nothing is evaluated")
    try:
        if config.trainer.compile != "none":
            try_compilation(trainer, validation_loaders.values(), config.trainer)
        if newest is not None:
            values = resume(trainer, newest)
            if changed := changed_modules(values, user_code):
                warn_of("code-changed")(f"{listed(changed)} changed since the checkpoint was written. {CHANGED_CODE}")
            was_stopped_early = continue_if_extended(state, extended_from_step)
            lr_at = stages.peak_lr_at if stages is not None else lambda step: peak_lr
            change = length_change(config, plan, values, lr_at, warmup_steps, was_stopped_early)
            if change is not None and ranks.is_first:
                text = change.text(config.lr_scheduler.describe())
                reporter.event("length", **asdict(change), text=text)
    except BaseException:
        with suppress(Exception):  # the first error is the one to report
            trainer.close()
        raise
    return trainer
