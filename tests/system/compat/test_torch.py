"""The private names of torch that Paceline uses are there, and do what it relies on."""

import inspect
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer
from torch.utils.data import DataLoader

from paceline._compat import torch as compat
from support.private_names import Contract, ContractTests


def numbers(tensors: Any) -> list[float]:
    return [float(each) for each in tensors]


def pair(first: float = 2.0, second: float = 3.0) -> list[Tensor]:
    return [torch.tensor(float(first)), torch.tensor(float(second))]


# Lists of tensors


def foreach(function: str, expected: list[float], *arguments: Any, **options: Any) -> Callable[[], None]:
    def check() -> None:
        tensors = pair()
        result = getattr(compat, function)(tensors, *arguments, **options)
        assert numbers(tensors if function.endswith("_") else result) == pytest.approx(expected)

    return check


FOREACH: dict[str, Callable[[], None]] = {
    "torch._foreach_add": foreach("foreach_add", [22.0, 43.0], pair(10, 20), alpha=2),
    "torch._foreach_add_": foreach("foreach_add_", [22.0, 43.0], pair(10, 20), alpha=2),
    "torch._foreach_addcdiv_": foreach("foreach_addcdiv_", [12.0, 8.0], pair(10, 20), pair(2, 8), [2.0, 2.0]),
    "torch._foreach_addcmul_": foreach("foreach_addcmul_", [42.0, 183.0], pair(10, 20), pair(2, 4.5), value=2.0),
    "torch._foreach_div": foreach("foreach_div", [1.0, 0.75], [2.0, 4.0]),
    "torch._foreach_lerp_": foreach("foreach_lerp_", [4.0, 7.25], pair(10, 20), 0.25),
    "torch._foreach_mul": foreach("foreach_mul", [8.0, 12.0], 4.0),
    "torch._foreach_mul_": foreach("foreach_mul_", [8.0, 12.0], torch.tensor(4.0)),
    "torch._foreach_norm": foreach("foreach_norm", [2.0, 3.0]),
    "torch._foreach_sqrt_": foreach("foreach_sqrt_", [2.0**0.5, 3.0**0.5]),
}

# Trees, fakes and modes

BATCH = {"a": [torch.ones(2), 1], "b": (torch.zeros(3),)}


@dataclass
class Output:
    loss: Tensor
    weight: Tensor


def leaves_come_in_order() -> None:
    assert [torch.is_tensor(each) for each in compat.tree_leaves(BATCH)] == [True, False, True]


def tree_keeps_its_structure() -> None:
    assert compat.tree_map(lambda leaf: None, BATCH) == {"a": [None, None], "b": (None,)}


def only_tensors_are_mapped() -> None:
    assert compat.tree_map_only(Tensor, len, BATCH) == {"a": [2, 1], "b": (3,)}


def dataclass_is_a_tree() -> None:
    compat.register_dataclass(Output)
    assert numbers(compat.tree_leaves(Output(*pair()))) == [2.0, 3.0]


def fakes_have_shapes_but_no_memory() -> None:
    with compat.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        huge = nn.Linear(10**6, 10**6)(torch.empty(8, 10**6))
    assert huge.shape == (8, 10**6)
    fake = mode.from_tensor(torch.ones(3))
    assert isinstance(fake, compat.FakeTensor)
    assert isinstance(huge, compat.FakeTensor)


def dispatch_mode(inside: Callable[[], object] = lambda: None) -> tuple[Any, list[str]]:
    """A mode that calls `inside` at each operation, and the names of the operations that it has seen."""
    seen: list[str] = []

    class Mode(compat.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            inside()
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    return Mode(), seen


def dispatch_mode_sees_operations() -> None:
    mode, seen = dispatch_mode()
    with mode:
        nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2), torch.ones(2))
    assert "aten::addmm" in seen


def no_dispatch_leaves_the_mode() -> None:
    def unseen() -> None:
        with compat.no_dispatch():
            torch.ones(2).add(1)

    mode, seen = dispatch_mode(unseen)
    with mode:
        torch.zeros(2).exp()
    assert seen == ["aten::zeros", "aten::exp"]


def norms_derive_from(base: str, *kinds: type) -> Callable[[], None]:
    def check() -> None:
        assert all(issubclass(kind, getattr(compat, base)) for kind in kinds)
        assert not issubclass(nn.LayerNorm, getattr(compat, base))

    return check


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

