"""A model as a program of its own (`torch.export`), which needs neither its code nor Paceline."""

import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline._compat.torch import tree_leaves, tree_map
from paceline.config.experiment import ExperimentConfig
from paceline.data.base import DataConfig
from paceline.engine.batches import map_tensors
from paceline.engine.loading import SeededFetcher
from paceline.errors import EnvironmentFault, PacelineError, UnusableCode, text_of
from paceline.tasks.base import TaskConfig

TRACED_BATCH = 4
"""Samples of the batch that the model is traced with."""
CHECKED_BATCHES = (1, 5)
"""Samples of the batches with which the saved program is compared with the model; none of them that size."""
TOLERANCES = {torch.float64: (1e-7, 1e-9), torch.float16: (1e-2, 1e-3), torch.bfloat16: (2e-2, 1e-2)}
"""Relative and absolute, by number format."""
DEFAULT_TOLERANCE = (1e-4, 1e-5)
HINT = "use --format safetensors, which needs no tracing"
TRACEABLE_OUTPUTS = (torch.Tensor, bool, int, float, str, type(None))
NOT_TRACEABLE = "not-traceable"
"""Code of the errors of a model that `torch.export` or the task gives no program of."""


@dataclass(frozen=True)
class Call:
    """Arguments of a model's call for one batch."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def save_program(config: ExperimentConfig, model: nn.Module, file: Path) -> dict[str, Any]:
    """Trace the model with samples of the config's data, save the program, read it back, and compare the two.

    The batch size stays free, and so does each other size that the model's operations leave free, such as a sequence
    length. A model output of a mapping type, such as those of Hugging Face, becomes a `dict`. The model is as it is
    evaluated: on the CPU, without autocast.

    Args:
        model: in eval mode, as `rebuild` gives it.
        file: ends in `.pt2`.

    Returns:
        What was checked, as JSON values: `batch_sizes`, and `rtol` and `atol` by number format of the outputs.

    Raises:
        EnvironmentFault: the data are not there.
        OSError: the disk is full or gone.
        UnusableCode: the model cannot be traced or saved, or the program gives other outputs.
    """
    batches = _batches(config, (TRACED_BATCH, *CHECKED_BATCHES))
    calls = {size: _call_of(config, model, batch) for size, batch in batches.items()}
    with warnings.catch_warnings(), torch.no_grad(), _plain_outputs(model):
        warnings.simplefilter("ignore")
        file.write_bytes(_saved(_traced(model, calls[TRACED_BATCH])))
        program = torch.export.load(file).module()
        tolerances: dict[str, tuple[float, float]] = {}
        for size in CHECKED_BATCHES:
            tolerances |= _compare(model, program, calls[size], size)
    return {"batch_sizes": list(CHECKED_BATCHES), "tolerances": {name: list(t) for name, t in tolerances.items()}}


_REWRITE = "rewrite what depends on the values of tensors, such as `if x.sum() > 0`, without Python's own branches"


def _traced(model: nn.Module, call: Call) -> torch.export.ExportedProgram:
    try:
        try:
            return _trace(model, call, torch.export.Dim.AUTO)
        except Exception:  # whatever the model's code and the tracer raise
            return _trace(model, call, None)
    except Exception as error:
        raise UnusableCode(
            f"the model cannot be traced: {_first_line(error)}; {HINT}, or {_REWRITE}", NOT_TRACEABLE
        ) from error


def _saved(program: torch.export.ExportedProgram) -> bytes:
    """The program as the content of a file. Made in memory: on a full disk torch's own writer ends the process."""
    content = io.BytesIO()
    try:
        torch.export.save(program, content)
    except Exception as error:  # such as objects of the model's that cannot be written down
        raise UnusableCode(
            f"the traced model cannot be saved: {_first_line(error)}; {HINT}", "trace-not-saved"
        ) from error
    return content.getvalue()


