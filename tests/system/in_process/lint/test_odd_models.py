"""Lint on models that cannot be run without values, and rules that need files or a GPU."""

import copy
import functools
import gc
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from paceline import Task
from paceline.config.experiment import validate
from paceline.errors import EnvironmentFault, UnusableCode
from paceline.linting.examining import lint
from paceline.tasks.base import TaskOutput
from support.golden import Golden
from support.lint import full_batches, plants, task_plants
from support.logged import Logged


def crash(*_: Any) -> Any:
    raise ZeroDivisionError("the user's own mistake")


class Chosen(plants.Net):
    """Takes the samples that a mask names: how many there are follows from their values."""

    def forward(self, images: Tensor) -> Tensor:
        chosen = images[images.mean((1, 2, 3)) > -100]
        logging.getLogger("own").debug(f"{chosen}")
        return super().forward(chosen)


@pytest.mark.parametrize(
    ("severity", "odd"),
    [
        ("error", {"model": plants.net(crash, extra=lambda: [nn.Linear(4, 4)])}),
        ("warning", {"model": plants.net(extra=lambda: [nn.Linear(4, 4)]), "data": crash}),
    ],
    ids=["forward-raises", "data-raise"],
)
def test_what_needs_no_run_is_found_without_one(severity: str, odd: dict[str, Any], golden: Golden) -> None:
    found = {finding.rule: finding for finding in lint(plants.config(**odd))}
    assert found.keys() == {"not-registered", "could-not-be-run"}
    assert found["could-not-be-run"].severity == severity
    golden(found["could-not-be-run"].reason)


class NeedsGpu(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        raise RuntimeError("no CUDA device is available")


class NeedsRanks(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.flatten(1)) * torch.distributed.get_world_size()


class NeedsTwo(nn.Linear):
    """Fails otherwise for a whole batch than for a small one."""

    def forward(self, inputs: Tensor) -> Tensor:
        raise ValueError("too few" if len(inputs) < 8 else "a chance of this batch")


class OfWholeBatches(nn.Linear):
    """Takes batches of 16 samples alone, as a state may that was made for them."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.reshape(16, plants.CHANNELS * 64))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("model", [NeedsGpu, NeedsRanks, NeedsTwo, OfWholeBatches])
def test_what_may_train_elsewhere_or_with_whole_batches_is_a_warning(model: Any, precision: str) -> None:
    config = plants.config(lambda: model(plants.CHANNELS * 64, plants.CLASSES), trainer__precision=precision)
    (found,) = [each for each in lint(config) if each.rule == "could-not-be-run"]
    assert (found.rule, found.severity) == ("could-not-be-run", "warning")


class Labelled(Dataset[tuple[Tensor, str]]):
    """Images with the name of their class."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        return torch.zeros(plants.CHANNELS, 8, 8), "cat"


class Uneven(Dataset[tuple[Tensor, int]]):
    """Images of two sizes in turn."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(plants.CHANNELS, 8, 8 + index % 2), 0


@pytest.mark.parametrize(
    ("data", "code", "place"),
    [
        (Labelled, "not-two-sets", "data"),
        (lambda: (Labelled(), Labelled()), "wrong-target", "task"),
        (lambda: (Uneven(), Uneven()), "could-not-be-run", "data"),
    ],
    ids=["dataset-class", "targets-are-text", "samples-of-two-sizes"],
)
def test_an_error_that_ends_training_is_an_error_of_lint(data: Any, code: str, place: str, golden: Golden) -> None:
    found = lint(plants.config(data=data))
    assert [(finding.rule, finding.place, finding.severity) for finding in found] == [(code, place, "error")]
    golden(f"{found[0].reason} ({found[0].hint})")


@pytest.mark.parametrize("ignored", [(None, None, 255), ()], ids=["by-position", "not-at-all"])
def test_targets_that_do_not_count_are_in_no_range(ignored: tuple[Any, ...]) -> None:
    def loss(task: Any, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, *ignored, reduction="sum")

    def data() -> Any:
        both = TensorDataset(torch.randn(64, plants.CHANNELS, 8, 8), torch.tensor([0, 1, 2, 255] * 16))
        return both, both

    found = lint(plants.config(data=data, task=task_plants.task_with(loss)))
    assert [finding.rule for finding in found] == ([] if ignored else ["targets-out-of-range"])


def test_torch_logs_no_failure_on_fake_tensors(logged: Logged) -> None:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(logged)
    try:
        found = lint(plants.config(lambda: nn.Sequential(nn.Flatten(), nn.Linear(100, 4))))
    finally:
        logger.removeHandler(logged)
    assert [finding.rule for finding in found] == ["could-not-be-run"]
    assert logged.text == ""
    assert not logger.disabled


def missing_file() -> Any:
    raise EnvironmentFault("no folder /data/images", "no-data")


def test_missing_files_are_a_warning() -> None:
    found = lint(plants.config(data=missing_file))
    assert [(finding.rule, finding.place, finding.severity) for finding in found] == [
        ("could-not-be-run", "data", "warning")
    ]


def test_a_model_that_cannot_be_built_raises_the_users_error() -> None:
    with pytest.raises(UnusableCode, match="ZeroDivisionError: the user's own mistake"):
        lint(plants.config(crash))


def test_a_small_model_is_run_for_real_where_values_decide_on_shapes() -> None:
    assert [finding.rule for finding in lint(plants.config(Chosen))] == ["tensor-is-printed"]


def test_a_rule_that_raises_is_dropped(monkeypatch: pytest.MonkeyPatch, logged: Logged) -> None:
    from paceline.linting import examining

    def broken_rule(subject: Any) -> Any:
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(examining, "RULES", (broken_rule, *examining.RULES))
    with logged.at_level(logging.DEBUG, "paceline.linting"):
        assert len(lint(plants.config(plants.conv_norm(True)))) == 1
    assert "broken-rule" in logged.text


def test_a_model_that_the_user_holds_stays_as_it_is() -> None:
    held = plants.conv_norm(True)().eval()
    before = {name: value.clone() for name, value in held.state_dict().items()}
    state = torch.get_rng_state()
    lint(plants.config(lambda: held))
    assert not held.training
    assert all(type(each) in (Tensor, nn.Parameter) for each in held.state_dict(keep_vars=True).values())
    assert all(torch.equal(value, before[name]) for name, value in held.state_dict().items())
    assert all(parameter.grad is None for parameter in held.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert not held[0]._forward_hooks
    assert not held[0]._forward_pre_hooks


def test_models_that_copy_their_layers_are_built_of_fake_tensors(recwarn: pytest.WarningsRecorder) -> None:
    """`deepcopy` of a fake tensor corrupts Python's memory unless it is told how."""

    class Encoder(plants.Net):
        def __init__(self) -> None:
            layer = nn.Linear(plants.WIDTH, plants.WIDTH)
            layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(3))  # as nn.TransformerEncoder does
            super().__init__(plants.layer_by_layer, extra=layers)

    assert lint(plants.config(Encoder)) == []
    assert not list(recwarn), "torch warns where memory is copied that is not there"


