"""Rules about the user's forward pass: waiting, copying, and computing sample by sample."""

from collections.abc import Iterable, Iterator

from paceline.linting.building import LARGE, SMALL
from paceline.linting.calls import ATTRIBUTE, LintedCall
from paceline.linting.finding import Fault
from paceline.linting.own_code import CodeLine
from paceline.linting.subject import Subject
from paceline.linting.watching import HOUSEKEEPING

_WAITING = {
    "__bool__": "asks for the truth of a tensor",
    "__int__": "makes a number of a tensor",
    "__index__": "makes an index of a tensor",
    "__float__": "makes a number of a tensor",
    "item": "calls .item()",
    "tolist": "calls .tolist()",
    "cpu": "copies a tensor to the CPU",
    "to": "copies a tensor to the CPU",
}


def _by_place(calls: Iterable[LintedCall]) -> Iterator[LintedCall]:
    yield from {call.place: call for call in calls}.values()


def could_not_be_run(subject: Subject) -> Iterator[Fault]:
    """Report that the rules which need a run were not checked."""
    if subject.obstacle is not None and subject.obstacle.unusable is None:
        reason = f"{subject.obstacle.reason}; faults that only a run shows were not looked for"
        if subject.obstacle.ends_training:
            yield Fault(subject.obstacle.place, reason, "fix the error: training would end with it", "error")
        else:
            yield Fault(subject.obstacle.place, reason, "fix the error, or run lint where the data are")


def waits_for_the_device(subject: Subject) -> Iterator[Fault]:
    """Values that are read from the device in each step."""
    if subject.trace is None or not subject.may_use_gpu:
        return
    for call in _by_place(each for each in subject.trace.training.reads if each.name in _WAITING):
        reason = f"{_WAITING[call.name]}: the processor waits for the GPU in each forward pass"
        yield Fault(call.place, reason, "compute with the tensor itself (torch.where for a choice), and keep it there")


def tensor_is_printed(subject: Subject) -> Iterator[Fault]:
    """Tensors that are turned into text in each step."""
    for call in _by_place(subject.trace.training.shown if subject.trace else ()):
        reason = "turns a tensor into text in each forward pass, which waits for its value and takes longer than a step"
        yield Fault(call.place, reason, "leave it out, or log shapes alone")


def numpy_in_forward(subject: Subject) -> Iterator[Fault]:
    """Values that leave torch."""
    reads = subject.trace.training.reads if subject.trace else ()
    for call in _by_place(each for each in reads if each.name in ("numpy", "__array__")):
        reason = "goes to numpy in the forward pass: no gradient passes, a GPU is waited for, and a compiler stops"
        yield Fault(call.place, reason, "use torch's own function of that kind")


def device_is_named(subject: Subject) -> Iterator[Fault]:
    """Devices in the code of the forward pass."""
    for call in _by_place(subject.trace.training.moved if subject.trace else ()):
        reason = f"moves a tensor to {call.detail!r} in the forward pass; batch and model are on the worker's device"
        yield Fault(call.place, reason, "leave it out, or write x.to(y.device)")


def made_in_host_memory(subject: Subject) -> Iterator[Fault]:
    """Tensors that are made on the CPU and then used on the device."""
    if not subject.may_use_gpu:
        return
    calls = subject.trace.training.from_host if subject.trace else ()
    for call in _by_place(each for each in calls if each.line is not None and each.name != ATTRIBUTE):
        reason = f"torch.{call.name} makes a tensor in host memory: on a GPU it is copied in each step, or does not fit"
        yield Fault(call.place, reason, "write device=x.device, or make it once with self.register_buffer")


def cache_or_synchronize_in_forward(subject: Subject) -> Iterator[Fault]:
    """Housekeeping in each step."""
    calls = subject.trace.training.calls if subject.trace else ()
    for call in _by_place(each for each in calls if each.name in HOUSEKEEPING):
        effect = {
            "torch.cuda.empty_cache": "gives memory back that the next step asks for again",
            "torch.cuda.synchronize": "waits for the GPU",
            "gc.collect": "looks through all objects",
        }[call.name]
        yield Fault(call.place, f"{call.name}() in the forward pass {effect}, in each step", "leave it out")


def loop_over_the_batch(subject: Subject) -> Iterator[Fault]:
    """More samples take more calls."""
    if subject.trace is None or not subject.trace.same_structure:
        return
    growth = LARGE // SMALL
    few, many = subject.trace.training.lines, subject.trace.larger.lines
    by_function: dict[tuple[str, str], CodeLine] = {}
    for line in sorted(many):
        if few[line] and many[line] in (growth * few[line], growth**2 * few[line]):
            by_function.setdefault((line.file, line.function), line)
    for line in by_function.values():
        reason = "works through the batch sample by sample: the time grows with the batch, and a GPU has little to do"
        yield Fault(str(line), reason, "compute all samples at once, or use torch.vmap")
