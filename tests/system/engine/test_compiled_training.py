"""torch.compile: the same training, a warning where it fails, and nothing left for the next trainer."""

import logging
import warnings as python_warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.data import TensorDataset

from paceline.engine import compilation, compile_trial
from paceline.engine.build import build_trainer
from paceline.engine.compilation import apply_compiler_settings, owning
from paceline.engine.dist_context import DistContext
from paceline.engine.memory_budget import KeepRandom
from paceline.engine.reporter import MemoryReporter
from paceline.errors import ConfigError, UnusableCode
from paceline.tasks.base import TaskOutput
from support.refusals import refused
from support.toys import CLASSES, FEATURES, fit, net, toy_config


class Block(nn.Module):
    """Has statistics and draws random numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.drop = nn.BatchNorm1d(width), nn.Dropout(0.2)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.second(self.drop(torch.relu(self.norm(self.first(inputs)))))


def blocks() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Sequential(Block(8), Block(8)), nn.Linear(8, CLASSES))


def samples(number: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(number)
    return TensorDataset(torch.randn(number, FEATURES, generator=generator), torch.arange(number) % CLASSES)


def data(train: int = 32, validation: int = 16) -> tuple[TensorDataset, TensorDataset]:
    return samples(train), samples(validation)


def uneven() -> tuple[TensorDataset, TensorDataset]:
    """The last batch of each set is short."""
    return data(39, 21)


def config(**changes: Any) -> Any:
    return toy_config(**{"task": {"name": "classification"}, "model__path": blocks, "data__path": data, **changes})


def warnings(reporter: MemoryReporter) -> list[str]:
    return [details["code"] for kind, details in reporter.events if kind == "warning"]


@pytest.fixture(autouse=True)
def _backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor takes seconds for each graph; what is tested here is around it."""
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    yield
    apply_compiler_settings(config().trainer)


@pytest.mark.parametrize(
    ("scope", "mode"),
    [
        ("model", "none"),
        pytest.param("model", "full", marks=pytest.mark.slow),
        ("model", "selective"),
        ("blocks", "full"),
    ],
)
def test_compiled_training_equals_plain_training(scope: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers too: BatchNorm counts each batch once, with checkpoints and without."""
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    torch._dynamo.utils.counters.clear()
    technique = {"trainer__compile_scope": scope, "trainer__activation_checkpointing": mode}
    plain, compiled = fit(config()), fit(config(trainer__compile="default", **technique))
    assert warnings(compiled[2]) == []
    for key in ("train/loss", "val/loss", "val/accuracy"):
        assert compiled[2].values(key) == pytest.approx(plain[2].values(key), abs=1e-12), key
    wanted, state = plain[0].state.task.state_dict(), compiled[0].state.task.state_dict()
    assert state.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(state[name], tensor, atol=1e-12, rtol=0, msg=name)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # the blocks share theirs
    assert not torch._dynamo.utils.counters["graph_break"]


def test_a_short_last_batch_is_compiled_too() -> None:
    torch._dynamo.utils.counters.clear()
    plain, compiled = fit(config(data__path=uneven)), fit(config(trainer__compile="default", data__path=uneven))
    assert compiled[2].values("train/loss") == pytest.approx(plain[2].values("train/loss"), abs=1e-12)
    assert warnings(compiled[2]) == []
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 4


def test_the_trial_leaves_nothing_behind() -> None:
    plain, compiled = (
        build_trainer(config(trainer__compile=mode), DistContext.current(), MemoryReporter())
        for mode in ("none", "default")
    )
    generator = torch.get_rng_state()
    wanted = plain.state.task.state_dict()
    for name, tensor in compiled.state.task.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name
    assert all(parameter.grad is None for parameter in compiled.step.parameters)
    assert compiled.state.task.training
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize(("workers", "trials"), [(1, 1), (2, 0)])
def test_no_trial_where_a_forward_pass_waits_for_the_others(
    workers: int, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    monkeypatch.setattr(compile_trial, "_failure", lambda trainer, loaders, runs: tried.append(runs))
    monkeypatch.setattr(DistContext, "union", lambda ranks, texts: texts)
    synchronised = config(model__path=lambda: nn.Sequential(net(), nn.SyncBatchNorm(CLASSES)))
    trainer = build_trainer(synchronised, DistContext.current(), MemoryReporter())
    trainer.dist = DistContext(0, workers, torch.device("cpu"))
    compile_trial.try_compilation(trainer, [], synchronised.trainer)
    assert len(tried) == trials


# Failures


class Failing:
    """A backend that fails after some graphs."""

    def __init__(self, good: int) -> None:
        self.good = good

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.good -= 1
        if self.good < 0:
            raise RuntimeError("there is no C++ compiler\nand much more to be said")
        return graph.forward


@pytest.mark.parametrize(
    ("good", "scope", "code"),
    [(0, "model", "not-compiled"), (0, "blocks", "not-compiled"), (2, "model", "partly-compiled")],
)
def test_a_compiler_that_fails_costs_a_warning(
    good: int, scope: str, code: str, monkeypatch: pytest.MonkeyPatch, golden: Any
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", Failing(good))
    plain = fit(config(data__path=uneven))[2]
    reporter = fit(config(trainer__compile="default", trainer__compile_scope=scope, data__path=uneven))[2]
    ((_, details),) = [event for event in reporter.events if event[0] == "warning"]
    assert details["code"] == code
    if scope == "model":
        golden(details["message"])
    assert reporter.values("train/loss") == pytest.approx(plain.values("train/loss"), abs=1e-12)


@torch.library.custom_op("paceline_tests::untraceable", mutates_args=())
def untraceable(inputs: Tensor) -> Tensor:
    """The identity, whose gradient needs the numbers, which a compiler does not have."""
    return inputs.clone()


@untraceable.register_fake
def _(inputs: Tensor) -> Tensor:
    return torch.empty_like(inputs)


def gradient(context: Any, given: Tensor) -> Tensor:
    return given * float(given.detach().numpy().sum() != 2.5)


untraceable.register_autograd(gradient)


class Untraceable(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return untraceable(inputs)


def test_a_gradient_that_cannot_be_traced_costs_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch traces under its anomaly mode, which prints where the forward pass was."""
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    changed = config(trainer__compile="default", model__path=lambda: nn.Sequential(net(), Untraceable()))
    with python_warnings.catch_warnings(record=True) as caught:
        python_warnings.simplefilter("always")
        reporter = fit(changed)[2]
    assert [details["code"] for event, details in reporter.events if event == "warning"] == ["not-compiled"]
    assert [str(each.message) for each in caught if "forward call that caused" in str(each.message)] == []


class Wrong(nn.Module):
    def forward(self, inputs: Tensor) -> list[Tensor]:
        return [inputs]


def test_an_error_of_the_users_own_stays_one() -> None:
    reporter = MemoryReporter()
    wrong = config(trainer__compile="default", model__path=lambda: nn.Sequential(nn.Linear(FEATURES, 3), Wrong()))
    assert refused(UnusableCode, build_trainer, wrong, DistContext.current(), reporter).code == "wrong-output"
    assert warnings(reporter) == []


def test_a_model_without_blocks_is_refused(golden: Any) -> None:
    changes = {"model__path": lambda: nn.Linear(FEATURES, CLASSES), "trainer__compile_scope": "blocks"}
    refusal = refused(ConfigError, fit, config(trainer__compile="default", **changes))
    assert [(each.code, each.key) for each in refusal.problems] == [("no-blocks", "trainer.compile_scope")]
    golden(str(refusal))


# Nothing is left for the next trainer


def handlers() -> list[logging.Handler]:
    return [
        each for each in logging.getLogger("torch._dynamo").handlers if isinstance(each, compilation._WarningHandler)
    ]


def test_settings_are_those_of_one_trainer() -> None:
    budget = {"trainer__activation_checkpointing": "budget", "trainer__activation_memory_budget": 0.25}
    on = config(trainer__compile="default", **budget)
    apply_compiler_settings(on.trainer)
    compilation.report_compiler_warnings(lambda message: None)
    assert torch._functorch.config.activation_memory_budget == 0.25
    assert isinstance(torch._inductor.config.joint_custom_post_pass, KeepRandom)
    assert torch._dynamo.config.suppress_errors
    assert len(handlers()) == 1
    for off in (config(), config(trainer__compile="default")):
        apply_compiler_settings(on.trainer)
        apply_compiler_settings(off.trainer)
        assert torch._functorch.config.activation_memory_budget == 1
        assert torch._inductor.config.joint_custom_post_pass is None
        assert torch._dynamo.config.suppress_errors == (off.trainer.compile != "none")
        assert handlers() == []


# The memory budget


def deep() -> nn.Module:
    layers = (layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.GELU()))
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Sequential(*layers), nn.Linear(16, CLASSES))


