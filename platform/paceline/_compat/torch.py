"""Private API of torch, with the public one that is missing.

A name that is only handed on is looked up when it is imported from here, so that a version without it fails where it is
used and nowhere else.
"""

import inspect
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from paceline._compat.private_names import required
from paceline.garbage_collection import collector_paused

PRIVATE = (
    "torch._C._clear_DTensor_sharding_propagator_cache",
    "torch._C._get_fp32_precision_getter",
    "torch._C._set_fp32_precision_setter",
    "torch._disable_dynamo",
    "torch._dynamo",
    "torch._dynamo.config.patch",
    "torch._dynamo.config.recompile_limit",
    "torch._dynamo.config.suppress_errors",
    "torch._dynamo.utils",
    "torch._foreach_add",
    "torch._foreach_add_",
    "torch._foreach_addcdiv_",
    "torch._foreach_addcmul_",
    "torch._foreach_div",
    "torch._foreach_lerp_",
    "torch._foreach_mul",
    "torch._foreach_mul_",
    "torch._foreach_norm",
    "torch._foreach_sqrt_",
    "torch._functorch.config.activation_memory_budget",
    "torch._inductor.config.joint_custom_post_pass",
    "torch._inductor.custom_graph_pass.CustomGraphPass",
    "torch._ops",
    "torch._subclasses",
    "torch._subclasses.fake_tensor.FakeTensor",
    "torch._subclasses.fake_tensor.FakeTensorMode",
    "torch._tensor",
    "torch.amp.GradScaler._found_inf_per_device",
    "torch.autograd.Variable._execution_engine.run_backward",
    "torch.compile._orig_mod",
    "torch.distributed.distributed_c10d._abort_process_group",
    "torch.distributed.distributed_c10d._get_default_store",
    "torch.distributed.distributed_c10d._set_pg_timeout",
    "torch.distributed.pipelining.ScheduleGPipe._step_microbatches",
    "torch.distributed.rendezvous._create_c10d_store",
    "torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear",
    "torch.nn.Module._apply",
    "torch.nn.Module._buffers",
    "torch.nn.Module._call_impl",
    "torch.nn.Module._compiled_call_impl",
    "torch.nn.Module._forward_hooks",
    "torch.nn.Module._forward_pre_hooks",
    "torch.nn.Module._parameters",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.batchnorm._NormBase",
    "torch.nn.modules.module._global_backward_hooks",
    "torch.nn.modules.module._global_backward_pre_hooks",
    "torch.nn.modules.module._global_buffer_registration_hooks",
    "torch.nn.modules.module._global_forward_hooks",
    "torch.nn.modules.module._global_forward_hooks_always_called",
    "torch.nn.modules.module._global_forward_hooks_with_kwargs",
    "torch.nn.modules.module._global_forward_pre_hooks",
    "torch.nn.modules.module._global_is_full_backward_hook",
    "torch.nn.modules.module._global_module_registration_hooks",
    "torch.nn.modules.module._global_parameter_registration_hooks",
    "torch.nn.parallel.DistributedDataParallel._inside_ddp_forward",
    "torch.nn.parallel.DistributedDataParallel._sync_buffers",
    "torch.ops.aten._grouped_mm",
    "torch.ops.aten._scaled_dot_product_cudnn_attention",
    "torch.ops.aten._scaled_dot_product_efficient_attention",
    "torch.ops.aten._scaled_dot_product_flash_attention",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    "torch.ops.aten._scaled_dot_product_fused_attention_overrideable",
    "torch.ops.aten._scaled_mm",
    "torch.ops.aten.mm.default._schema",
    "torch.optim.Adam._step_supports_amp_scaling",
    "torch.optim.optimizer._global_optimizer_post_hooks",
    "torch.optim.optimizer._global_optimizer_pre_hooks",
    "torch.optim.optimizer._use_grad_for_differentiable",
    "torch.utils._mode_utils.no_dispatch",
    "torch.utils._python_dispatch",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._pytree.register_dataclass",
    "torch.utils._pytree.tree_leaves",
    "torch.utils._pytree.tree_map",
    "torch.utils._pytree.tree_map_only",
    "torch.utils.data.DataLoader._iterator._shutdown_workers",
)
"""Every private name that this file uses: `tests/system/compat/test_torch.py` has a case for each."""

