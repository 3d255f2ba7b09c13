"""The parts of a model that are worth treating one by one: checkpointed, compiled, or put on a device of their own."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from paceline.config.hints import listed
from paceline.errors import ConfigError, Problem


def find_blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The model's repeated parts: the children with parameters of its outermost sequences.

    A sequence whose children are plain layers is one block itself, since a checkpoint around a single layer keeps
    as much as it saves. Children that are never called themselves, such as an nn.ModuleList in another one, stand for
    what is in them. Where there are none inside of it, the model itself may be the sequence; as a block, its name is
    empty.
    """
    found = list(_below(model))
    yield from _of_a_sequence("", model) if not found and isinstance(model, nn.Sequential) else found


def _below(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_children():
        if isinstance(module, nn.Sequential | nn.ModuleList):
            yield from _of_a_sequence(name, module)
        else:
            yield from ((f"{name}.{inner}", block) for inner, block in _below(module))


def _of_a_sequence(name: str, sequence: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    nested = [(inner, child) for inner, child in sequence.named_children() if any(child.children())]
    if nested:
        for inner, child in nested:
            full_name = f"{name}.{inner}" if name else inner
            yield from [(full_name, child)] if _is_called(child) else _of_a_sequence(full_name, child)
    elif isinstance(sequence, nn.Sequential) and any(True for _ in sequence.parameters()):
        yield name, sequence


def match_blocks(model: nn.Module, patterns: Sequence[str], key: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules whose names match one of `patterns` (as in file names), without those inside of another match.

    Containers that are never called, such as nn.ModuleList, have no name here.

    Args:
        key: the config's key that the patterns come from, for the error.

    Raises:
        ConfigError: a pattern matches nothing.
    """
    modules = {name: module for name, module in model.named_modules() if name and _is_called(module)}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in modules):
            reason = f"no module of the model has a name that matches {pattern!r}"
            raise ConfigError([Problem("unknown-value", reason, key, hint=f"there are: {listed(list(modules))}")])
    matched: list[str] = []
    for name, module in modules.items():  # a module comes before those inside of it
        inside = any(name.startswith(f"{outer}.") for outer in matched)
        if not inside and any(fnmatchcase(name, pattern) for pattern in patterns):
            matched.append(name)
            yield name, module


def _is_called(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward
