"""A task that steps its optimizers itself, in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.errors import ConfigError, UnusableCode
from paceline.optimizers._several import SeveralOptimizers
from support.engine.several import PairTask, bare_loop, pair_config
from support.refusals import refused
from support.toys import fit


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return dict(trainer.state.task.model.state_dict())


def test_losses_and_weights_are_those_of_a_bare_loop() -> None:
    config = pair_config()
    trainer, _, reporter = fit(config)
    losses, expected = bare_loop(config)
    assert reporter.values("train/loss") == pytest.approx(losses, rel=1e-12)
    for name, tensor in weights(trainer).items():
        assert torch.allclose(tensor, expected[name], rtol=1e-12, atol=1e-14), name


def test_metrics_of_the_task_are_logged() -> None:
    reporter = fit(pair_config())[2]
    assert len(reporter.values("train/maker_loss")) == 9
    assert reporter.values("lr")[0] == pytest.approx(0.05)  # that of the first group


def test_each_optimizer_is_clipped_by_itself() -> None:
    trainer, _, reporter = fit(pair_config(trainer__max_grad_norm=1e-3, optimizer={"name": "sgd", "lr": 1.0}))
    assert len(reporter.values("grad_norm")) == 9
    found = [each.grad for each in trainer.state.task.model.maker.parameters()]
    assert float(torch.nn.utils.get_total_norm(found)) <= 1.001e-3
    assert isinstance(trainer.state.optimizer, SeveralOptimizers)


def test_low_precision_sees_the_updated_weights() -> None:
    """autocast keeps casts of the weights for as long as it is open."""
    seen: list[float] = []

    class Looking(PairTask):
        def training_metrics(self) -> Any:
            return {}

        def training_step(self, batch: Any, optimizers: Any) -> Any:
            features = batch[0].float()
            before = self.model.rare(features)
            optimizers["judge"].zero_grad()
            before.float().sum().backward()
            optimizers["judge"].step()
            after = self.model.rare(features)
            seen.append(float((after - before).detach().abs().sum()))
            from paceline.tasks.base import TaskOutput

            return TaskOutput(before.sum(), len(features))

        def forward(self, batch: Any) -> Any:
            return super().forward([batch[0].float(), *batch[1:]])

    fit(pair_config(task__path=Looking, trainer__precision="bf16-mixed", trainer__max_steps=1, trainer__epochs=None))
    assert seen[0] > 0


def test_schedule_free_members_switch_modes() -> None:
    class Averaging(PairTask):
        def configure_optimizers(self, build: Any) -> Any:
            return {"judge": build(self.model.judge.parameters()), "maker": build(self.model.maker.parameters())}

    optimizer = {"name": "schedule_free_adamw", "lr": 0.01}
    _, outcome, _ = fit(pair_config(task__path=Averaging, optimizer=optimizer))
    assert outcome.step == 9
    assert "val/loss" in outcome.metrics


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ({"trainer__gradient_accumulation_steps": 2}, ["trainer.gradient_accumulation_steps"]),
        ({"trainer__compile": "default"}, ["trainer.compile"]),
        ({"data__micro_batch_size": "max"}, ["data.micro_batch_size"]),
        ({"parallel__comm_hook": "bf16"}, ["parallel.comm_hook"]),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: dict[str, Any], keys: list[str]) -> None:
    refusal = refused(ConfigError, fit, pair_config(**overrides))
    assert [(problem.code, problem.key) for problem in refusal.problems] == [
        ("manual-optimization", key) for key in keys
    ]


def configuring(make: Any) -> Any:
    return {"configure_optimizers": make}


def shared(task: Any, build: Any) -> Any:
    return [build(task.model.judge.parameters()), build(task.model.parameters())]


def logging(returned: Any) -> Any:
    return {"training_metrics": lambda task: returned}


@pytest.mark.parametrize(
    ("methods", "code", "fields"),
    [
        (configuring(shared), "shared-parameters", {}),
        (configuring(lambda task, build: [build(torch.nn.Linear(2, 2).parameters())]), "foreign-parameters", {}),
        (configuring(lambda task, build: [object()]), "not-an-optimizer", {}),
        (configuring(lambda task, build: []), "not-an-optimizer", {}),
        (configuring(lambda task, build: build([])), "nothing-to-train", {}),
        *(
            (logging(returned), "metric-not-a-number", {})
            for returned in (None, [1], {"a": "x"}, {"a": torch.ones(2)}, {"a": None})
        ),
        (
            {"training_step": lambda task, batch, optimizers: optimizers["maker"].step(lambda: None)},
            "closure",
            {"optimizer": "maker"},
        ),
    ],
)
def test_unusable_methods_of_a_task_are_refused(methods: dict[str, Any], code: str, fields: dict[str, str]) -> None:
    refusal = refused(UnusableCode, fit, pair_config(task__path=type("Wrong", (PairTask,), methods)))
    assert refusal.code == code
    assert refusal.fields.items() >= fields.items()


def test_untrained_parameters_are_reported() -> None:
    class Partly(PairTask):
        def configure_optimizers(self, build: Any) -> Any:
            return {"judge": build(self.model.judge.parameters()), "maker": build(self.model.maker.parameters())}

    reporter = fit(pair_config(task__path=Partly))[2]
    assert [details for _, details in reporter.events if details.get("code") == "untrained-parameters"]


def test_a_task_may_build_one_optimizer_of_its_own() -> None:
    from support.toys import PointsTask, net, points

    class Own(PointsTask):
        def configure_optimizers(self, build: Any) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.02)

    config = pair_config(task__path=Own, model__path=net, data__path=points)
    trainer, _, reporter = fit(config)
    assert type(trainer.state.optimizer) is torch.optim.Adam
    assert reporter.values("lr")[0] == pytest.approx(0.02)


def test_another_optimizer_cannot_resume(tmp_path: Path) -> None:
    class Other(PairTask):
        def configure_optimizers(self, build: Any) -> Any:
            made = super().configure_optimizers(build)
            return {**made, "maker": torch.optim.RMSprop(self.model.maker.parameters(), lr=0.01)}

    fit(pair_config(trainer__epochs=1), checkpoints=tmp_path)
    refusal = refused(ConfigError, fit, pair_config(trainer__epochs=2, task__path=Other), checkpoints=tmp_path)
    assert refusal.problems[0].code == "resume"


def test_the_memory_of_a_step_is_not_predicted() -> None:
    from paceline.memory.tracing import Step, trace

    refusal = refused(ConfigError, trace, pair_config(), Step(2), lambda size: None)
    assert refusal.problems[0].code == "manual-optimization"


def test_the_time_of_a_step_is_not_split() -> None:
    from paceline.profiling.splitting import split_steps
    from support.toys import built

    assert refused(ConfigError, split_steps, built(pair_config()), steps=1, warm_up=0).problems[0].code == "no-split"