# The compiler


class Small(nn.Module):
    """A module of a user's: torch compiles its own layers only inside of one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs).relu()


def break_down(graph: Any, inputs: Any) -> Any:
    raise NotImplementedError


@contextmanager
def module_that_fails_to_compile() -> Iterator[nn.Module]:
    """While the body runs, what fails to compile runs uncompiled."""
    torch.compiler.reset()
    module = Small()
    compat.compile_in_place(module, backend=break_down, mode="default", recompile_limit=8)
    compat.set_compile_fallback(True)
    try:
        yield module
    finally:
        compat.set_compile_fallback(False)


@contextmanager
def quiet_compiler() -> Iterator[None]:
    logger = logging.getLogger(compat.COMPILER_LOGGER)
    with patch.object(logger, "handlers", [logging.NullHandler()]), patch.object(logger, "propagate", False):
        yield


def failures_fall_back() -> None:
    with module_that_fails_to_compile() as module, quiet_compiler():
        module(torch.ones(1, 2))


def failures_are_raised_inside() -> None:
    with (
        module_that_fails_to_compile() as module,
        compat.compile_errors_raised(),
        pytest.raises(Exception, match="NotImplementedError"),
    ):
        module(torch.ones(1, 2))


def variants(limit: int) -> int:
    """How often a module is compiled when it is called in four ways."""
    torch.compiler.reset()
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    module = Small()
    compat.compile_in_place(module, backend=backend, mode="default", recompile_limit=limit)
    with quiet_compiler():
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            module.to(dtype)(torch.ones(1, 2, dtype=dtype))
    compat.reset_recompile_limit()
    return len(compiled)


def limit_holds_and_is_reset() -> None:
    from torch._dynamo import config

    before = config.recompile_limit
    assert variants(limit=2) == 2
    assert variants(limit=8) == 4
    assert config.recompile_limit == before


WITHOUT_TRACER = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer
from paceline._compat.torch import compiler_import_deferred, defer_compiler_import

def trained(kind):
    torch.manual_seed(0)
    with compiler_import_deferred():
        model = DistributedDataParallel(nn.Linear(3, 2).double())
    optimizer = kind(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 3, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    return torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
defer_compiler_import()
defer_compiler_import()
before = [trained(kind) for kind in (SGD, AdamW)]
assert "torch._dynamo" not in sys.modules
assert "_dynamo" not in vars(torch)
assert torch.compile(nn.Identity(), backend="eager")(3) == 3
assert torch._dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"
assert [trained(kind) for kind in (SGD, AdamW)] == before
assert Optimizer.zero_grad.__wrapped__.__dynamo_disable._torchdynamo_disable

def stepped(compile):
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = SGD([weight], lr=0.1, momentum=0.9)
    def step():
        weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for _ in range(3):
        compile(step)()
    return weight.tolist()

compiled, plain = stepped(lambda step: torch.compile(step, backend="eager")), stepped(lambda step: step)
assert max(abs(a - b) for a, b in zip(compiled, plain)) < 1e-14  # torch 2.11 differs in the last bit by itself
"""


def tracer_is_imported_when_it_is_used() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TRACER], check=True, timeout=120)


def setting_can_be_set(path: str, setter: Callable[[Any], None], default: Any, other: Any) -> Callable[[], None]:
    def check() -> None:
        assert CONTRACT.find(path) == default
        setter(other)
        try:
            assert CONTRACT.find(path) == other
        finally:
            setter(default)

    return check


def pass_has_an_identity() -> None:
    assert {"__call__", "uuid"} <= compat.CustomGraphPass.__abstractmethods__


def compiled_names_have_the_prefix() -> None:
    compiled = torch.compile(nn.Linear(1, 1), backend="eager")
    assert {name.partition(compat.COMPILED_PREFIX)[0] for name in compiled.state_dict()} == {""}
    assert all(name.startswith(compat.COMPILED_PREFIX) for name in compiled.state_dict())


