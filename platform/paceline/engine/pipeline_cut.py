"""Cut a model into stages: consecutive parts of a chain of links, each of which maps one tensor to one tensor."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from paceline._compat.torch import own_buffers, own_parameters
from paceline.engine.blocks import find_blocks
from paceline.errors import UnusableCode

HINT = (
    "make it an nn.Sequential, or give it a method pipeline_links() that returns its parts in order, as pairs of a "
    "callable (one tensor to one tensor) and the modules that it uses"
)


@dataclass(frozen=True)
class Link:
    """A part of a model that maps one tensor to one tensor."""

    call: Callable[[Tensor], Tensor]
    tensors: frozenset[str]
    """Names of the parameters and buffers that it uses, as in the model's state dict."""


def links_of(model: nn.Module) -> list[Link]:
    """Return the model as a chain of links, cut as finely as possible.

    The links are taken from the model's `pipeline_links()`, from an `nn.Sequential`, or from the graph that torch.fx
    traces, which is cut where only one value is passed on.

    Raises:
        UnusableCode: the model is not such a chain.
    """
    own_links: Any = getattr(model, "pipeline_links", None)
    if own_links is not None:
        pairs = own_links()
        _require_whole(model, [module for _, modules in pairs for module in modules])
        return [Link(call, _names(model, modules)) for call, modules in pairs]
    if isinstance(model, nn.Sequential):
        _require_whole(model, model)
        return [Link(module, _names(model, [module])) for module in _flat(model)]
    return _traced(model)


def _require_whole(model: nn.Module, parts: Iterable[nn.Module | None]) -> None:
    """Check that no technique was applied to a module that is cut into parts: calling the parts would bypass it.

    Raises:
        UnusableCode: a technique was applied to such a module.
    """
    within = {id(inner) for part in parts if part is not None for inner in part.modules()}
    for name, module in model.named_modules():
        if "forward" in module.__dict__ and id(module) not in within:
            raise UnusableCode(
                f"parallel.strategy pipeline: activation_checkpointing takes {name or 'the whole model'} for one "
                "block, which has to be cut: name its parts in trainer.activation_checkpointing_blocks",
                "pipeline-checkpointed-block",
                block=name,
            )


def balanced(links: Sequence[Link], weights: Sequence[int], stages: int) -> list[list[Link]]:
    """Cut a chain into consecutive parts, such that the heaviest part is as light as possible.

    Args:
        weights: weight of each link, such as the bytes of its parameters.
        stages: number of parts; each gets at least one link with a weight above 0.

    Raises:
        UnusableCode: fewer links than stages have a weight above 0.
    """
    heavy = sum(weight > 0 for weight in weights)
    if heavy < stages:
        raise UnusableCode(
            f"parallel.pipeline_stages: the model can be cut into {heavy} stages at most, not {stages}: {HINT}",
            "too-many-stages",
            most=heavy,
            asked=stages,
        )
    low, high = max(weights), sum(weights)
    while low < high:
        middle = (low + high) // 2
        if len(_greedy(weights, middle)) <= stages:
            high = middle
        else:
            low = middle + 1
    ends = _at_least(_greedy(weights, low), weights, stages)
    return [list(links[start:end]) for start, end in zip([0, *ends], [*ends, len(links)], strict=True)]


def _greedy(weights: Sequence[int], limit: int) -> list[int]:
    """Return the start index of each part, 0 first, if each part takes as many links as fit within the limit."""
    starts, total = [0], 0
    for index, weight in enumerate(weights):
        if total + weight > limit:
            starts.append(index)
            total = 0
        total += weight
    return starts


def _at_least(starts: list[int], weights: Sequence[int], stages: int) -> list[int]:
    """Return the cuts, with more of them until there are enough parts: each cuts the heaviest divisible part."""
    cuts = starts[1:]
    while len(cuts) < stages - 1:
        bounds = list(zip([0, *cuts], [*cuts, len(weights)], strict=True))
        options = [(sum(weights[a:b]), cut) for a, b in bounds if (cut := _middle(weights, a, b)) is not None]
        cuts = sorted([*cuts, max(options)[1]])
    return cuts


