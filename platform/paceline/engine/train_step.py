"""One optimizer step: forward and backward over the micro-batches, weighting, learning rate, clipping, update."""

from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import Batches, ForwardBackward, StepStats, divide_by_weight
from paceline.engine.lr_policy import LRPolicy
from paceline.engine.noise_scale import NoiseScale
from paceline.engine.running import RunningLoss
from paceline.engine.state import TrainState
from paceline.engine.weight_contract import WeightContract


class TrainStep:
    """Trains on one global batch per call.

    Args:
        max_grad_norm: clip the gradient's norm to this; None disables.
        set_to_none: release gradients between steps instead of filling them with zeros.
        contract: checks the first step; None checks none.
        noise_scale: measures each step's gradient before it is clipped; None measures nothing.
    """

    def __init__(
        self,
        state: TrainState,
        forward_backward: ForwardBackward,
        lr: LRPolicy,
        running: RunningLoss,
        ranks: DistContext,
        max_grad_norm: float | None,
        set_to_none: bool,
        contract: WeightContract | None = None,
        noise_scale: NoiseScale | None = None,
    ) -> None:
        self.forward_backward = forward_backward
        self.lr = lr
        self.parameters = state.trainable
        self._state = state
        self.running = running
        self.ranks = ranks
        self._max_grad_norm = max_grad_norm
        self._set_to_none = set_to_none
        self._contract = contract
        self._noise_scale = noise_scale

    def __call__(self, batches: Batches, step: int) -> StepStats:
        """Take the micro-batches of one step from `batches` and update the weights. Every rank must call it."""
        state = self._state
        self._zero_grad()
        if self._noise_scale is not None:
            self._noise_scale.begin(step)
        stats = self.forward_backward(batches, step) if self._contract is None else self._checked(batches, step)
        if not state.task.weight_is_samples:
            divide_by_weight(stats, self.parameters, state.layout, self.ranks)
        if self._noise_scale is not None:
            self._noise_scale.end_gradient(stats)
        self.lr.apply(step, stats)
        skipped = state.precision.step(state.optimizer, self.parameters, self._max_grad_norm, state.layout.clip)
        self.running.end_step(skipped)
        return stats

    def metrics(self) -> dict[str, float]:
        """Metrics for the log. Every rank must call it."""
        return {**self.lr.metrics(), **(self._noise_scale.metrics() if self._noise_scale is not None else {})}

    def _checked(self, batches: Batches, step: int) -> StepStats:
        contract, self._contract = self._contract, None
        assert contract is not None
        stats = self.forward_backward(contract.watch(batches), step)
        contract.check_weights(stats)
        return stats

    def _zero_grad(self) -> None:
        if not self._set_to_none:
            self._state.optimizer.zero_grad(set_to_none=False)
            return
        for parameter in self.parameters:  # like `zero_grad`, without its 10 microseconds of bookkeeping
            parameter.grad = None
