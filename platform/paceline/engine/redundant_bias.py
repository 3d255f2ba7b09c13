"""Removal of convolution biases that batch normalisation subtracts again, found by tracing the model, not by names.

Ioffe and Szegedy 2015, arXiv:1502.03167, section 3.2.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from inspect import Parameter, signature
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from paceline._compat.torch import has_forward_hooks

NORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
    nn.ConvTranspose1d: nn.BatchNorm1d,
    nn.ConvTranspose2d: nn.BatchNorm2d,
    nn.ConvTranspose3d: nn.BatchNorm3d,
}
"""Normalisation that takes the mean over each channel of a convolution's output, by class of the convolution.

`SyncBatchNorm` does so for all of them. The bias of a linear layer is kept: `BatchNorm1d` treats its features as
channels only if the input has two dimensions, which a trace does not show.
"""


class Removal(NamedTuple):
    """Result of the removal of a model's redundant biases."""

    names: list[str]
    """Names of the convolutions whose bias was removed."""
    warning: str = ""
    """Reason why no bias was removed, for the user; empty if some were."""


class Trace(NamedTuple):
    """Modules that a model calls in one mode, by name."""

    pairs: set[tuple[str, str]]
    """Pairs of a convolution and the normalisation that is the only user of its output; both are called once."""
    called: set[str]
    """Names of all modules that are called."""


def remove_redundant_bias(model: nn.Module) -> Removal:
    """Remove the biases of convolutions whose output is used only by batch normalisation, frozen ones too, in place.

    The model's outputs stay the same in training and in evaluation: the bias is subtracted from `running_mean`. The
    bias is kept if the convolution's output has a second user, if it is called twice or has a second name, if its bias
    is shared or read elsewhere, if it has hooks around it, or if its normalisation uses running statistics in training.
    The model is traced with its required arguments, and the defaults of the others. The convolutions are assumed to get
    batches, not single samples.

    Returns:
        The names, or the reason why no bias was removed.
    """
    try:
        pairs = find_redundant_bias(model)
    except Exception as error:  # the model's own code, run on fake tensors, may raise anything
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        return Removal([], f"trainer.remove_redundant_bias has no effect: the model cannot be traced: {reason}")
    for convolution, norm in pairs:
        _remove(model.get_submodule(convolution), model.get_submodule(norm))
    if not pairs:
        return Removal([], "trainer.remove_redundant_bias has no effect: the model has no redundant bias")
    return Removal([convolution for convolution, _ in pairs])


def find_redundant_bias(model: nn.Module) -> list[tuple[str, str]]:
    """Return the name of each convolution with a redundant bias, and of the normalisation that follows it.

    Raises:
        Exception: the model cannot be traced, such as for control flow that depends on values.
    """
    training, evaluation = trace(model, True), trace(model, False)
    owners = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    return [
        (convolution, norm)
        for convolution, norm in sorted(training.pairs)
        if ((convolution, norm) in evaluation.pairs or not evaluation.called & {convolution, norm})
        and owners[id(model.get_submodule(convolution).bias)] == 1
        and not _is_watched(model, convolution)
        and not _is_watched(model, norm)
    ]


def trace(model: nn.Module, training: bool) -> Trace:
    """Trace the model's code, in training or in evaluation mode; the model is not changed."""
    if "forward" in vars(model):
        raise TypeError("its forward method has been replaced")
    # The code may keep what it is called with, or count its calls. Buffers are cloned here, since torch's own deepcopy
    # corrupts memory for tensors without data.
    tensors = {id(each): each for each in model.parameters()} | {id(each): each.clone() for each in model.buffers()}
    copy = deepcopy(model, tensors).train(training)
    parameters = signature(model.forward).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not Parameter.empty}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracer = _Tracer()
        graph = tracer.trace(copy, defaults)
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    return Trace(set(_pairs(copy, graph, tracer.read)), called)


class _Tracer(fx.Tracer):
    """Tracer that does not trace into torch's own `forward` methods, which branch, also in a user's subclasses."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()
        """Ids of the parameters and buffers that the model's code has read directly."""

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        self.read.add(id(attr_val))
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = type(m).forward.__module__.startswith("torch.nn.") and not isinstance(m, nn.Sequential)
        return own or super().is_leaf_module(m, module_qualified_name)


def _pairs(model: nn.Module, graph: fx.Graph, read: set[int]) -> Iterator[tuple[str, str]]:
    uses = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    for node in graph.nodes:
        users = list(node.users)
        if len(users) != 1 or node.op != "call_module" or users[0].op != "call_module":
            continue
        convolution, norm = str(node.target), str(users[0].target)
        if uses[convolution] == uses[norm] == 1 and _cancels(
            model.get_submodule(convolution), model.get_submodule(norm), model.training, read
        ):
            yield convolution, norm


def _cancels(convolution: nn.Module, norm: nn.Module, training: bool, read: set[int]) -> bool:
    # exact types, since a subclass may compute anything
    if type(convolution) not in NORMS or type(norm) not in (NORMS[type(convolution)], nn.SyncBatchNorm):
        return False
    takes_batch_mean = norm.training or not training
    is_read = bool(read & {id(convolution.bias), id(norm.running_mean)} - {id(None)})
    return convolution.bias is not None and takes_batch_mean and not is_read


def _is_watched(model: nn.Module, name: str) -> bool:
    """Return True if code outside the graph, such as a hook, may see or change a module's output."""
    around = (model.get_submodule(prefix) for prefix in accumulate(name.split("."), "{}.{}".format))
    return any(has_forward_hooks(module) or "forward" in vars(module) for module in around)


@torch.no_grad()
def _remove(convolution: Any, norm: Any) -> None:
    if norm.running_mean is not None:
        norm.running_mean -= convolution.bias
    convolution.register_parameter("bias", None)