def _call_of(config: ExperimentConfig, model: nn.Module, batch: Any) -> Call:
    """Return the arguments with which the config's task calls the model for a batch."""
    calls: list[Call] = []

    def take(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(Call(args, kwargs))

    task = TaskConfig.of(config.task).build(model).eval()
    handle = model.register_forward_pre_hook(take, with_kwargs=True)
    try:
        with torch.no_grad():
            task(batch)
    finally:
        handle.remove()
    if not calls:
        raise UnusableCode(
            f"the task does not call the model itself, so that its inputs are not known; {HINT}", NOT_TRACEABLE
        )
    return calls[0]


def _batches(config: ExperimentConfig, sizes: tuple[int, ...]) -> dict[int, Any]:
    """Samples of the validation set, or of the training set where that has none; the first again if there are few."""
    try:
        sets = DataConfig.of(config.data).sets()
        dataset: Any = next(each for each in (*sets.validation.values(), sets.train) if len(each))
        fetcher = SeededFetcher(dataset, config.seed, sets.collate_fn)
        batches = {size: fetcher.fetch(0, torch.arange(size) % len(dataset)) for size in sizes}
    except (PacelineError, OSError, StopIteration) as error:
        reason = "there are no samples" if isinstance(error, StopIteration) else _first_line(error)
        raise EnvironmentFault(
            f"the model is traced with samples of the config's data, which cannot be had here: {reason}; "
            f"go where they are, or {HINT}",
            "no-data",
        ) from None
    return map_tensors(batches, _as_double) if config.trainer.precision == "64-true" else batches


def _as_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


@contextmanager
def _plain_outputs(model: nn.Module) -> Iterator[None]:
    """Let the model return a `dict` for any mapping, without items that no program can return, such as caches.

    A program with another type of mapping can only be loaded where the package of that type has been imported.
    """

    def plain(_: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, Mapping):
            return output
        leaves = {key: tree_leaves(value) for key, value in output.items()}
        return {key: output[key] for key in output if all(isinstance(x, TRACEABLE_OUTPUTS) for x in leaves[key])}

    handle = model.register_forward_hook(plain)
    try:
        yield
    finally:
        handle.remove()


def _trace(model: nn.Module, call: Call, other_sizes: Any) -> torch.export.ExportedProgram:
    """Trace the model.

    Args:
        other_sizes: constraint of the sizes beside the batch size; None: they are fixed.
    """
    size = torch.export.Dim("batch")

    def free(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            return None
        first = size if leaf.shape[0] == TRACED_BATCH else other_sizes
        return {0: first, **dict.fromkeys(range(1, leaf.dim()), other_sizes)}

    named = signature(model.forward).bind(*call.args, **call.kwargs).arguments
    return torch.export.export(model, call.args, call.kwargs, dynamic_shapes=tree_map(free, dict(named)))


def _compare(model: nn.Module, program: nn.Module, call: Call, size: int) -> dict[str, tuple[float, float]]:
    """Hold the program's outputs against the model's; the tolerances, by number format."""
    wanted = tree_leaves(model(*call.args, **call.kwargs))
    try:
        given = tree_leaves(program(*call.args, **call.kwargs))
    except Exception as error:
        reason = f"the traced model does not take a batch of {size}: {_first_line(error)}"
        raise UnusableCode(f"{reason}; {HINT}", NOT_TRACEABLE) from error
    used: dict[str, tuple[float, float]] = {}
    for one, other in zip(wanted, given, strict=True):
        if isinstance(one, torch.Tensor):
            used[str(one.dtype).removeprefix("torch.")] = relative, absolute = _tolerance(one.dtype)
            if not torch.allclose(one, other, relative, absolute, equal_nan=True):
                difference = (one.double() - other.double()).abs().max().item()
                raise UnusableCode(
                    f"the traced model gives other outputs for a batch of {size}: they differ by {difference:.3g}, "
                    f"with {relative:g} relative and {absolute:g} absolute allowed; {HINT}",
                    "trace-differs",
                    batch_size=size,
                    difference=difference,
                )
    return used


def _tolerance(dtype: torch.dtype) -> tuple[float, float]:
    return TOLERANCES.get(dtype, DEFAULT_TOLERANCE if dtype.is_floating_point else (0.0, 0.0))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
