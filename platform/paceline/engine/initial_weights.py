"""The first weights of a model from a run or a file (`model.weights`), in place of freshly initialised ones."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from paceline.config.experiment import ExperimentConfig
from paceline.engine.rebuilding import evaluated_weights
from paceline.engine.redundant_bias import remove_redundant_bias
from paceline.engine.state import strip_wrappers
from paceline.errors import ConfigError, PacelineError, Problem
from paceline.tasks._task import Task

WRAPPING_KEYS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts keep the state dict of the model in a file with other content."""
MODEL_PREFIX = "model."
SHOWN_NAMES = 4
"""Largest number of names of each kind in an error."""
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Differences:
    """Differences between loaded weights and those of a model, by name."""

    missing: list[str]
    """Names in the model only."""
    unexpected: list[str]
    """Names in the loaded weights only."""
    shapes: dict[str, tuple[list[int], list[int]]]
    """Shape in the loaded weights and in the model, by name, where the two differ."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.shapes)

    def text(self) -> str:
        """Return the differences as a text, shortened."""
        shapes = [f"{name} {there} there, {here} here" for name, (there, here) in self.shapes.items()]
        parts = {"missing": self.missing, "unexpected": self.unexpected, "of another shape": shapes}
        return "; ".join(f"{len(names)} {kind}: {_listed(names)}" for kind, names in parts.items() if names)


def load_initial_weights(task: Task, config: ExperimentConfig, place: Path) -> Weights:
    """Load weights into the model of a task, in place, and return all of them. Draws no random number.

    Args:
        task: newly built task, on the CPU.
        place: a file, or a folder with `model.safetensors`.

    Raises:
        ConfigError: the file cannot be read, or the weights are those of another model.
    """
    if config.trainer.precision == "64-true":
        task.double()  # before float64 weights are copied into it
    weights = read_weights(place)
    own = {name: each for name, each in task.model.state_dict().items() if isinstance(each, torch.Tensor)}
    weights = _without_model_prefix(weights, own)
    skip = config.model.weights_skip
    skipped = _skipped(skip, [*own, *weights]) if skip is not None else set()
    chosen = {name: each for name, each in weights.items() if name not in skipped}
    differences = compare(chosen, {name: each for name, each in own.items() if name not in skipped})
    if differences.missing and config.trainer.remove_redundant_bias:
        # weights of a run without the redundant biases; `prepare` removes them for training anyway
        remove_redundant_bias(task.model)
        own = task.model.state_dict()
        differences = compare(chosen, {name: each for name, each in own.items() if name not in skipped})
    if differences:
        raise _mismatch(config, differences, own)
    _require_loadable(chosen, own, place)
    task.model.load_state_dict(chosen, strict=False)
    return weights


def read_weights(place: Path) -> Weights:
    """Read weights and buffers by name, without unpickling any object.

    Raises:
        ConfigError: the file cannot be read, or is not a state dict.
    """
    try:
        if place.is_dir():
            return evaluated_weights(place)
        if place.suffix == ".safetensors":
            return load_file(place)
        found = torch.load(place, map_location="cpu", weights_only=True)
    except PacelineError:
        raise
    except (OSError, SafetensorError) as error:
        raise _unreadable(place, str(error)) from None
    except UnpicklingError:  # its text advises to unpickle
        raise _unreadable(place, "it holds more than tensors, numbers and texts, or is another kind of file") from None
    except Exception as error:  # in a file of another kind, torch.load fails in any way, such as by a KeyError
        first_line = next(iter(str(error).splitlines()), "")
        raise _unreadable(place, f"{type(error).__name__} {first_line}".rstrip()) from None
    return _state_dict(found, place)


def compare(weights: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> Differences:
    """Return the differences between loaded weights and a model's; tied weights are not missing if one is loaded.

    Args:
        own: the model's weights and buffers, by name.
    """
    loaded = {own[name].data_ptr() for name in weights if name in own and own[name].numel()}
    return Differences(
        missing=[name for name, each in own.items() if name not in weights and each.data_ptr() not in loaded],
        unexpected=[name for name in weights if name not in own],
        shapes={
            name: (list(each.shape), list(own[name].shape))
            for name, each in weights.items()
            if name in own and each.shape != own[name].shape
        },
    )


def _state_dict(found: Any, place: Path) -> Weights:
    for key in WRAPPING_KEYS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    weights = found if isinstance(found, Mapping) else {}
    tensors = {strip_wrappers(str(name)): each for name, each in weights.items() if isinstance(each, torch.Tensor)}
    if not tensors:
        raise _unreadable(place, "it holds no state dict")
    return tensors


def _require_loadable(weights: Weights, own: Weights, place: Path) -> None:
    """Check that all weights are numbers that can be copied into the model without loss of their imaginary parts."""
    for name, each in weights.items():
        if each.layout is not torch.strided or each.is_quantized or each.is_meta:
            raise _unreadable(place, f"{name} is not a dense tensor (it is sparse, quantized or without data)")
        if each.is_complex() and not own[name].is_complex():
            raise _unreadable(place, f"{name} is complex, and the model's is real")


def _without_model_prefix(weights: Weights, own: Collection[str]) -> Weights:
    """Return the weights without the prefix `model.`, which Lightning's checkpoints have."""
    if not all(name.startswith(MODEL_PREFIX) for name in weights) or any(name.startswith(MODEL_PREFIX) for name in own):
        return weights
    return {name.removeprefix(MODEL_PREFIX): each for name, each in weights.items()}


def _skipped(pattern: str, names: Collection[str]) -> set[str]:
    found = {name for name in names if re.search(pattern, name)}
    if not found or len(found) == len(set(names)):
        reason = f"{pattern!r} matches {'no weight' if not found else 'every weight'} of the model"
        plain = re.sub(r"\\(.)|[\^$]", r"\1", pattern)
        near = get_close_matches(plain, list(dict.fromkeys(names)), n=3, cutoff=0.0)
        raise ConfigError(
            [Problem("no-such-weights", reason, "model.weights_skip", hint=f"near names: {', '.join(near)}")]
        )
    return found


def _mismatch(config: ExperimentConfig, differences: Differences, own: Mapping[str, torch.Tensor]) -> ConfigError:
    reason = f"{config.model.initial_weights} does not fit the model: {differences.text()}"
    fresh = [*differences.shapes, *differences.missing]
    if fresh and len(fresh) < len(own) // 2 + 1 and not set(differences.unexpected) - set(fresh):
        hint = f"model.weights_skip: '{_pattern(fresh)}' keeps the fresh initialisation of those, as for another head"
    else:
        hint = "build the model that the weights were trained with, or name other weights"
    return ConfigError([Problem("weights-mismatch", reason, "model.weights", hint=hint)])


def _pattern(names: list[str]) -> str:
    """Return a regular expression that matches the modules that hold the names."""
    modules = dict.fromkeys(name.rpartition(".")[0] for name in names)
    if "" in modules:
        return "^(" + "|".join(re.escape(name) for name in names) + ")$"
    return "|".join(f"^{re.escape(module)}\\." for module in modules)


def _listed(names: list[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join([*names[:SHOWN_NAMES], *([f"and {more} more"] if more > 0 else [])])


def _unreadable(place: Path, reason: str) -> ConfigError:
    hint = "save it with torch.save(model.state_dict(), FILE), or with safetensors.torch.save_file"
    return ConfigError([Problem("weights-unreadable", f"{place} cannot be read: {reason}", "model.weights", hint=hint)])
