"""Runs the user's task on fake tensors as training and evaluation do, and records the operations."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from paceline._compat.torch import FakeTensorMode
from paceline.config.experiment import ExperimentConfig
from paceline.engine.batches import map_tensors, tensors_in
from paceline.engine.output_checks import checked_output
from paceline.engine.seeding import seed_everything
from paceline.linting.building import Batches
from paceline.linting.recorder import ForwardRecorder, Record
from paceline.linting.tensor_devices import TensorDevices
from paceline.linting.watching import watching
from paceline.tasks._task import Task

_log = logging.getLogger(__name__)
LARGEST_REAL = 30_000_000
"""Number of parameters of the largest model that is run in real memory if it cannot run on fake tensors."""


@dataclass
class TaskTrace:
    """Trace of a task in two training steps on a small batch, one on a larger batch, and in evaluation."""

    training: Record
    """Record of the second training step; the first may set things up."""
    larger: Record
    evaluation: Record
    loss_sum: Any
    weight: Any
    used: set[str]
    """Names of the parameters that the loss depends on."""
    grown: list[str]
    """Attributes that hold more results with their graphs after each step."""
    backward_error: str
    """Error message of the backward pass; empty if it succeeds."""
    same_structure: bool
    """True if the larger batch has as many tensors as the small one."""
    trained_in_evaluation: list[str] = field(default_factory=list)
    """Modules that were in training mode when the task was evaluated."""
    evaluated: Any = None
    """The task's output in evaluation; None where the evaluation fails."""


def trace(task: Task, config: ExperimentConfig, batches: Batches, mode: FakeTensorMode | None) -> TaskTrace:
    """Run the task. Its parameters keep their values and get no gradients; all other state may change.

    Args:
        mode: mode of the task's fake tensors; None if its tensors are real.

    Raises:
        Exception: the task cannot be run in this mode.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(mode or nullcontext())
        if config.trainer.precision == "64-true":
            task.double()
        return _trace(_Runner(task, config, mode), batches)


def run_once(task: Task, config: ExperimentConfig, batch: Any) -> None:
    """Run a task of real tensors in training mode on one batch, without gradients.

    Raises:
        Exception: the task cannot be run.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if config.trainer.precision == "64-true":
            task.double()
        _Runner(task.train(), config, None)(batch)


def _trace(run: "_Runner", batches: Batches) -> TaskTrace:
    task = run.task
    task.train()
    first, _ = run(batches.small)
    held = _kept_graphs(task)
    output, training = run(batches.small)
    grown = [name for name, count in _kept_graphs(task).items() if count > held.get(name, 0)]
    behind = {id(tensor) for tensor in (*_behind(first.loss_sum), *_behind(output.loss_sum))}
    used = {name for name, each in task.named_parameters() if id(each) in behind}
    larger = run.if_possible(batches.large)
    error = _backward_error(output.loss_sum)
    task.eval()
    with torch.no_grad(), _noting_training_mode(task) as trained:
        evaluation, evaluated = run.until_failure(batches.small)
    same = len([*tensors_in(batches.small)]) == len([*tensors_in(batches.large)])
    return TaskTrace(
        *(training, larger, evaluation, output.loss_sum, output.weight, used, grown, error, same, trained, evaluated)
    )


class _Runner:
    """One forward pass at a time, each with the same random numbers."""

    def __init__(self, task: Task, config: ExperimentConfig, mode: FakeTensorMode | None) -> None:
        self.task = task
        self.mode = mode
        self.is_low = config.trainer.precision in ("16-mixed", "bf16-mixed")
        self._newest = Record()

    def __call__(self, batch: Any) -> tuple[Any, Record]:
        seed_everything(0)
        given = map_tensors(batch, self.mode.from_tensor) if self.mode is not None else batch
        low: AbstractContextManager[Any] = torch.autocast("cpu", torch.bfloat16) if self.is_low else nullcontext()
        on_device = (*self.task.parameters(), *self.task.buffers(), *tensors_in(given))
        devices = TensorDevices(on_device, _plain_attributes(self.task))
        recorder = ForwardRecorder(self.mode is not None, devices, tensors_in(given))
        self._newest = recorder.record
        with low, _naming(self.task, recorder), watching(recorder), recorder:
            output = checked_output(self.task(given))
        return output, recorder.record

    def if_possible(self, batch: Any) -> Record:
        """Return the record of a forward pass that may fail; empty if it fails."""
        try:
            return self(batch)[1]
        except Exception as error:
            _log.debug("a forward pass failed: %s", error)
            return Record()

    def until_failure(self, batch: Any) -> tuple[Record, Any]:
        """Return the record of an evaluation, up to the point where it fails, and its output, None if it fails.

        It may fail because gradients are off, and because fake tensors have no values to select predictions by.
        """
        try:
            output, _ = self(batch)
        except Exception as error:
            _log.debug("an evaluation failed: %s", error)
            output = None
        return self._newest, output