# Names that are handed on as they are

_HANDED_ON = {
    # Operations over lists of tensors, as torch's own optimizers use them: one kernel launch instead of one per
    # parameter. No public function takes a list of tensors.
    "foreach_add": "torch._foreach_add",
    "foreach_add_": "torch._foreach_add_",
    "foreach_addcdiv_": "torch._foreach_addcdiv_",
    "foreach_addcmul_": "torch._foreach_addcmul_",
    "foreach_div": "torch._foreach_div",
    "foreach_lerp_": "torch._foreach_lerp_",
    "foreach_mul": "torch._foreach_mul",
    "foreach_mul_": "torch._foreach_mul_",
    "foreach_norm": "torch._foreach_norm",
    "foreach_sqrt_": "torch._foreach_sqrt_",
    # Nested batches as trees. torch has no public pytree module; optree is another package, and DDP and torch.export
    # look types up in this registry.
    "register_dataclass": "torch.utils._pytree.register_dataclass",
    "tree_leaves": "torch.utils._pytree.tree_leaves",
    "tree_map": "torch.utils._pytree.tree_map",
    "tree_map_only": "torch.utils._pytree.tree_map_only",
    # Tensors with shapes and types but without memory. The `meta` device is public, but has no devices and no autocast.
    "FakeTensor": "torch._subclasses.fake_tensor.FakeTensor",
    "FakeTensorMode": "torch._subclasses.fake_tensor.FakeTensorMode",
    # Sees every operation below autograd, and leaves that mode for one operation. `TorchFunctionMode`, the public one,
    # sees only what Python calls.
    "TorchDispatchMode": "torch.utils._python_dispatch.TorchDispatchMode",
    "no_dispatch": "torch.utils._mode_utils.no_dispatch",
    # Base classes of all norms with running statistics. Norms of other packages derive from them, and not from the
    # public BatchNorm1d, 2d and 3d: apex's SyncBatchNorm, for one.
    "BatchNormBase": "torch.nn.modules.batchnorm._BatchNorm",
    "NormBase": "torch.nn.modules.batchnorm._NormBase",
    # Base class of passes over inductor's graph. A plain function is accepted, but switches inductor's cache off.
    "CustomGraphPass": "torch._inductor.custom_graph_pass.CustomGraphPass",
}

if TYPE_CHECKING:
    import torch._inductor.custom_graph_pass
    import torch._subclasses.fake_tensor
    import torch.nn.modules.batchnorm
    import torch.utils._mode_utils
    import torch.utils._python_dispatch
    import torch.utils._pytree

    BatchNormBase = torch.nn.modules.batchnorm._BatchNorm
    CustomGraphPass = torch._inductor.custom_graph_pass.CustomGraphPass
    FakeTensor = torch._subclasses.fake_tensor.FakeTensor
    FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
    NormBase = torch.nn.modules.batchnorm._NormBase
    TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
    foreach_add = torch._foreach_add
    foreach_add_ = torch._foreach_add_
    foreach_addcdiv_ = torch._foreach_addcdiv_
    foreach_addcmul_ = torch._foreach_addcmul_
    foreach_div = torch._foreach_div
    foreach_lerp_ = torch._foreach_lerp_
    foreach_mul = torch._foreach_mul
    foreach_mul_ = torch._foreach_mul_
    foreach_norm = torch._foreach_norm
    foreach_sqrt_ = torch._foreach_sqrt_
    no_dispatch = torch.utils._mode_utils.no_dispatch
    register_dataclass = torch.utils._pytree.register_dataclass
    tree_leaves = torch.utils._pytree.tree_leaves
    tree_map = torch.utils._pytree.tree_map
    tree_map_only = torch.utils._pytree.tree_map_only