def saved_bytes(budget: float) -> tuple[int, list[Tensor]]:
    """Bytes that the compiled forward pass keeps for backward, and the gradients."""
    settings = {"trainer__activation_checkpointing": "budget", "trainer__activation_memory_budget": budget}
    chosen = config(trainer__compile="default", model__path=deep, data__path=lambda: data(32, 0), **settings)
    trainer = build_trainer(chosen, DistContext.current(), MemoryReporter())
    own = {parameter.untyped_storage()._cdata for parameter in trainer.step.parameters}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    features, targets = samples(16).tensors
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = trainer.state.task((features.double(), targets)).loss_sum
    loss.backward()
    return sum(sizes.values()), [parameter.grad for parameter in trainer.step.parameters if parameter.grad is not None]


def test_a_smaller_budget_keeps_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in one process: what was compiled for one budget is not used for the next."""
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    (most, gradients), (least, same_gradients) = (saved_bytes(budget) for budget in (1.0, 0.0))
    assert most > least
    for gradient, same in zip(gradients, same_gradients, strict=True):
        torch.testing.assert_close(same, gradient, atol=1e-12, rtol=0)


def test_random_numbers_are_kept_within_any_budget() -> None:
    graph = make_fx(lambda inputs: torch.dropout(inputs, 0.5, True) * 2)(torch.ones(3)).graph
    KeepRandom()(graph)
    (marked,) = [str(node.target) for node in graph.nodes if node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE]
    assert "bernoulli" in marked or "dropout" in marked


# CUDA graphs


class Reused(nn.Module):
    """Like a CUDA graph: its results, and the gradient of its weight, are in memory that the next run overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.result, self.gradient = torch.zeros(()), torch.zeros(())

    def forward(self, value: float) -> TaskOutput:
        if self.weight.grad is not None and self.weight.grad.data_ptr() != self.gradient.data_ptr():
            self.kept = self.weight.grad
        self.result.fill_(value)
        self.gradient.fill_(value)
        return TaskOutput(self.result, self.result, {"accuracy": self.result})


def test_nothing_is_lost_when_a_cuda_graph_runs_again() -> None:
    task = Reused()
    run = owning(task, task)
    first = run(1.0)
    task.weight.grad = task.gradient
    run(2.0)
    assert (first.loss_sum, first.weight, first.metrics["accuracy"]) == (1, 1, 1)
    assert task.weight.grad == 1