def _plain_attributes(task: Task) -> dict[str, Tensor]:
    """Return the task's tensors that are neither parameters nor buffers, by name."""
    return {
        f"{type(module).__name__}.{name}": value
        for module in task.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and not value.requires_grad
    }


@contextmanager
def _naming(task: Task, recorder: ForwardRecorder) -> Iterator[None]:
    """Keep the recorder informed of the module that is being called."""
    with ExitStack() as stack:
        for name, module in _hookable(task):
            if name:
                before = module.register_forward_pre_hook(_entering(name, recorder))
                after = module.register_forward_hook(_leaving(recorder), always_call=True)
                stack.callback(before.remove)
                stack.callback(after.remove)
        yield


def _hookable(task: Task) -> Iterator[tuple[str, nn.Module]]:
    yield from ((name, each) for name, each in task.named_modules() if not isinstance(each, torch.jit.ScriptModule))


def _entering(name: str, recorder: ForwardRecorder) -> Callable[[nn.Module, Any], None]:
    def enter(module: nn.Module, args: Any) -> None:
        recorder.modules.append(name)
        if args and isinstance(args[0], Tensor):
            recorder.record.shapes[name] = args[0].shape

    return enter


def _leaving(recorder: ForwardRecorder) -> Callable[[nn.Module, Any, Any], None]:
    def leave(module: nn.Module, args: Any, output: Any) -> None:
        recorder.modules.pop()

    return leave


@contextmanager
def _noting_training_mode(task: Task) -> Iterator[list[str]]:
    found: list[str] = []

    def look(name: str) -> Callable[[nn.Module, Any], None]:
        def before(module: nn.Module, args: Any) -> None:
            if module.training and name not in found:
                found.append(name)

        return before

    hooks = [module.register_forward_pre_hook(look(name)) for name, module in _hookable(task) if name]
    yield found
    for hook in hooks:
        hook.remove()


def _kept_graphs(task: Task) -> dict[str, int]:
    """Count the tensors with an autograd graph in each list, tuple, set or mapping that is an attribute of a module."""
    return {
        f"{type(module).__name__}.{attribute}": sum(
            isinstance(leaf, Tensor) and leaf.grad_fn is not None for leaf in _inside(value)
        )
        for module in task.modules()
        for attribute, value in vars(module).items()
        if not attribute.startswith("_") and not isinstance(value, Tensor)
    }


def _inside(value: Any, depth: int = 3) -> Iterator[Any]:
    if depth and isinstance(value, dict):
        value = list(value.values())
    if depth and (isinstance(value, (list, tuple, set)) or type(value).__name__ == "deque"):
        for item in value:
            yield from _inside(item, depth - 1)
    else:
        yield value


def _behind(loss: Any) -> list[Tensor]:
    """Return the leaf tensors of a loss's autograd graph: those that would receive gradients."""
    waiting = [loss.grad_fn] if isinstance(loss, Tensor) and loss.grad_fn is not None else []
    seen: set[Any] = set(waiting)
    found: list[Tensor] = []
    while waiting:
        node = waiting.pop()
        if (variable := getattr(node, "variable", None)) is not None:
            found.append(variable)
        following = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= following
        waiting += following
    return found


def _backward_error(loss: Any) -> str:
    leaves = _behind(loss)
    if not leaves or loss.numel() != 1:
        return ""
    try:
        torch.autograd.grad(loss, leaves, allow_unused=True)  # computed without being kept
    except RuntimeError as error:
        return str(error)
    return ""