def _middle(weights: Sequence[int], start: int, end: int) -> int | None:
    """Return the index that cuts a part most evenly into two sides with a weight above 0; None if there is none."""
    options = []
    for cut in range(start + 1, end):
        left, right = sum(weights[start:cut]), sum(weights[cut:end])
        if left and right:
            options.append((max(left, right), cut))
    return min(options)[1] if options else None


def _flat(model: nn.Sequential) -> Iterable[nn.Module]:
    for child in model:
        if type(child) is nn.Sequential and "forward" not in child.__dict__:  # unless a technique was applied to it
            yield from _flat(child)
        else:
            yield child


def _names(model: nn.Module, modules: Iterable[nn.Module | None]) -> frozenset[str]:
    """Return the state dict names of the parameters and buffers of some of the model's modules."""
    wanted = {id(tensor) for module in modules if module is not None for tensor in _state(module)}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return frozenset(name for name, tensor in named if id(tensor) in wanted)


def _state(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


class _BlockTracer(fx.Tracer):
    """Tracer that keeps whole the model's blocks, and the modules to which a technique was applied."""

    def __init__(self, blocks: set[str]) -> None:
        super().__init__()
        self._blocks = blocks

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        if "forward" in module.__dict__:  # a technique was applied to it
            return True
        if isinstance(module, nn.Sequential):
            return False
        return name in self._blocks or super().is_leaf_module(module, name)


def _traced(model: nn.Module) -> list[Link]:
    graph = _graph_of(model)
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    if len(inputs) != 1:
        raise UnusableCode(
            f"parallel.strategy pipeline: the model takes {len(inputs)} inputs, not 1: {HINT}", "pipeline-not-a-chain"
        )
    return [_link(model, nodes, enters) for nodes, enters in _segments(graph, inputs[0])]


def _graph_of(model: nn.Module) -> fx.Graph:
    blocks = {name for name, _ in find_blocks(model)}
    training = model.training
    try:
        in_training = _BlockTracer(blocks).trace(model.train())
        in_evaluation = _BlockTracer(blocks).trace(model.eval())
    except Exception as error:  # a model's code may raise any class of error when it is traced
        raise UnusableCode(
            f"parallel.strategy pipeline: the model's graph cannot be traced ({error}): {HINT}", "pipeline-untraceable"
        ) from error
    finally:
        model.train(training)
    if str(in_training) != str(in_evaluation):
        reason = "the model's own code does something else in training than in evaluation, such as F.dropout"
        raise UnusableCode(
            f"parallel.strategy pipeline: {reason}: use modules such as nn.Dropout, or {HINT}", "pipeline-modes-differ"
        )
    return in_training


def _segments(graph: fx.Graph, enters: fx.Node) -> list[tuple[list[fx.Node], fx.Node]]:
    """Return the graph's nodes, cut wherever only one value is still needed, with the value that enters each part."""
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    place = {node: index for index, node in enumerate(nodes)}
    end = len(nodes)
    last_use = {node: max((place.get(user, end) for user in node.users), default=-1) for node in [enters, *nodes]}
    parts: list[tuple[list[fx.Node], fx.Node]] = []
    current: list[fx.Node] = []
    for index, node in enumerate(nodes):
        current.append(node)
        needed = [each for each in [enters, *nodes[: index + 1]] if last_use[each] > index and each.op != "get_attr"]
        constants = [each for each in current if each.op == "get_attr" and last_use[each] > index]
        if needed == [node] and not constants:
            parts.append((current, enters))
            current, enters = [], node
    return parts


def _link(model: nn.Module, nodes: list[fx.Node], enters: fx.Node) -> Link:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {enters: graph.placeholder("value")}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[nodes[-1]])
    modules = [model.get_submodule(str(node.target)) for node in nodes if node.op == "call_module"]
    direct = {str(node.target) for node in nodes if node.op == "get_attr"}
    return Link(fx.GraphModule(model, graph), _names(model, modules) | direct)


def keep_only(model: nn.Module, names: frozenset[str]) -> None:
    """Free the memory of all parameters and buffers except those in `names`: they become `meta` tensors."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for kind in (own_parameters(module), own_buffers(module)):
            for name, tensor in kind.items():
                if tensor is not None and f"{prefix}.{name}".lstrip(".") not in names:
                    kind[name] = _without_memory(tensor)


def _without_memory(tensor: Tensor) -> Any:
    empty = torch.empty_like(tensor, device="meta")
    return nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
