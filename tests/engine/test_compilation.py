"""torch.compile: the same training, told when it is not to be had, and nothing left for the next trainer."""

import logging
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
from paceline.engine.memory_budget import KeepRandom
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from paceline.errors import ConfigError, UnusableCode
from paceline.tasks.base import TaskOutput
from support.toys import CLASSES, FEATURES, fit, net, toy_config


class Block(nn.Module):
    """Has statistics and draws random numbers."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.drop = nn.BatchNorm1d(width), nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.second(self.drop(torch.relu(self.norm(self.first(inputs)))))


def blocks(dropout: float = 0.2, number: int = 2) -> nn.Module:
    middle = nn.Sequential(*(Block(8, dropout) for _ in range(number)))
    return nn.Sequential(nn.Linear(FEATURES, 8), middle, nn.Linear(8, CLASSES))


def samples(number: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(number)
    return TensorDataset(torch.randn(number, FEATURES, generator=generator), torch.arange(number) % CLASSES)


def data(train: int = 32, validation: int = 16) -> tuple[TensorDataset, TensorDataset]:
    return samples(train), samples(validation)


def config(**changes: Any) -> Any:
    return toy_config(**{"task": {"name": "classification"}, "model__path": blocks, "data__path": data, **changes})


def told(reporter: MemoryReporter) -> list[str]:
    return [details["message"] for kind, details in reporter.events if kind == "warning"]


@pytest.fixture(autouse=True)
def _backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor takes seconds for each graph; what is tested here is around it."""
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    yield
    apply_compiler_settings(config().trainer)


def equal_training(changes: dict[str, Any]) -> None:
    plain, compiled = fit(config()), fit(config(trainer__compile="default", **changes))
    assert told(compiled[2]) == []
    for key in ("train/loss", "val/loss", "val/accuracy"):
        assert compiled[2].values(key) == pytest.approx(plain[2].values(key), abs=1e-12), key
    wanted = plain[0].state.task.state_dict()
    state = compiled[0].state.task.state_dict()
    assert state.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(state[name], tensor, atol=1e-12, rtol=0, msg=name)


@pytest.mark.parametrize(
    ("scope", "mode"),
    [("model", "none"), ("model", "full"), ("model", "selective"), ("blocks", "none"), ("blocks", "full")],
)
def test_compiled_training_equals_plain_training(scope: str, mode: str) -> None:
    """Buffers too: BatchNorm counts each batch once, with checkpoints and without."""
    torch._dynamo.utils.counters.clear()
    equal_training({"trainer__compile_scope": scope, "trainer__activation_checkpointing": mode})
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # the blocks share theirs
    assert not torch._dynamo.utils.counters["graph_break"]


def test_a_short_last_batch_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch._dynamo.utils.counters.clear()
    equal = {"data__path": lambda: data(39, 21)}
    plain, compiled = fit(config(**equal)), fit(config(trainer__compile="default", **equal))
    assert compiled[2].values("train/loss") == pytest.approx(plain[2].values("train/loss"), abs=1e-12)
    assert told(compiled[2]) == []
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 4


def test_the_trial_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    plain, compiled = (
        build_trainer(config(trainer__compile=mode), Ranks.current(), MemoryReporter()) for mode in ("none", "default")
    )
    generator = torch.get_rng_state()
    wanted = plain.state.task.state_dict()
    for name, tensor in compiled.state.task.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name
    assert all(parameter.grad is None for parameter in compiled.parameters)
    assert compiled.state.task.training
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize(("workers", "trials"), [(1, 1), (2, 0)])
def test_no_trial_where_a_forward_pass_waits_for_the_others(
    workers: int, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    monkeypatch.setattr(compile_trial, "_failure", lambda trainer, runs: tried.append(runs))
    monkeypatch.setattr(Ranks, "union", lambda ranks, texts: texts)
    synchronised = config(model__path=lambda: nn.Sequential(net(), nn.SyncBatchNorm(CLASSES)))
    trainer = build_trainer(synchronised, Ranks.current(), MemoryReporter())
    trainer.ranks = Ranks(0, workers, torch.device("cpu"))
    compile_trial.try_compilation(trainer, synchronised.trainer)
    assert len(tried) == trials


# What fails


def broken(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("there is no C++ compiler\nand much more to be said")


@pytest.mark.parametrize("scope", ["model", "blocks"])
def test_a_compiler_that_fails_costs_a_warning(scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "BACKEND", broken)
    plain, (_, _, reporter) = fit(config()), fit(config(trainer__compile="default", trainer__compile_scope=scope))
    assert told(reporter) == [
        "trainer.compile: falls back to none, since default failed on rank 0: RuntimeError: there is no C++ compiler"
    ]
    assert reporter.values("train/loss") == plain[2].values("train/loss")


def test_a_compiler_that_fails_later_costs_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def at_last(graph: Any, inputs: Any) -> Any:
        seen.append(True)
        return graph.forward if len(seen) <= 2 else broken(graph, inputs)

    monkeypatch.setattr(compilation, "BACKEND", at_last)
    changes = {"data__path": lambda: data(39, 16)}
    plain, (_, _, reporter) = fit(config(**changes)), fit(config(trainer__compile="default", **changes))
    (message,) = told(reporter)
    assert message == (
        "trainer.compile: some of the model runs without compilation: RuntimeError: there is no C++ compiler"
    )
    assert reporter.values("train/loss") == pytest.approx(plain[2].values("train/loss"), abs=1e-12)


def test_too_many_versions_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    monkeypatch.setattr(compilation, "VARIANTS", 2)
    _, _, reporter = fit(config(trainer__compile="default", data__path=lambda: data(39, 16)))
    (message,) = told(reporter)
    assert message.startswith("trainer.compile: some of the model runs without compilation: ")
    assert "recompile_limit (2)" in message


class Wrong(nn.Module):
    def forward(self, inputs: Tensor) -> list[Tensor]:
        return [inputs]


def wrong() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, CLASSES), Wrong())