else:

    def __getattr__(name: str) -> Any:
        if name not in _HANDED_ON:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = required(_HANDED_ON[name])
        return value


@cache
def _accepts(function: Callable[..., Any], argument: str) -> bool:
    return argument in inspect.signature(function).parameters


# The compiler

COMPILED_PREFIX = "_orig_mod."
"""Prefix of the state-dict names of a module that `torch.compile` returned. No public function strips it."""
COMPILER_LOGGER = "torch._dynamo"
"""Logger of the compiler's warnings. `torch._logging` sets its level, but nothing public hands the messages on."""
_default_recompile_limit: int | None = None


def import_compiler() -> None:
    """Import `torch.compile`'s tracer, which takes seconds. `torch.compiler` itself imports it with the first call."""
    with collector_paused(), suppress(ImportError):
        import torch._dynamo  # noqa: F401


def is_compiler_imported() -> bool:
    """Return True if the tracer has been imported. Before that, it has no state to reset."""
    return "torch._dynamo" in sys.modules


def defer_compiler_import() -> None:
    """Let optimizers and DDP work without the tracer until something else imports it.

    torch imports it only to keep it out of a few of their methods, which takes each process more than a second. Where a
    version of torch marks these methods otherwise, it is imported as before. Call it before an optimizer is made.
    """
    if is_compiler_imported():
        return
    if (disable := getattr(torch, "_disable_dynamo", None)) is not None:
        wrapper = disable(lambda: None).__code__
        for method in [*vars(Optimizer).values(), *vars(DistributedDataParallel).values()]:
            for layer in _layers(method):
                if getattr(layer, "__code__", None) is wrapper:
                    vars(layer.__wrapped__).setdefault("__dynamo_disable", _until_compiler_import(layer))
    optimizer_module = import_module("torch.optim.optimizer")
    if (use_grad := getattr(optimizer_module, "_use_grad_for_differentiable", None)) is not None:
        wrapper = use_grad(lambda: None).__code__
        for kind in Optimizer.__subclasses__():
            if getattr(vars(kind).get("step"), "__code__", None) is wrapper:
                kind.step = _step_until_compiler_import(kind.step)  # type: ignore[method-assign]


def _layers(method: Any) -> Iterator[Any]:
    """Walk through a method and what it wraps."""
    while method is not None:
        yield method
        method = getattr(method, "__wrapped__", None)


