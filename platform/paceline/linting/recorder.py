"""Records the operations of one forward pass that cost time or are wrong: caller, torch function and tensors."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from paceline.linting.calls import Flow, LintedCall
from paceline.linting.own_code import CodeLine, calling_line, nearest_line
from paceline.linting.tensor_devices import TensorDevices, tensors_in

LOSSES = ("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits")
ACTIVATIONS = ("softmax", "log_softmax", "sigmoid", "relu", "relu_", "sigmoid_")
"""Functions whose results are followed to the functions that use them."""
_SHAPES = (
    *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "movedim", "t"),
    *("contiguous", "clone", "float", "double", "to", "type", "__getitem__"),
)
"""Functions that keep the values of a tensor."""
_SAME_VALUES = ("view", "reshape", "flatten", "squeeze", "contiguous", "clone", "long", "to", "cuda", "type")
"""Functions after which the targets of a batch are still all there."""
CLASS_LOSSES = ("cross_entropy", "nll_loss")
"""Losses whose targets are numbers of classes."""
IGNORED = -100
"""Target that these losses leave out by default."""
READS = ("item", "__bool__", "__int__", "__float__", "__index__", "tolist", "numpy", "__array__", "cpu")
"""Methods that wait for the device to compute a value."""
SHOWS = ("__repr__", "__format__", "__str__")
MOVES = ("cuda", "to")
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_FACTORIES = (
    *(torch.zeros, torch.ones, torch.full, torch.empty, torch.eye, torch.arange, torch.linspace, torch.tensor),
    *(torch.rand, torch.randn, torch.randint, torch.randperm),
)
_FALSE_IN_HEALTH = ("any", "isnan", "isinf")


class ClassNumbers(NamedTuple):
    """A loss whose targets are numbers of classes."""

    call: LintedCall
    classes: int
    """Number of classes of the logits."""
    position: int
    """Place of the targets among the tensors of a batch."""
    ignored: int
    """The target that does not count."""


@dataclass
class Record:
    """Record of one forward pass."""

    reads: list[LintedCall] = field(default_factory=list)
    """Values of tensors on the device that the user's code asked for."""
    shown: list[LintedCall] = field(default_factory=list)
    """Tensors turned into text."""
    moved: list[LintedCall] = field(default_factory=list)
    """Tensors moved to a device that the code names; `detail` is the device."""
    from_host: list[LintedCall] = field(default_factory=list)
    """Tensors that were made in host memory, and then combined with one on the device."""
    flows: list[Flow] = field(default_factory=list)
    dropouts: list[LintedCall] = field(default_factory=list)
    """Calls of active dropout in the user's code."""
    mean_losses: dict[int, LintedCall] = field(default_factory=dict)
    """Losses that are means over the batch, by the `id` of the result."""
    lines: Counter[CodeLine] = field(default_factory=Counter)
    """Number of torch functions that each line of the user's code called, directly or through layers."""
    shapes: dict[str, torch.Size] = field(default_factory=dict)
    """Shape of the first input of each module, by name."""
    calls: list[LintedCall] = field(default_factory=list)
    """Calls that `watching` records."""
    class_numbers: list[ClassNumbers] = field(default_factory=list)
    """Losses that take targets of the batch as numbers of classes."""


