"""The examples of docs/examples, with the real libraries: they train, and compute what a bare loop computes."""

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from paceline.config import load_config
from paceline.engine.batches import map_tensors
from support.toys import fit

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
STEPS = 10
"""More than an epoch of the smallest data."""
ALONE = {
    "trainer.precision": "64-true",
    "trainer.epochs": None,
    "trainer.max_steps": STEPS,
    "trainer.log_every_n_steps": 1,
    "data.shuffle": False,
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.0},
    "lr_scheduler": {"name": "constant"},
}
Loss = Callable[[torch.nn.Module, Any], tuple[torch.Tensor, float]]
"""Sum of the losses of a micro-batch, and its weight."""


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of an example, whose module can be imported."""
    folder: Path = EXAMPLES / request.param
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("mine", None)


def classes(model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, float]:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1])


def numbers(model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, float]:
    return F.mse_loss(model(batch[0]), batch[1], reduction="sum"), len(batch[1])


def sentences(model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, float]:
    count = len(batch["labels"])
    return model(**batch).loss * count, count


def texts(model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, float]:
    count = int((batch["labels"][:, 1:] != -100).sum())
    return model(**batch).loss * count, count


def pixels(model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, float]:
    loss = F.cross_entropy(model(batch[0]), batch[1], ignore_index=255, reduction="sum")
    return loss, int((batch[1] != 255).sum())


def lightning_classes(model: Any, batch: Any) -> tuple[torch.Tensor, float]:
    return classes(model.net, batch)


LOSSES: dict[str, Loss] = {
    "bert_f1": sentences,
    "lightning_module": lightning_classes,
    "gpt2_text": texts,
    "segmentation": pixels,
    "tabular": numbers,
}
"""Those of timm_backbone and gan have loops of their own."""
METRICS = {
    "timm_backbone": "val/accuracy",
    "bert_f1": "val/f1",
    "lightning_module": "val/acc",
    "gpt2_text": "val/loss",
    "segmentation": "val/iou",
    "tabular": "val/r2",
}


def bare_losses(folder: Path, config: Any, loss_of: Loss) -> list[float]:
    """The first losses of a loop without Paceline."""
    module = __import__("mine")
    from paceline.engine.build_task import seed_model

    seed_model(config.seed)
    model = (module.LitNet if hasattr(module, "LitNet") else module.net)().double().train()
    built = config.data.build()[0]
    collate = config.data.sets().collate_fn or torch.utils.data.default_collate
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    micro = config.data.micro_batch_size or config.data.global_batch_size
    losses, start = [], 0
    for _ in range(STEPS):
        optimizer.zero_grad()
        total, weight = 0.0, 0.0
        stop = min(start + config.data.global_batch_size, len(built))
        for first in range(start, stop, micro):
            batch = collate([built[index] for index in range(first, min(first + micro, stop))])
            batch = map_tensors(batch, lambda each: each.double() if each.is_floating_point() else each)
            loss, count = loss_of(model, batch)
            loss.backward()
            total, weight = total + loss.item(), weight + count
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= weight
        optimizer.step()
        losses.append(total / weight)
        start = 0 if stop == len(built) else stop
    return losses


@pytest.mark.parametrize(("example", "loss_of"), LOSSES.items(), indirect=["example"], ids=LOSSES)
def test_the_first_losses_are_those_of_a_bare_loop(example: Path, loss_of: Loss) -> None:
    overrides = {**ALONE, "callbacks": [], "checkpoint": {}}
    config = load_config(example / "experiment.yaml", overrides)
    reporter = fit(config)[2]
    assert reporter.values("train/loss") == pytest.approx(bare_losses(example, config, loss_of), abs=1e-6)


@pytest.mark.parametrize(("example", "metric"), METRICS.items(), indirect=["example"], ids=METRICS)
def test_an_example_trains_as_it_stands(example: Path, metric: str) -> None:
    _, outcome, reporter = fit(load_config(example / "experiment.yaml"))
    assert metric in outcome.metrics
    assert all(torch.isfinite(torch.tensor(value)) for value in outcome.metrics.values())
    assert outcome.metrics["train/loss"] < 10
    if example.name == "gpt2_text":  # every five steps, and after each epoch
        assert [step for step, values in reporter.points if "val/loss" in values] == [5, 10, 12, 15, 20]


@pytest.mark.parametrize("example", ["timm_backbone"], indirect=True)
def test_the_first_losses_of_the_timm_example_are_those_of_a_bare_loop_with_its_optimizer_and_mixup(
    example: Path,
) -> None:
    kept = {"optimizer", "trainer.epochs"}
    overrides = {**{key: value for key, value in ALONE.items() if key not in kept}, "trainer.epochs": None}
    config = load_config(example / "experiment.yaml", overrides)
    assert fit(config)[2].values("train/loss") == pytest.approx(bare_timm_losses(config), abs=1e-6)


def bare_timm_losses(config: Any) -> list[float]:
    import timm.optim

    from paceline.engine.build_task import seed_model
    from paceline.engine.dist_context import DistContext
    from paceline.engine.seeding import StepSeeds

    module = __import__("mine")
    seed_model(config.seed)
    model = module.net().double().train()
    groups: dict[float, list[Any]] = {0.00025: [], 0.0005: [], 0.001: []}
    for name, parameter in model.named_parameters():
        stem = name.partition(".")[0]
        rate = 0.00025 if stem in ("conv1", "bn1", "layer1") else 0.0005 if stem in ("layer2", "layer3") else 0.001
        groups[rate].append(parameter)
    optimizer = timm.optim.create_optimizer_v2(
        [{"params": parameters, "lr": rate} for rate, parameters in groups.items()], opt="adamw", lr=0.001
    )
    images, targets = module.data()[0].tensors
    losses = []
    for step in range(STEPS):
        start = step * 16 % len(images)
        inputs, wanted = images[start : start + 16].double(), targets[start : start + 16]
        StepSeeds(config.seed, DistContext.current()).apply(step, 0)
        partners = torch.randperm(16)
        share = torch.distributions.Beta(0.2, 0.2).sample()
        outputs = model(inputs * share + inputs[partners] * (1 - share))
        loss = share * F.cross_entropy(outputs, wanted) + (1 - share) * F.cross_entropy(outputs, wanted[partners])
        _update(optimizer, loss)
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("example", ["timm_backbone"], indirect=True)
def test_the_timm_example_keeps_its_best_checkpoint_and_stops_when_nothing_improves(
    example: Path, tmp_path: Path
) -> None:
    config = load_config(
        example / "experiment.yaml", {"trainer.epochs": 6, "callbacks.1.min_delta": 10.0, "checkpoint.keep": 1}
    )
    _, outcome, reporter = fit(config, checkpoints=tmp_path)
    assert outcome.epoch == 4  # the first evaluation is the best, and three do not improve
    accuracies = {step: values["val/accuracy"] for step, values in reporter.points if "val/accuracy" in values}
    best = max(accuracies, key=accuracies.__getitem__)
    assert {folder.name for folder in tmp_path.glob("step-*")} == {f"step-{best}", "step-32"}
    assert (tmp_path / f"step-{best}" / "component.callback.ema.safetensors").is_file()


@pytest.mark.parametrize("example", ["gan"], indirect=True)
def test_the_first_losses_of_a_gan_are_those_of_a_bare_loop(example: Path) -> None:
    config = load_config(example / "experiment.yaml", ALONE)
    reporter = fit(config)[2]
    assert reporter.values("train/loss") == pytest.approx(bare_gan_losses(config), abs=1e-6)


def bare_gan_losses(config: Any) -> list[float]:
    from paceline.engine.build_task import seed_model
    from paceline.engine.dist_context import DistContext
    from paceline.engine.seeding import StepSeeds

    module = __import__("mine")
    seed_model(config.seed)
    model = module.net().double()
    maker, judge = model["maker"], model["judge"]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (judge, maker)]
    points, losses = module.data()[0].tensors[0].double(), []
    for step in range(STEPS):
        real = points[step * 64 : step * 64 + 64]
        StepSeeds(config.seed, DistContext.current()).apply(step, 0)
        fake = maker(torch.randn_like(real))
        judge_loss = (F.relu(1 - judge(real)) + F.relu(1 + judge(fake.detach()))).mean()
        _update(optimizers[0], judge_loss)
        maker_loss = -judge(fake).mean()
        _update(optimizers[1], maker_loss)
        losses.append(judge_loss.item() + maker_loss.item())
    return losses


def _update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("example", ["gan"], indirect=True)
def test_a_gan_trains_as_it_stands(example: Path, tmp_path: Path) -> None:
    _, outcome, reporter = fit(load_config(example / "experiment.yaml"), checkpoints=tmp_path)
    assert outcome.epoch == 3
    assert all(torch.isfinite(torch.tensor(reporter.values("train/loss"))))


@pytest.mark.parametrize("name", [*METRICS, "gan"])
def test_an_example_is_short(name: str) -> None:
    assert sum(_lines_of_code(file.read_text()) for file in (EXAMPLES / name).glob("*.py")) <= 25
    assert len((EXAMPLES / name / "experiment.yaml").read_text().splitlines()) <= 18


def _lines_of_code(source: str) -> int:
    """Count the lines, but for blank ones and the docstring of the file."""
    after_docstring = source.splitlines()[ast.parse(source).body[0].end_lineno :]
    return sum(bool(line.strip()) for line in after_docstring)


def test_the_libraries_are_there() -> None:
    libraries = ("timm", "transformers", "segmentation_models_pytorch", "torchmetrics", "lightning", "sklearn")
    for library in libraries:
        assert importlib.util.find_spec(library) is not None