def _until_compiler_import(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a method calls in place of its disabled form, which torch makes when this is taken away."""
    original: Any = method.__wrapped__  # type: ignore[attr-defined]

    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_compiler_imported():
            return original(*args, **kwargs)
        vars(original).pop("__dynamo_disable", None)
        return method(*args, **kwargs)

    return call


def _step_until_compiler_import(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return an optimizer's `step` that tells the tracer where its graphs end only if there is a tracer."""
    original: Any = step.__wrapped__  # type: ignore[attr-defined]

    @wraps(step)
    def call(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if is_compiler_imported():
            return step(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return original(self, *args, **kwargs)

    return call


class _LazyModule(ModuleType):
    """Placeholder of a module, which is imported on access to any attribute but the given ones."""

    def __init__(self, name: str, **known: Any) -> None:
        super().__init__(name)
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


@contextmanager
def compiler_import_deferred() -> Iterator[None]:
    """Let DDP be built without the tracer, whose settings it asks for: before the import they are the default ones."""
    if is_compiler_imported():
        yield
        return
    utils = _LazyModule("torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
    placeholder = _LazyModule("torch._dynamo", utils=utils)
    vars(torch)["_dynamo"] = placeholder
    try:
        yield
    finally:
        if vars(torch).get("_dynamo") is placeholder:
            del vars(torch)["_dynamo"]


def set_compile_fallback(is_on: bool) -> None:
    """Let code whose compilation fails run uncompiled, for the whole process. `torch.compile` has no such argument."""
    from torch._dynamo import config

    config.suppress_errors = is_on


def compile_errors_raised() -> AbstractContextManager[None]:
    """Return a context in which a failed compilation raises, whatever `set_compile_fallback` says."""
    from torch._dynamo import config

    patched: AbstractContextManager[None] = config.patch(suppress_errors=False)
    return patched


def compile_in_place(module: nn.Module, *, backend: Any, mode: str, recompile_limit: int) -> None:
    """Call `module.compile` with a limit on its variants.

    Where `torch.compile` takes no `recompile_limit`, as in torch 2.11, the limit is set for the whole process;
    `reset_recompile_limit` undoes that.
    """
    global _default_recompile_limit
    if _accepts(torch.compile, "recompile_limit"):
        module.compile(backend=backend, mode=mode, recompile_limit=recompile_limit)
        return
    from torch._dynamo import config

    if _default_recompile_limit is None:
        _default_recompile_limit = config.recompile_limit
    config.recompile_limit = recompile_limit
    module.compile(backend=backend, mode=mode)


def reset_recompile_limit() -> None:
    """Undo the process-wide settings of `compile_in_place`."""
    global _default_recompile_limit
    if _default_recompile_limit is not None:
        from torch._dynamo import config

        config.recompile_limit, _default_recompile_limit = _default_recompile_limit, None


def set_activation_memory_budget(share: float) -> None:
    """Set the share of activations that compiled code keeps for backward. `torch.compile` has no such argument."""
    from torch._functorch import config

    config.activation_memory_budget = share


def joint_graph_pass() -> Any:
    """The pass over inductor's joint graph of forward and backward, or None."""
    from torch._inductor import config

    return config.joint_custom_post_pass


def set_joint_graph_pass(graph_pass: Any) -> None:
    """Set the pass over inductor's joint graph. `torch.compile` takes backends, but no passes of inductor's."""
    from torch._inductor import config

    config.joint_custom_post_pass = graph_pass


def wrap_compiled_call(module: nn.Module, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap the compiled call of a module. Hooks run inside of it; a wrapped `forward` would be compiled as well."""
    module._compiled_call_impl = wrap(module._compiled_call_impl or module._call_impl)


def undo_compile(module: nn.Module) -> None:
    """Undo `module.compile`, for which torch has no opposite."""
    module._compiled_call_impl = None


# Modules

Tensors = dict[str, Any]


def own_parameters(module: nn.Module) -> Tensors:
    """The module's own mapping of parameters, to replace them in place.

    `setattr` would refuse other types of tensors and run the module's own `__setattr__`.
    """
    return module._parameters


def own_buffers(module: nn.Module) -> Tensors:
    """The module's own mapping of buffers; see `own_parameters`."""
    return module._buffers


def has_forward_hooks(module: nn.Module) -> bool:
    """Return True if the module has forward hooks or pre-hooks. torch has no public way to list them."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def apply_to_tensors(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    """Replace a module's tensors by `function` of each, as `module.to` does. Only fixed conversions are public."""
    module._apply(function)  # type: ignore[no-untyped-call]


@contextmanager
def module_apply_replaced(apply: Callable[..., nn.Module]) -> Iterator[None]:
    """While the body runs, `module.to` and similar methods use `apply` instead of torch's method of all modules."""
    before = nn.Module._apply
    nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = before  # type: ignore[method-assign]


def global_hooks() -> list[dict[Any, Any]]:
    """The hooks on all modules and all optimizers, to restore them. Those that a version lacks are left out."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    return [*_mappings(module, _MODULE_HOOKS), *_mappings(optimizer, _OPTIMIZER_HOOKS)]


_MODULE_HOOKS = (
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
)
_OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


def _mappings(owner: ModuleType, names: tuple[str, ...]) -> list[dict[Any, Any]]:
    return [getattr(owner, name) for name in names if hasattr(owner, name)]


def global_backward_hooks_are_full() -> bool | None:
    """Return True if global backward hooks are full hooks, False if they are not; None if none was registered yet.

    The first hook to be registered decides which kind all others must be.
    """
    from torch.nn.modules import module

    return module._global_is_full_backward_hook


def set_global_backward_hooks_are_full(value: bool | None) -> None:
    """Set it back, so that the other kind can be registered again."""
    from torch.nn.modules import module

    module._global_is_full_backward_hook = value


# Numerics and operations


def fp32_precision(backend: str, operation: str) -> str:
    """The float32 precision of a backend's operations.

    `torch.backends` has these as attributes, but mkldnn's, when it is set, changes the generic one instead.
    """
    precision: str = torch._C._get_fp32_precision_getter(backend, operation)
    return precision


def set_fp32_precision(backend: str, operation: str, precision: str) -> None:
    """Set it; see `fp32_precision`."""
    torch._C._set_fp32_precision_setter(backend, operation, precision)


def attention_and_scaled_matmuls() -> set[Any]:
    """Fused attention and scaled matrix products, as the dispatcher has them below autograd.

    A checkpoint policy is called with these; the public functions are taken apart before. Those that a version lacks
    are left out, and are recomputed.
    """
    packets = (getattr(torch.ops.aten, name, None) for name in _SLOW_OPERATIONS)
    return {packet.default for packet in packets if packet is not None}


_SLOW_OPERATIONS = (
    "_scaled_mm",
    "_grouped_mm",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_flash_attention_for_cpu",
)


def argument_names(operation: Any) -> list[str]:
    """The names of an operation's arguments: it is called by position, and has no Python signature."""
    return [argument.name for argument in operation._schema.arguments]


def found_inf(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> Tensor:
    """A number on the device, not 0 if the scaler skips this step: before `update`, which forgets it.

    `get_scale`, the public way, waits for the device.
    """
    found: Tensor
    (found,) = scaler._found_inf_per_device(optimizer).values()
    return found


class SkipsOverflow:
    """Put before `Optimizer` among the bases: `GradScaler.step` calls `step` always, and does not wait for the device.

    The optimizer itself has to leave weights and state as they are if a gradient is not finite. No public base class or
    method says that it does.
    """

    _step_supports_amp_scaling = True

    def loss_scaling(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the attributes that the gradient scaler sets during `step`; both are None without a scaler.

        Returns:
            The scale of the gradients, None if they are unscaled; a scalar on the device, nonzero to skip the step.
        """
        return getattr(self, "grad_scale", None), getattr(self, "found_inf", None)


def run_backward(loss: Tensor, gradient: Tensor) -> None:
    """Run `loss.backward(gradient)` of two scalars of one dtype, without the 40 microseconds of Python on the CPU that
    the public method spends before it calls the engine.

    It spends them on checks of shapes and on passing Python's context to the threads of other devices. Tensors on other
    devices therefore use the public method.
    """
    engine = getattr(torch.autograd.Variable, "_execution_engine", None)
    if engine is None or type(loss) is not Tensor or loss.device.type != "cpu":
        loss.backward(gradient)  # type: ignore[no-untyped-call]
        return
    engine.run_backward((loss,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


# Data


def end_loader_processes(loader: DataLoader[Any]) -> None:
    """End the processes of a loader now. Otherwise they end with the last reference to its iterator."""
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


# Distributed training

BUFFER_SYNC = "_sync_buffers"
"""The method of DDP that broadcasts rank 0's buffers before a forward pass. It has no hook, as gradients have."""


class BufferSyncHook:
    """Mixin before DDP among the bases: calls `around_buffer_sync` with the function that broadcasts the buffers."""

    def around_buffer_sync(self, sync: Callable[[], None]) -> None:
        """Call `sync`, once."""
        sync()

    def _sync_buffers(self) -> None:
        self.around_buffer_sync(super()._sync_buffers)  # type: ignore[misc]


def inside_ddp_forward(model: DistributedDataParallel) -> AbstractContextManager[Any]:
    """Return the context in which the compiler cuts graphs at DDP's buckets. Else only DDP's own forward has it."""
    context: AbstractContextManager[Any] = model._inside_ddp_forward()
    return context


def default_store() -> Any:
    """Return the store of the default process group, over which ranks exchange messages.

    A second `TCPStore` would need another port that every rank knows.
    """
    return required("torch.distributed.distributed_c10d._get_default_store")()


def listen_on_master_address() -> None:
    """Have the store of the next default process group listen at the address that the ranks know it by.

    torch's server listens on all interfaces and answers everybody. It takes a socket that is bound elsewhere, but no
    rendezvous passes one on. Without this name the store stays open to the network.
    """
    rendezvous: Any = import_module("torch.distributed.rendezvous")  # the package has a function of that name
    create = rendezvous._create_c10d_store

    def create_bound(
        hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, use_libuv: bool = True
    ) -> Any:
        bound = _bound_socket(hostname, port) if rank == 0 and use_libuv else None
        if bound is None:
            return create(hostname, port, rank, world_size, timeout, use_libuv)
        descriptor = bound.detach()  # the store closes it
        return rendezvous.TCPStore(
            hostname, port, world_size, True, timeout, multi_tenant=True, master_listen_fd=descriptor, use_libuv=True
        )

    rendezvous._create_c10d_store = create_bound


def _bound_socket(hostname: str, port: int) -> socket.socket | None:
    """A socket that listens at an address; None where it is not an address of this machine, as behind NAT."""
    try:
        family, _, _, _, address = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)  # as many ranks may come at once
    except OSError:
        return None


def abort_process_group() -> None:
    """Abort the default process group and all others: NCCL's collectives return with an error.

    `destroy_process_group`, the public one, waits for collectives that may never end.
    """
    required("torch.distributed.distributed_c10d._abort_process_group")()


def set_group_timeout(timeout: timedelta, group: Any) -> None:
    """Set the timeout of a process group. Public as `torch.distributed.set_timeout` since torch 2.15."""
    public = getattr(dist, "set_timeout", None)
    (public or required("torch.distributed.distributed_c10d._set_pg_timeout"))(timeout, group)


def run_schedule(schedule: Any, stage: Any, arguments: list[tuple[Any, ...]], targets: list[Any] | None) -> None:
    """Take micro batches through a pipeline, forward and backward.

    The schedules of torch 2.11 publicly take whole batches of tensors only, which they cut themselves.

    Args:
        stage: this rank's stage, with which the schedule was created.
        arguments: inputs of the first stage for each micro batch; empty tuples on the other stages.
        targets: targets of the loss function for each micro batch, on the last stage.
    """
    keywords: list[dict[str, Any]] = [{} for _ in arguments]
    if _accepts(type(schedule).step, "arg_mbs"):
        schedule.step(arg_mbs=arguments, kwarg_mbs=keywords, target_mbs=targets, return_outputs=False)
        return
    stage.has_backward = True
    stage.clear_runtime_states()
    schedule._step_microbatches(arguments, keywords, targets, None, False)


def forget_sharding_caches() -> None:
    """Drop DTensor's caches, which hold meshes of process groups that are gone. torch has no public function for it."""
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import DTensor

    with suppress(AttributeError):
        DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()  # type: ignore[no-untyped-call]
        torch._C._clear_DTensor_sharding_propagator_cache()


# Files


def dispatch_files() -> tuple[str, ...]:
    """Return torch's files, relative to its folder, whose frames are on the stack between a call and its target."""
    names = ("torch._tensor", "torch._ops", "torch._subclasses", "torch.utils._python_dispatch")
    specs = {name: find_spec(name) for name in names}
    return tuple(
        name.removeprefix("torch.").replace(".", "/") + (".py" if spec.submodule_search_locations is None else "/")
        for name, spec in specs.items()
        if spec is not None
    )