def compiled_call_is_wrapped_and_undone() -> None:
    calls: list[str] = []
    module = nn.Linear(1, 1)
    compat.compile_in_place(module, backend="eager", mode="default", recompile_limit=8)
    compat.wrap_compiled_call(module, lambda call: lambda *args: (calls.append("wrapped"), call(*args))[1])
    module(torch.ones(1))
    assert calls == ["wrapped"]
    compat.undo_compile(module)
    module(torch.ones(1))
    assert calls == ["wrapped"]


def plain_call_is_wrapped() -> None:
    calls: list[str] = []
    module = nn.Identity()
    module.register_forward_hook(lambda *_: calls.append("hook"))
    compat.wrap_compiled_call(module, lambda call: lambda *args: (calls.append("wrapped"), call(*args))[1])
    module(torch.ones(1))
    assert calls == ["wrapped", "hook"]


# Modules


def parameters_can_be_replaced() -> None:
    module = nn.Linear(1, 1)
    own = compat.own_parameters(module)
    assert list(own) == ["weight", "bias"]
    own["weight"] = meta = nn.Parameter(torch.empty(1, 1, device="meta"))
    assert module.weight is meta
    assert next(module.parameters()) is meta


def buffers_can_be_replaced() -> None:
    module = nn.BatchNorm1d(1)
    own = compat.own_buffers(module)
    own["running_mean"] = mean = torch.ones(1)
    assert module.running_mean is mean
    assert "running_mean" in module.state_dict()


def hooks_are_seen(register: str) -> Callable[[], None]:
    def check() -> None:
        module = nn.Identity()
        assert not compat.has_forward_hooks(module)
        handle = getattr(module, register)(lambda *_: None)
        assert compat.has_forward_hooks(module)
        handle.remove()
        assert not compat.has_forward_hooks(module)

    return check


