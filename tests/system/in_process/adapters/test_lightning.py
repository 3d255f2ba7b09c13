"""LightningTask: the steps, logs and optimizers of a LightningModule in the engine."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from paceline.adapters import LightningTask
from paceline.engine.reporter import MemoryReporter
from paceline.errors import UnusableCode
from paceline.linting.examining import lint
from support.refusals import refused
from support.toys import Points, built, fit, fit_in_two, net, points, toy_config

pytestmark = pytest.mark.usefixtures("lightning")
MODULES = "support.lightning_modules"
EPOCH_STEPS = 6
"""96 samples in batches of 16."""


@pytest.fixture(scope="module")
def lightning() -> None:
    pytest.importorskip("lightning")


def lit_config(model: Any = "Lit", **overrides: Any) -> Any:
    """Of a module by its name, or of a class."""
    path = f"{MODULES}:{model}" if isinstance(model, str) else model
    return toy_config(**{"task__path": LightningTask, "model__path": path, **overrides})


def codes(reporter: MemoryReporter) -> list[str]:
    return [details["code"] for kind, details in reporter.events if kind == "warning"]


def trained_weights(trainer: Any) -> list[torch.Tensor]:
    return [each.detach().clone() for each in trainer.state.task.model.parameters()]


def test_it_trains_as_the_same_model_in_a_plain_task() -> None:
    trainer, outcome, reporter = fit(lit_config())
    plain, expected, other = fit(toy_config())
    assert reporter.values("train/loss") == other.values("train/loss")
    assert all(map(torch.equal, trained_weights(trainer), trained_weights(plain)))
    assert outcome.metrics["val/loss"] == pytest.approx(expected.metrics["val/loss"], rel=1e-12)
    assert outcome.metrics["val/acc"] == pytest.approx(expected.metrics["val/accuracy"], rel=1e-12)
    assert outcome.metrics["val/count"] == 30
    assert reporter.values("train_nll") == pytest.approx(reporter.values("train/loss"), rel=1e-12)
    assert codes(reporter) == []


def test_steps_are_counted_as_by_lightning(tmp_path: Path) -> None:
    config = lit_config(trainer__gradient_accumulation_steps=2)
    trainer, _, _ = fit(config)
    seen = trainer.state.task.model.indices
    assert seen == [
        (epoch, epoch * EPOCH_STEPS + step, 2 * step + micro)
        for epoch in range(2)
        for step in range(EPOCH_STEPS)
        for micro in range(2)
    ]
    resumed = fit_in_two(config, tmp_path, 4)[0].state.task.model.indices
    assert resumed == seen[-len(resumed) :]


def test_steps_of_a_batch_size_schedule_are_counted_also_when_resumed(tmp_path: Path) -> None:
    stages = [{"samples": 0, "global_batch_size": 16}, {"samples": 120, "global_batch_size": 32}]
    config = lit_config(data__global_batch_size=None, data__batch_size_schedule=stages, data__micro_batch_size=8)
    seen = fit(config)[0].state.task.model.indices
    assert [index for epoch, _, index in seen if epoch == 1] == list(range(12))  # 2 x 2 micro batches, then 2 x 4
    resumed = fit_in_two(config, tmp_path, 9)[0].state.task.model.indices
    assert resumed == seen[-len(resumed) :]


def test_metric_objects_are_computed_over_the_set() -> None:
    trainer, outcome, reporter = fit(lit_config("WithMetric"))
    right = torch.cat(trainer.state.task.model.right)
    assert len(right) == 96
    assert reporter.values("train_acc")[-1] == pytest.approx(float(right.double().mean()), abs=1e-6)
    assert outcome.metrics["val/object"] == pytest.approx(outcome.metrics["val/acc"], abs=1e-6)
    assert outcome.metrics["val/late"] == pytest.approx(outcome.metrics["val/acc"], abs=1e-6)


@pytest.mark.parametrize(
    ("args", "kind", "lr", "warnings"),
    [
        ({}, torch.optim.SGD, 0.1, ["lightning-optimizer", "lightning-hooks"]),
        ({"configure_optimizers": True}, torch.optim.Adam, 0.02, ["lightning-scheduler", "lightning-hooks"]),
        ({"configure_optimizers": False}, torch.optim.SGD, 0.1, ["lightning-hooks"]),
    ],
)
def test_the_optimizer_is_chosen_by_the_config(args: Any, kind: type, lr: float, warnings: list[str]) -> None:
    trainer, _, reporter = fit(lit_config("WithOptimizer", task__args=args))
    assert type(trainer.state.optimizer) is kind
    assert reporter.values("lr")[0] == lr
    assert codes(reporter) == warnings
    *_, hooks = (details["message"] for event, details in reporter.events if event == "warning")
    assert "on_train_epoch_end, test_step" in hooks
    reported = [details["text"] for event, details in reporter.events if event == "optimizer"]
    assert reported == (["Adam, lr 0.02 (from configure_optimizers)"] if kind is torch.optim.Adam else [])


def test_manual_optimization(tmp_path: Path) -> None:
    from paceline.engine.build_task import seed_model
    from paceline.engine.order import DataOrder
    from support.lightning_modules import Manual

    trainer, _, reporter = fit(lit_config("Manual"), checkpoints=tmp_path)
    assert codes(reporter) == ["lightning-optimizer"]
    seed_model(0)
    model = Manual().double()
    data = points()[0]
    optimizers = [torch.optim.SGD(model.net.parameters(), lr=0.1), torch.optim.Adam(model.other.parameters(), lr=0.01)]
    order = DataOrder(len(data), 16, 16, seed=trainer.data.order.seed)
    losses = []
    for step in range(2 * EPOCH_STEPS):
        ids = order.step_ids(step // EPOCH_STEPS, step % EPOCH_STEPS).tolist()
        batch = torch.utils.data.default_collate([data[index] for index in ids])
        total = 0.0
        for part, optimizer in zip((model.net, model.other), optimizers, strict=True):
            loss = F.cross_entropy(part(batch[0]), batch[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total)
    assert reporter.values("train/loss") == pytest.approx(losses, rel=1e-12)
    for mine, theirs in zip(trained_weights(trainer), model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-14)
    assert len(reporter.values("a_loss")) == 12


def test_a_manual_step_that_logs_nothing_has_the_loss_of_manual_backward() -> None:
    expected = fit(lit_config("Manual"))[2].values("train/loss")
    assert fit(lit_config("Quiet"))[2].values("train/loss") == pytest.approx(expected, rel=1e-12)


def test_an_evaluation_without_metrics_is_reported_once() -> None:
    _, outcome, reporter = fit(lit_config("Silent"))
    assert codes(reporter) == ["no-metrics"]
    assert [name for name in outcome.metrics if name.startswith("val/")] == []


@pytest.mark.parametrize(
    ("model", "args", "code"),
    [
        (net, {}, "not-a-lightning-module"),
        ("NoLoss", {}, "no-loss"),
        ("WithoutStep", {}, "no-training-step"),
        ("Lit", {"configure_optimizers": True}, "no-optimizers"),
        ("Manual", {"configure_optimizers": False}, "manual-optimization"),
        ("SilentManual", {}, "no-loss"),
        ("WithLogger", {}, "no-logger"),
        ("Estimating", {"configure_optimizers": True}, "lightning-scheduler"),
        ("MaxLogged", {}, "reduce-fx"),
    ],
)
def test_what_cannot_be_trained_is_refused(model: Any, args: dict[str, Any], code: str) -> None:
    assert refused(UnusableCode, fit, lit_config(model, task__args=args)).code == code


def test_a_module_without_validation_has_the_loss_of_its_training_step() -> None:
    outcome = fit(lit_config("TrainingOnly"))[1]
    assert outcome.metrics["val/loss"] == pytest.approx(fit(toy_config())[1].metrics["val/loss"], rel=1e-12)


def test_the_module_knows_its_format_and_nothing_of_lightnings_trainer() -> None:
    assert fit(lit_config("Asking"))[1].step == 12


def test_it_works_with_the_package_of_the_other_name() -> None:
    other: Any = pytest.importorskip("pytorch_lightning")

    class Other(other.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

    assert fit(lit_config(Other, data__path=lambda: (Points(32), Points(8))))[1].step == 4


@pytest.mark.parametrize("step", ["training_step", "validation_step"])
@pytest.mark.parametrize("value", ["x", None, torch.ones(2), {"a": 1}], ids=str)
def test_what_is_logged_and_no_number_is_refused(step: str, value: Any) -> None:
    from support.lightning_modules import Lit

    class Logging(Lit):
        def log_it(self, batch: Any, batch_idx: int) -> Any:
            self.log("score", value)

    setattr(Logging, step, Logging.log_it)
    refusal = refused(UnusableCode, fit, lit_config(Logging))
    assert (refusal.code, refusal.fields["metric"]) == ("metric-not-a-number", "score")


def test_a_module_may_print(capfd: pytest.CaptureFixture[str]) -> None:
    fit(lit_config("Printing"))
    assert "hello" in capfd.readouterr().out


def test_the_sets_of_a_data_module_are_used() -> None:
    config = lit_config(data__path=f"{MODULES}:DataModule", data__args={"samples": 32})
    sets = config.data.sets()
    assert {role: len(each) for role, each in sets.roles.items()} == {"training": 32, "validation": 30}
    assert (sets.collate_fn.__name__, sets.sampler) == ("collate", None)
    assert fit(config)[1].step == 4
    sets = lit_config(data__path=f"{MODULES}:Weighted").data.sets()
    expected = {"training": 96, "validation/0": 8, "validation/1": 12, "test": 4}
    assert {role: len(each) for role, each in sets.roles.items()} == expected
    assert len(sets.sampler) == 48


@pytest.mark.parametrize(("model", "expected"), [(f"{MODULES}:WithForward", ["lightning-task"]), (net, [])])
def test_a_shipped_task_with_a_lightning_module_is_reported(model: Any, expected: list[str]) -> None:
    reporter = MemoryReporter()
    built(toy_config(model__path=model, task={"name": "classification"}), reporter=reporter).close()
    assert codes(reporter) == expected


@pytest.mark.parametrize(
    ("module", "arguments", "found"),
    [
        ("Lit", {}, {}),
        ("WithOptimizer", {}, {"lightning-optimizer": "warning", "lightning-hooks": "warning"}),
        (
            "WithOptimizer",
            {"configure_optimizers": True},
            {"lightning-scheduler": "warning", "lightning-hooks": "warning"},
        ),
        ("Estimating", {"configure_optimizers": True}, {"lightning-scheduler": "error"}),
    ],
)
def test_lint_finds_what_training_would_report(module: str, arguments: Any, found: dict[str, str]) -> None:
    """Without waiting for a training to begin."""
    own = [each for each in lint(lit_config(module, task__args=arguments)) if each.rule.startswith("lightning")]
    assert {each.rule: each.severity for each in own} == found