@pytest.mark.parametrize("is_frozen", [False, True])
def test_nothing_stays_in_caches_that_training_would_take_for_values(
    is_frozen: bool, real_unfreeze: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not where a tune-up in the same process has taken what was there out of garbage collection."""

    @functools.lru_cache
    def slope(width: int) -> Tensor:
        return torch.linspace(0, 1, width)

    if is_frozen:
        gc.freeze()
        monkeypatch.setattr(gc, "unfreeze", real_unfreeze)

    class Cached(plants.Net):
        def __init__(self) -> None:
            super().__init__(lambda net, x: x * slope(plants.WIDTH).to(x.device))
            slope(8)

    assert lint(plants.config(Cached)) == []
    assert slope.cache_info().currsize == 0
    assert slope(8).tolist()[-1] == 1.0


def test_a_models_numbers_are_read_on_the_host_without_a_word() -> None:
    """Whether a tensor is on the device is told by what it was made from."""

    class Mixed(Task):
        def __init__(self, model: nn.Module) -> None:
            super().__init__(model)
            self.share = torch.distributions.Beta(0.2, 0.2)

        def forward(self, batch: Any) -> TaskOutput:
            images, targets = batch
            share = self.share.sample().item()
            order = torch.randperm(len(images), device=images.device)
            logits = self.model(share * images + (1 - share) * images[order]).to(images.device, torch.float64)
            losses = [F.cross_entropy(logits, each, reduction="sum") for each in (targets, targets[order])]
            return TaskOutput(share * losses[0] + (1 - share) * losses[1], len(images))

    assert lint(plants.config(task=Mixed)) == []


def test_scripted_models_are_run() -> None:
    def build() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)))

    assert lint(plants.config(build)) == []


def test_image_files_that_the_training_process_loads(tmp_path: Path) -> None:
    for place in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (tmp_path / place).mkdir(parents=True)
        Image.new("RGB", (64, 64)).save(tmp_path / place / "1.png")
    data = {"name": "image_folder", "root": str(tmp_path), "global_batch_size": 2}
    tree = {"name": "photos", "model": {"path": plants.Net}, "data": data}
    rule = "images-loaded-in-training-process"
    assert rule in {finding.rule for finding in lint(validate(tree))}
    assert rule not in {finding.rule for finding in lint(validate(tree | {"data": {**data, "num_workers": 1}}))}


@pytest.mark.parametrize(("capability", "found"), [((8, 0), 1), ((7, 5), 0)])
def test_float32_on_a_gpu_that_has_better(
    capability: tuple[int, int], found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = plants.config()
    from paceline.linting.rules import loops

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    rule = loops.float32_where_bf16_is_fast
    for changed, count in (({}, found), ({"trainer.precision": "bf16-mixed"}, 0)):
        subject: Any = type("S", (), {"config": config.with_overrides(changed), "may_use_gpu": True})
        assert len(list(rule(subject))) == count


def test_a_task_that_steps_its_optimizers_itself_is_evaluated_alone() -> None:
    class Frozen(Task):
        automatic_optimization = False

        def forward(self, batch: Any) -> TaskOutput:
            return TaskOutput(self.model(batch[0]).detach().sum(), len(batch[0]))

    assert lint(plants.config(task=Frozen)) == []


@pytest.mark.parametrize(("divisor", "most"), [(8, 1000), (16, 16)])
def test_batches_of_the_configs_size_are_tried_where_small_ones_fail(divisor: int, most: int) -> None:
    found = lint(plants.config(model=unused_layer, data=full_batches.data(divisor, most)))
    assert [finding.rule for finding in found] == ["never-used"]


def test_a_collation_that_needs_a_gpu_is_a_warning() -> None:
    def collate(samples: Any) -> Any:
        raise RuntimeError("No CUDA GPUs are available")

    def data() -> Any:
        both = TensorDataset(torch.randn(64, plants.CHANNELS, 8, 8), torch.arange(64) % plants.CLASSES)
        return {"train": both, "validation": both, "collate_fn": collate}

    (found,) = lint(plants.config(data=data))
    assert (found.rule, found.place, found.severity) == ("could-not-be-run", "data", "warning")


def unused_layer() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = full_batches.net(), full_batches.net()

        def forward(self, features: Tensor) -> Tensor:
            return self.used(features)  # type: ignore[no-any-return]

    return Net()