def conversions_go_through_the_replacement() -> None:
    seen: list[nn.Module] = []

    def apply(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        seen.append(module)
        return module

    module = nn.Linear(1, 1)
    with compat.module_apply_replaced(apply):
        module.double()
        compat.apply_to_tensors(module, torch.clone)
    assert seen == [module, module]
    assert module.weight.dtype == torch.float32
    compat.apply_to_tensors(module, lambda tensor: tensor.double())
    assert module.weight.dtype == torch.float64


def hook_is_global(owner: Any, register: str, *before: Any) -> Callable[[], None]:
    def check() -> None:
        sizes = [len(each) for each in compat.global_hooks()]
        handle = getattr(owner, register)(lambda *_: None, **dict(before))
        try:
            assert sum(map(len, compat.global_hooks())) == sum(sizes) + 1
        finally:
            handle.remove()

    return check


HOOKS = nn.modules.module
REGISTERED = {
    "_global_backward_hooks": (HOOKS, "register_module_full_backward_hook"),
    "_global_backward_pre_hooks": (HOOKS, "register_module_full_backward_pre_hook"),
    "_global_buffer_registration_hooks": (HOOKS, "register_module_buffer_registration_hook"),
    "_global_forward_hooks": (HOOKS, "register_module_forward_hook"),
    "_global_forward_pre_hooks": (HOOKS, "register_module_forward_pre_hook"),
    "_global_module_registration_hooks": (HOOKS, "register_module_module_registration_hook"),
    "_global_parameter_registration_hooks": (HOOKS, "register_module_parameter_registration_hook"),
}
OPTIMIZER_HOOKS = {
    "_global_optimizer_pre_hooks": (optimizer, "register_optimizer_step_pre_hook"),
    "_global_optimizer_post_hooks": (optimizer, "register_optimizer_step_post_hook"),
}


def hook_options_are_global() -> None:
    sizes = sum(map(len, compat.global_hooks()))
    handle = HOOKS.register_module_forward_hook(lambda *_: None, with_kwargs=True, always_call=True)
    try:
        assert sum(map(len, compat.global_hooks())) == sizes + 3
    finally:
        handle.remove()


def first_backward_hook_decides() -> None:
    before = compat.global_backward_hooks_are_full()
    handle = HOOKS.register_module_full_backward_hook(lambda *_: None)
    try:
        assert compat.global_backward_hooks_are_full() is True
    finally:
        handle.remove()
        compat.set_global_backward_hooks_are_full(before)
    assert compat.global_backward_hooks_are_full() is before


# Numerics and operations


def precision_of_one_backend_is_set() -> None:
    generic, before = compat.fp32_precision("generic", "all"), compat.fp32_precision("mkldnn", "matmul")
    compat.set_fp32_precision("mkldnn", "matmul", "bf16")
    try:
        assert compat.fp32_precision("mkldnn", "matmul") == "bf16"
        assert compat.fp32_precision("generic", "all") == generic
    finally:
        compat.set_fp32_precision("mkldnn", "matmul", before)
    assert compat.fp32_precision("mkldnn", "matmul") == before


def attention_below_autograd_is_known() -> None:
    mode, seen = dispatch_mode()
    query = torch.ones(1, 1, 4, 8, requires_grad=True)
    with mode, nn.attention.sdpa_kernel(nn.attention.SDPBackend.FLASH_ATTENTION):
        nn.functional.scaled_dot_product_attention(query, query, query)
    assert {each.name() for each in compat.attention_and_scaled_matmuls()} & set(seen)


def every_operation_is_found() -> None:
    listed = [name for name in compat.PRIVATE if name.startswith("torch.ops.aten._")]
    assert len(compat.attention_and_scaled_matmuls()) == len(listed) == 7


def arguments_have_names() -> None:
    assert compat.argument_names(torch.ops.aten.mm.default) == ["self", "mat2"]


def skipped_step_is_told() -> None:
    weight = nn.Parameter(torch.ones(1))
    sgd, scaler = torch.optim.SGD([weight]), torch.amp.GradScaler("cpu")
    for value, skipped in ((1.0, False), (torch.inf, True)):
        sgd.zero_grad()
        scaler.scale((weight * value).sum()).backward()
        scaler.step(sgd)
        assert bool(compat.found_inf(scaler, sgd)) is skipped
        scaler.update()


class Seen(compat.SkipsOverflow, torch.optim.SGD):
    """Takes no step, and keeps what the scaler gives it."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.given = self.loss_scaling()


def scaler_leaves_skipping_to_the_optimizer() -> None:
    for unscales in (False, True):
        weight = nn.Parameter(torch.ones(1))
        seen, scaler = Seen([weight]), torch.amp.GradScaler("cpu", init_scale=8.0)
        assert seen.loss_scaling() == (None, None)
        for value, skipped in ((1.0, False), (torch.inf, True)):
            seen.zero_grad()
            scaler.scale((weight * value).sum()).backward()
            if unscales:
                scaler.unscale_(seen)
            with patch.object(Tensor, "item", side_effect=AssertionError("waits for the device")):
                scaler.step(seen)
            scale, found = seen.given
            assert (scale is None) == unscales
            assert scale is None or (scale == 8.0 and weight.grad == 8.0 * value)
            assert bool(found) is skipped
            scaler.update(8.0)


# Data and distributed training


def loader() -> DataLoader[Any]:
    made: DataLoader[Any] = DataLoader([1, 2], num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
    next(iter(made))
    return made


def loader_processes_end_at_once() -> None:
    import multiprocessing

    before = set(multiprocessing.active_children())
    made = loader()
    (process,) = set(multiprocessing.active_children()) - before
    compat.end_loader_processes(made)
    assert not process.is_alive()


@contextmanager
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def buffers_are_synchronised_through_the_hook() -> None:
    calls: list[str] = []

    class Replica(compat.BufferSyncHook, DistributedDataParallel):
        def around_buffer_sync(self, sync: Callable[[], None]) -> None:
            calls.append("before")
            sync()

    with process_group():
        model = Replica(nn.BatchNorm1d(2))
        model(torch.ones(3, 2))
        assert calls == ["before"]
        with patch.object(model, compat.BUFFER_SYNC, lambda: calls.append("instead")):
            model(torch.ones(3, 2))
    assert calls == ["before", "instead"]


def ddp_is_active_inside() -> None:
    with process_group():
        model = DistributedDataParallel(nn.Linear(1, 1))
        active = []
        model.module.register_forward_hook(lambda *_: active.append(DistributedDataParallel._active_ddp_module))
        model(torch.ones(1))
        with compat.inside_ddp_forward(model):
            model.module(torch.ones(1))
    assert active == [model, model]


def store_is_the_groups() -> None:
    with process_group():
        compat.default_store().set("key", "value")
        assert compat.default_store().get("key") == b"value"


def store_listens_at_its_address() -> None:
    rendezvous: Any = import_module("torch.distributed.rendezvous")

    def listening() -> set[tuple[str, int]]:
        sockets = psutil.Process().net_connections("tcp")
        return {tuple(each.laddr) for each in sockets if each.status == psutil.CONN_LISTEN}

    before = listening()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with patch.object(rendezvous, "_create_c10d_store", rendezvous._create_c10d_store):
        compat.listen_on_master_address()
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
        try:
            assert ("127.0.0.1", port) in listening() - before
            assert not [place for place in listening() - before if place[0] in ("::", "0.0.0.0")]
            compat.default_store().clone().set("key", "value")
            assert compat.default_store().get("key") == b"value"
        finally:
            dist.destroy_process_group()
    timeout = timedelta(seconds=5)
    with patch.object(rendezvous, "_create_c10d_store", lambda *given: given):
        compat.listen_on_master_address()
        create = rendezvous._create_c10d_store
        assert create("192.0.2.77", 1, 0, 2, timeout) == ("192.0.2.77", 1, 0, 2, timeout, True), "not this machine's"
        assert create("127.0.0.1", port, 1, 2, timeout) == ("127.0.0.1", port, 1, 2, timeout, True)


def aborted_group_is_gone() -> None:
    with process_group():
        compat.abort_process_group()
        assert not dist.is_initialized()


def group_has_a_timeout() -> None:
    with process_group():
        compat.set_group_timeout(timedelta(seconds=77), dist.group.WORLD)
        torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=78), dist.group.WORLD)


def sharding_caches_are_emptied() -> None:
    from torch.distributed.tensor import DTensor

    compat.forget_sharding_caches()
    cache = DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache  # type: ignore[attr-defined]
    assert cache.cache_info().currsize == 0


def micro_batches_are_taken() -> None:
    """On two ranks, see the tests of the pipeline."""
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

    for kind in (ScheduleGPipe, Schedule1F1B):
        inspect.signature(kind._step_microbatches).bind(object(), [()], [{}], [None], None, False)
        taken = inspect.signature(kind.step).parameters
        assert "return_outputs" in taken


def dispatch_files_are_there() -> None:
    folder = Path(torch.__file__).parent
    assert len(compat.dispatch_files()) == 4
    assert all((folder / file).exists() for file in compat.dispatch_files())


def engine_accumulates_gradients() -> None:
    weight = nn.Parameter(torch.tensor(3.0))
    graph: list[Tensor] = []
    for _ in range(2):
        loss = weight * weight
        graph.append(loss)
        with patch.object(Tensor, "backward", None):
            compat.run_backward(loss, torch.tensor(0.5))
    assert weight.grad == 6
    with pytest.raises(RuntimeError):  # the graph is released
        compat.run_backward(graph[0], torch.tensor(0.5))


MODULE = "torch.nn.Module"
DDP = "torch.nn.parallel.DistributedDataParallel"
C10D = "torch.distributed.distributed_c10d"
BUDGET = "torch._functorch.config.activation_memory_budget"
GRAPH_PASS = "torch._inductor.config.joint_custom_post_pass"
BEHAVIOUR: dict[str, Callable[[], None]] = {
    **FOREACH,
    "torch._C._get_fp32_precision_getter": precision_of_one_backend_is_set,
    "torch._disable_dynamo": tracer_is_imported_when_it_is_used,
    "torch._dynamo.config.patch": failures_are_raised_inside,
    "torch._dynamo.config.recompile_limit": limit_holds_and_is_reset,
    "torch._dynamo.config.suppress_errors": failures_fall_back,
    BUDGET: setting_can_be_set(BUDGET, compat.set_activation_memory_budget, 1.0, 0.5),
    GRAPH_PASS: setting_can_be_set(GRAPH_PASS, compat.set_joint_graph_pass, None, print),
    "torch._inductor.custom_graph_pass.CustomGraphPass": pass_has_an_identity,
    "torch._ops": dispatch_files_are_there,
    "torch._subclasses.fake_tensor.FakeTensorMode": fakes_have_shapes_but_no_memory,
    "torch.amp.GradScaler._found_inf_per_device": skipped_step_is_told,
    "torch.autograd.Variable._execution_engine.run_backward": engine_accumulates_gradients,
    "torch.compile._orig_mod": compiled_names_have_the_prefix,
    f"{C10D}._abort_process_group": aborted_group_is_gone,
    f"{C10D}._get_default_store": store_is_the_groups,
    f"{C10D}._set_pg_timeout": group_has_a_timeout,
    "torch.distributed.pipelining.ScheduleGPipe._step_microbatches": micro_batches_are_taken,
    "torch.distributed.rendezvous._create_c10d_store": store_listens_at_its_address,
    "torch.distributed.tensor.DTensor._op_dispatcher": sharding_caches_are_emptied,
    f"{MODULE}._apply": conversions_go_through_the_replacement,
    f"{MODULE}._buffers": buffers_can_be_replaced,
    f"{MODULE}._call_impl": plain_call_is_wrapped,
    f"{MODULE}._compiled_call_impl": compiled_call_is_wrapped_and_undone,
    f"{MODULE}._forward_hooks": hooks_are_seen("register_forward_hook"),
    f"{MODULE}._forward_pre_hooks": hooks_are_seen("register_forward_pre_hook"),
    f"{MODULE}._parameters": parameters_can_be_replaced,
    "torch.nn.modules.batchnorm._BatchNorm": norms_derive_from("BatchNormBase", *BATCH_NORMS),
    "torch.nn.modules.batchnorm._NormBase": norms_derive_from("NormBase", *BATCH_NORMS, nn.InstanceNorm2d),
    "torch.nn.modules.module._global_forward_hooks_always_called": hook_options_are_global,
    "torch.nn.modules.module._global_is_full_backward_hook": first_backward_hook_decides,
    **{f"torch.nn.modules.module.{name}": hook_is_global(*how) for name, how in REGISTERED.items()},
    "torch.optim.Adam._step_supports_amp_scaling": scaler_leaves_skipping_to_the_optimizer,
    **{f"torch.optim.optimizer.{name}": hook_is_global(*how) for name, how in OPTIMIZER_HOOKS.items()},
    f"{DDP}._inside_ddp_forward": ddp_is_active_inside,
    f"{DDP}._sync_buffers": buffers_are_synchronised_through_the_hook,
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": attention_below_autograd_is_known,
    "torch.ops.aten._scaled_mm": every_operation_is_found,
    "torch.ops.aten.mm.default._schema": arguments_have_names,
    "torch.utils._mode_utils.no_dispatch": no_dispatch_leaves_the_mode,
    "torch.utils._python_dispatch.TorchDispatchMode": dispatch_mode_sees_operations,
    "torch.utils._pytree.register_dataclass": dataclass_is_a_tree,
    "torch.utils._pytree.tree_leaves": leaves_come_in_order,
    "torch.utils._pytree.tree_map": tree_keeps_its_structure,
    "torch.utils._pytree.tree_map_only": only_tensors_are_mapped,
    "torch.utils.data.DataLoader._iterator._shutdown_workers": loader_processes_end_at_once,
}


def _iterator() -> Any:
    """The iterator of a loader; its processes have ended."""
    made = loader()
    iterator = made._iterator
    compat.end_loader_processes(made)
    return iterator


SAMPLES: dict[str, Callable[[], Any]] = {
    MODULE: nn.Identity,
    "torch.compile": lambda: torch.compile(nn.Identity()),
    "torch.distributed.rendezvous": lambda: import_module("torch.distributed.rendezvous"),
    "torch.optim.Adam": lambda: torch.optim.Adam([nn.Parameter(torch.ones(1))], fused=True),
    "torch.utils.data.DataLoader": lambda: DataLoader([1]),  # type: ignore[arg-type]
    "torch.utils.data.DataLoader._iterator": _iterator,
}
CONTRACT = Contract(compat.PRIVATE, SAMPLES, BEHAVIOUR)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()


class TestTorch(ContractTests):
    contract = CONTRACT
    renamed = ("torch._foreach_norm", "torch.nn.modules.batchnorm._NormBase", f"{DDP}._sync_buffers")


def test_what_is_handed_on_is_what_is_declared() -> None:
    assert set(compat._HANDED_ON.values()) <= set(compat.PRIVATE)
    for name, path in compat._HANDED_ON.items():
        assert getattr(compat, name) is CONTRACT.find(path), name
    with pytest.raises(AttributeError):
        compat.nothing  # noqa: B018
