"""Looks out for calls that torch does not tell a function mode of, such as `torch.cuda.synchronize`."""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from paceline.linting.own_code import CodeLine, calling_line, nearest_line
from paceline.linting.recorder import ForwardRecorder
from paceline.linting.replaced import replaced

HOUSEKEEPING = ("torch.cuda.empty_cache", "torch.cuda.synchronize", "gc.collect")


@contextmanager
def watching(recorder: ForwardRecorder) -> Iterator[None]:
    """While the body runs, what the user's code calls of these goes into `recorder.record.calls`.

    The caches of a GPU are left alone, and nothing computes gradients but `torch.autograd.grad`.
    """
    with ExitStack() as stack:
        for owner, name, watcher in _watchers(recorder):
            stack.enter_context(replaced(owner, name, watcher))
        hook = register_module_parameter_registration_hook(_on_new_parameter(recorder))
        stack.callback(hook.remove)
        yield


def _watchers(recorder: ForwardRecorder) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    for full_name in HOUSEKEEPING:
        owner = {"torch.cuda": torch.cuda, "gc": gc}[full_name.rpartition(".")[0]]
        yield owner, full_name.rpartition(".")[2], _noted(recorder, full_name, lambda *args, **kwargs: 0)
    yield torch.autograd, "backward", _noted(recorder, "backward", lambda *args, **kwargs: None, _keeps_graph)
    yield torch.autograd, "grad", _noted(recorder, "grad", torch.autograd.grad, _keeps_graph)
    autocast, scaler = torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler
    yield autocast, "__init__", _noted(recorder, "autocast", autocast.__init__, _autocast_dtype)
    yield scaler, "__init__", _noted(recorder, "GradScaler", scaler.__init__)


def _noted(
    recorder: ForwardRecorder,
    name: str,
    then: Callable[..., Any],
    detail: Callable[..., str] = lambda *args, **kwargs: "",
) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        _note(recorder, name, detail(*args, **kwargs), calling_line())
        return then(*args, **kwargs)

    return called


def _note(recorder: ForwardRecorder, name: str, detail: str, line: CodeLine | None) -> None:
    if line is not None:
        recorder.record.calls.append(recorder.call(name, detail)._replace(line=line))


def _keeps_graph(*args: Any, **kwargs: Any) -> str:
    return "kept" if kwargs.get("retain_graph") and not kwargs.get("create_graph") else ""


def _autocast_dtype(self: Any, device_type: str = "cuda", dtype: Any = None, enabled: bool = True, *args: Any) -> str:
    if not enabled:
        return "off"
    return str(dtype or {"cpu": torch.bfloat16}.get(device_type, torch.float16)).removeprefix("torch.")


def _on_new_parameter(recorder: ForwardRecorder) -> Callable[[nn.Module, str, Any], None]:
    def note(module: nn.Module, name: str, parameter: Any) -> None:
        if parameter is not None:
            _note(recorder, "register_parameter", f"{type(module).__name__}.{name}", nearest_line())

    return note