class ForwardRecorder(TorchFunctionMode):
    """Fills a record while it is entered."""

    def __init__(self, stands_in: bool, devices: TensorDevices, batch: Iterable[Tensor] = ()) -> None:
        """Args:
        stands_in: True if tensors have no values, so that reading one returns an invented value.
        devices: devices of the tensors that exist before the pass.
        batch: tensors of the batch.
        """
        super().__init__()
        self.record = Record()
        self.modules: list[str] = [""]
        self.stands_in = stands_in
        self._origins: dict[int, tuple[Tensor, LintedCall]] = {}
        self._devices = devices
        self._of_batch = {id(tensor): (tensor, position) for position, tensor in enumerate(batch)}

    def call(self, name: str, detail: str = "") -> LintedCall:
        """Return the current call."""
        return LintedCall(name, calling_line(), self.modules[-1], detail)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            return func(*args, **kwargs)
        if (line := nearest_line()) is not None:
            self.record.lines[line] += 1
        given = list(tensors_in((args, [*kwargs.values()])))
        if name in (*READS, *SHOWS) and given:
            self._note_read(name, given[0])
            if self.stands_in:
                return _invented(name, given[0], self._origins.get(id(given[0])))
        if name in MOVES and given and (device := _named_device(name, args, kwargs)):
            self._note_move(name, device)
            if device != "cpu":
                return self._on_device(given[0], _named_dtype(args, kwargs))
        if kwargs.get("device") is not None and _kind(kwargs["device"]) == "cuda":
            kwargs["device"] = "cpu"
        self._note_losses_and_dropout(name, args, kwargs, given)
        result = func(*args, **kwargs)
        self._follow(func, name, kwargs, given, result)
        return result

    def _note_read(self, name: str, tensor: Tensor) -> None:
        is_shown = name in SHOWS
        # a logger turns it into text, or a replacement of `print`, such as Ray's
        call = self.call(name)._replace(line=nearest_line()) if is_shown else self.call(name)
        if call.line is not None and self._devices.is_on_device(tensor):
            (self.record.shown if is_shown else self.record.reads).append(call)

    def _note_move(self, name: str, device: str) -> None:
        call = self.call(name, device)
        if call.line is not None and device != "same":
            (self.record.reads if device == "cpu" else self.record.moved).append(call)

    def _on_device(self, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Return the copy on the device; a tensor that is already there is returned as it is."""
        result = tensor if dtype is None else tensor.to(dtype)
        if self._devices.is_on_device(tensor):
            self._devices.put_on_device(result)
            return result
        origin = self._devices.origin(tensor)
        if origin is not None:
            self.record.from_host.append(origin)
        copy = result.view_as(result)
        self._devices.put_on_device(copy)
        return copy

    def _note_losses_and_dropout(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], given: list[Tensor]
    ) -> None:
        origin = self._origins.get(id(given[0])) if given else None
        if origin is not None and name in (*LOSSES, "softmax"):
            self.record.flows.append(Flow(origin[1], self.call(name)))
        if name in CLASS_LOSSES and len(given) > 1 and (known := self._of_batch.get(id(given[1]))):
            ignored = args[4] if len(args) > 4 else kwargs.get("ignore_index", IGNORED)
            self._note_class_numbers(name, given[0], *known, ignored)
        if _drops(name, args, kwargs) and (call := self.call(name)).line is not None:
            self.record.dropouts.append(call)

    def _note_class_numbers(self, name: str, logits: Tensor, targets: Tensor, position: int, ignored: int) -> None:
        if not targets.is_floating_point() and logits.dim():
            classes = logits.shape[min(1, logits.dim() - 1)]
            self.record.class_numbers.append(ClassNumbers(self.call(name), classes, position, ignored))

    def _follow(self, func: Any, name: str, kwargs: Mapping[str, Any], given: list[Tensor], result: Any) -> None:
        if given:
            self.record.from_host += self._devices.note_result(given, result)
        elif func in _FACTORIES:
            self._devices.note_made(result, kwargs.get("device") is not None, self.call(name))
        if name == "__setitem__" or (given and result is given[0] and name not in _SHAPES):
            self._origins.pop(id(given[0]), None)  # it has been changed in place
        if not isinstance(result, Tensor):
            return
        if name in _SAME_VALUES and given and (known := self._of_batch.get(id(given[0]))):
            self._of_batch[id(result)] = result, known[1]
        if name in (*ACTIVATIONS, *_FALSE_IN_HEALTH):
            self._origins[id(result)] = result, self.call(name)
        elif name in _SHAPES and given and (origin := self._origins.get(id(given[0]))):
            self._origins[id(result)] = result, origin[1]
        if name in LOSSES and kwargs.get("reduction", "mean") == "mean":
            self.record.mean_losses[id(result)] = self.call(name)


def _named_device(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the kind of device that a move names; `same` if it is given as an object; empty if none is named."""
    if name == "cuda":
        return "cuda"
    device = kwargs.get("device") or next((each for each in args[1:2] if isinstance(each, (str, torch.device))), None)
    if device is None:
        return ""
    # `x.device` is an object, and so is a deliberately chosen device
    return "same" if isinstance(device, torch.device) else _kind(device)


def _kind(device: Any) -> str:
    return "cuda" if isinstance(device, int) else torch.device(device).type


def _named_dtype(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)), None)


def _drops(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if name == "scaled_dot_product_attention":
        return bool((args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)) > 0)
    if name not in DROPOUTS:
        return False
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", True)
    return bool(training) and p > 0


def _invented(name: str, tensor: Tensor, origin: tuple[Tensor, LintedCall] | None) -> Any:
    """Return a value that a fake tensor does not have. It signals no problem, so that the code continues."""
    if name in SHOWS:
        return "tensor"
    if name == "cpu":
        return tensor.view_as(tensor)
    if name in ("numpy", "__array__"):
        return np.ones(tuple(tensor.shape), dtype=_numpy_type(tensor.dtype))
    if name == "tolist":
        return np.ones(tuple(tensor.shape), dtype=_numpy_type(tensor.dtype)).tolist()
    is_bad_news = origin is not None and origin[1].name in _FALSE_IN_HEALTH
    kind = {"__bool__": bool, "__int__": int, "__index__": int, "__float__": float}.get(name) or (
        bool if tensor.dtype is torch.bool else float if tensor.is_floating_point() else int
    )
    return kind(not is_bad_news)


def _numpy_type(dtype: torch.dtype) -> Any:
    return {torch.bool: np.bool_, torch.float64: np.float64, torch.float32: np.float32}.get(
        dtype, np.float32 if dtype.is_floating_point else np.int64
    )