def test_an_error_of_the_users_own_is_told_as_such() -> None:
    reporter = MemoryReporter()
    with pytest.raises(UnusableCode, match="the model returned a list"):
        build_trainer(
            config(trainer__compile="default").with_overrides({"model.path": wrong}), Ranks.current(), reporter
        )
    assert told(reporter) == []


def test_a_model_without_blocks_is_refused() -> None:
    changes = {"model__path": lambda: nn.Linear(FEATURES, CLASSES), "trainer__compile_scope": "blocks"}
    with pytest.raises(ConfigError, match=r"Linear has no blocks to compile .*\(write compile_scope: model\)"):
        fit(config(trainer__compile="default", **changes))


# Nothing is left for the next trainer


def handlers() -> list[logging.Handler]:
    return [each for each in logging.getLogger("torch._dynamo").handlers if isinstance(each, compilation._Told)]


def test_settings_are_those_of_one_trainer() -> None:
    budget = {"trainer__activation_checkpointing": "budget", "trainer__activation_memory_budget": 0.25}
    on = config(trainer__compile="default", **budget)
    apply_compiler_settings(on.trainer)
    compilation.tell_warnings(lambda message: None)
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
    """What the compiled forward pass keeps for backward, and the gradients."""
    settings = {"trainer__activation_checkpointing": "budget", "trainer__activation_memory_budget": budget}
    chosen = config(trainer__compile="default", model__path=deep, data__path=lambda: data(32, 0), **settings)
    trainer = build_trainer(chosen, Ranks.current(), MemoryReporter())
    own = {parameter.untyped_storage()._cdata for parameter in trainer.parameters}
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
    return sum(sizes.values()), [parameter.grad for parameter in trainer.parameters if parameter.grad is not None]


def test_a_smaller_budget_keeps_less() -> None:
    """One after the other in one process: what was compiled for one budget is not used for the next."""
    (most, gradients), (least, same_gradients) = (saved_bytes(budget) for budget in (1.0, 0.0))
    assert most > least
    for gradient, same in zip(gradients, same_gradients, strict=True):
        torch.testing.assert_close(same, gradient, atol=1e-12, rtol=0)


def test_what_is_random_is_kept_within_any_budget() -> None:
    graph = make_fx(lambda inputs: torch.dropout(inputs, 0.5, True) * 2)(torch.ones(3)).graph
    KeepRandom()(graph)
    marked = [str(node.target) for node in graph.nodes if node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE]
    assert len(marked) == 1
    assert "bernoulli" in marked[0] or "dropout" in marked[0]


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


# The real compiler


@pytest.mark.parametrize("scope", ["model", "blocks"])
def test_inductor(scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor draws other random numbers than torch, so without dropout; the rest is equal up to rounding."""
    monkeypatch.setattr(compilation, "BACKEND", "inductor")
    changes = {"model__path": net, "trainer__epochs": 1}
    compiled_changes = {**changes, "trainer__compile": "default", "trainer__compile_scope": scope}
    with torch._inductor.config.patch(compile_threads=1):  # otherwise it starts processes
        plain, compiled = (fit(config(**each))[2] for each in (changes, compiled_changes))
    assert told(compiled) == []
    assert compiled.values("train/loss") == pytest.approx(plain.values("train/loss"), abs=1e-12)
    assert compiled.values("val/loss") == pytest.approx(plain.values("val/loss"), abs=1e-12)
