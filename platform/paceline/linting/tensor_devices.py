"""Devices of tensors in a trace, which keeps all of them on the CPU: on the device, or in host memory."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from paceline.linting.calls import ATTRIBUTE, LintedCall


class TensorDevices:
    """Follows tensors from what made them. Of some it is not known; nothing is said of these."""

    def __init__(self, on_device: Iterable[Tensor], attributes: Mapping[str, Tensor]) -> None:
        """Args:
        on_device: parameters, buffers and the batch.
        attributes: tensors that do not follow the model to its device, by `Class.name`.
        """
        # held, so that no other tensor gets the id
        self._on_device = {id(each): each for each in on_device}
        self._on_host = {id(each): (each, LintedCall(ATTRIBUTE, None, name)) for name, each in attributes.items()}

    def is_on_device(self, tensor: Tensor) -> bool:
        """Return True if reading it waits for the device."""
        return id(tensor) in self._on_device

    def put_on_device(self, tensor: Tensor) -> None:
        """Note that a tensor is on the device."""
        self._on_device[id(tensor)] = tensor

    def origin(self, tensor: Tensor) -> LintedCall | None:
        """Return the operation that made a tensor in host memory."""
        held = self._on_host.get(id(tensor))
        return held[1] if held is not None else None

    def note_made(self, result: Any, on_device: bool, call: LintedCall) -> None:
        """Note what a function has made from no other tensor."""
        for tensor in tensors_in((result,)):
            if on_device:
                self.put_on_device(tensor)
            else:
                self._on_host[id(tensor)] = tensor, call

    def note_result(self, given: list[Tensor], result: Any) -> list[LintedCall]:
        """Note what a function has made from others; what made those that had to be copied to the device for it."""
        origins = [(tensor, origin) for tensor in given if (origin := self.origin(tensor)) is not None]
        if any(self.is_on_device(tensor) for tensor in given):
            for tensor in tensors_in((result,)):
                self.put_on_device(tensor)
            # numbers of the host go along with a kernel's other arguments
            return [origin for tensor, origin in origins if tensor.ndim and not self.is_on_device(tensor)]
        if origins and len(origins) == len(given):
            for tensor in tensors_in((result,)):
                self._on_host[id(tensor)] = tensor, origins[0][1]
        return []


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among values and in lists and tuples among them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)
