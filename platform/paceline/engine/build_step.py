"""Build the training step of a rank, with the learning rate that it applies."""

from collections.abc import Callable
from functools import partial

from torch import nn

from paceline.config.batch_size_schedule import ScheduledSteps
from paceline.config.batch_sizes import BatchSizes, stage_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.engine.adascale import AdaScale, AdaScaleLR
from paceline.engine.batch_stages import BatchStages
from paceline.engine.comm_hooks import build_compression, build_powersgd
from paceline.engine.ddp import hook_into_exchange
from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import LocalForwardBackward
from paceline.engine.lr_policy import LRPolicy
from paceline.engine.manual_step import ManualStep
from paceline.engine.noise_scale import NoiseScale
from paceline.engine.running import RunningLoss
from paceline.engine.seeding import StepSeeds
from paceline.engine.state import TrainState
from paceline.engine.stateful import Stateful
from paceline.engine.strategy import Strategy
from paceline.engine.train_step import TrainStep
from paceline.engine.weight_contract import WeightContract
from paceline.engine.weight_scale import WeightScale
from paceline.lr_schedulers.base import Schedule


def build_step(
    config: ExperimentConfig,
    model: nn.Module,
    state: TrainState,
    strategy: Strategy,
    sizes: BatchSizes,
    schedule: Schedule,
    peak_lr: float,
    stages: BatchStages | None,
    only_torch: bool,
    warn: Callable[[str], None],
) -> tuple[TrainStep | ManualStep, dict[str, Stateful]]:
    """Build the step over `model`, which is the task with every technique applied. Every rank must call it.

    Args:
        peak_lr: learning rate at which `schedule` is 1.
        stages: of a batch-size schedule, whose learning rates take the place of `peak_lr`.
        only_torch: no generator but torch's is drawn from.
        warn: reports that PowerSGD has started again.

    Returns:
        The step, and the parts of it whose state a checkpoint keeps, by name.
    """
    ranks, task = strategy.ranks, state.task
    adascale = build_adascale(config, state.trainable, sizes, ranks)
    powersgd = build_powersgd(config.parallel, state.trainable, ranks, config.seed, warn)
    noise_scale = build_noise_scale(config, state, ranks)
    observer = adascale or noise_scale
    hook_into_exchange(model, build_compression(config.parallel, powersgd), observer)
    running = RunningLoss(ranks)
    components: dict[str, Stateful | None] = {
        "running": running,
        "adascale": adascale,
        "noise_scale": noise_scale,
        "powersgd": powersgd,
    }
    lr = build_lr(state, peak_lr, schedule, adascale, stages)
    seeds_of = partial(StepSeeds, config.seed, only_torch=only_torch)
    contract = WeightContract(task, state.precision, ranks.device, is_whole=may_evaluate_alike(config, strategy, sizes))
    step: TrainStep | ManualStep
    if task.automatic_optimization:
        forward_backward = strategy.forward_backward(model, state.precision, running, seeds_of, observer)
        if isinstance(forward_backward, LocalForwardBackward) and not task.weight_is_samples:
            components["weight_scale"] = forward_backward.weight_scale = WeightScale(ranks)
        step = TrainStep(
            state,
            forward_backward,
            lr,
            running,
            ranks,
            max_grad_norm=config.trainer.max_grad_norm,
            set_to_none=config.trainer.zero_grad == "set_to_none",
            contract=contract,
            noise_scale=noise_scale,
        )
    else:
        step = ManualStep(
            state, lr, running, ranks, seeds_of(ranks), config.trainer.max_grad_norm, strategy.own_time, contract
        )
    return step, {name: each for name, each in components.items() if each is not None}


def build_adascale(
    config: ExperimentConfig, parameters: list[nn.Parameter], sizes: BatchSizes, ranks: DistContext
) -> AdaScale | None:
    """Return what measures each step's gain, if the learning rate follows the gradient's noise."""
    if config.optimizer.lr_scaling != "adascale":
        return None
    return AdaScale(parameters, config.optimizer.base_batch_size, sizes.global_batch_size, ranks)


def build_noise_scale(config: ExperimentConfig, state: TrainState, ranks: DistContext) -> NoiseScale | None:
    """Return what measures the gradient noise scale, if it is logged."""
    if not config.trainer.noise_scale:
        return None
    return NoiseScale(state.trainable, ranks, config.trainer.noise_scale_every_n_steps, state.precision.scale)


def build_lr(
    state: TrainState, peak_lr: float, schedule: Schedule, adascale: AdaScale | None, stages: BatchStages | None
) -> LRPolicy:
    """Return the learning rate of each step."""
    if adascale is None:
        return LRPolicy(state.optimizer, peak_lr, schedule, stages)
    return AdaScaleLR(state.optimizer, peak_lr, schedule, adascale, state.precision.scale, stages)


def build_stages(
    config: ExperimentConfig, state: TrainState, scheduled: ScheduledSteps | None, peak_lr: float
) -> BatchStages | None:
    """Return the stages of a batch-size schedule, if there is one.

    Args:
        peak_lr: of all stages where the task made the optimizer itself.
    """
    if scheduled is None:
        return None
    own = state.task.builds_optimizers
    sizes = scheduled.schedule.sizes
    return BatchStages(scheduled, state, [peak_lr if own else config.optimizer.scaled_lr(size) for size in sizes])


def may_evaluate_alike(config: ExperimentConfig, strategy: Strategy, sizes: BatchSizes) -> bool:
    """True if every rank holds the whole task and can halve its first micro-batch.

    A model may communicate in its forward pass, so that all ranks evaluate it equally often or not at all.
    """
    world_size = strategy.data_ranks.world_size
    all_sizes = [sizes, *stage_sizes(config, strategy.ranks.world_size)]
    least = min(min(each.global_batch_size // world_size, each.micro_batch_size) for each in all_sizes)
    return not strategy.layout.is_spread and least >= 2


def overlapping_pass(step: TrainStep | ManualStep, ranks: DistContext) -> LocalForwardBackward | None:
    """Return the passes beside which the exchange of a log can take place; None if it has to wait for their end.

    On a GPU, whose losses the host does not know before it has waited for them, that would make each log's step slower.
    """
    if ranks.device.type != "cpu" or ranks.world_size == 1 or not isinstance(step, TrainStep):
        return None
    return step.forward_backward if isinstance(step.forward_backward, LocalForwardBackward) else None
