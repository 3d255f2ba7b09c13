"""Each technique of the training step on a real GPU: it is in effect, and training stays what it was; run with -m gpu.

Where results must be equal, they are in float64: in float32, cuDNN's choice of an algorithm would show.
"""

import gc
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.data._tensors import TensorData
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.engine.trainer import Trainer
from support.toys import CLASSES, FEATURES, fit, points, toy_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
DEVICE = "cuda"
SAMPLES, BATCH = 256, 16
MIB = 2**20


class Net(nn.Module):
    """A small convolutional network that notes how each convolution was computed."""

    benchmark_flags: ClassVar[list[bool]] = []

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.conv1(images)).relu()
        return self.head(self.conv2(features).relu().mean(dim=(2, 3)))


class Watched(Net):
    """Notes cuDNN's setting at each forward pass."""

    def forward(self, images: Tensor) -> Tensor:
        self.benchmark_flags.append(torch.backends.cudnn.benchmark)
        return super().forward(images)


def images() -> tuple[TensorData, TensorData]:
    generator = torch.Generator().manual_seed(0)
    data = TensorData(torch.randn(SAMPLES, 3, 16, 16, generator=generator), torch.arange(SAMPLES) % CLASSES)
    return data, TensorData(*(tensor[:BATCH] for tensor in data.tensors))


def config(**changes: Any) -> Any:
    """12 steps in float64."""
    common = {
        "task": {"name": "classification"},
        "model": {"path": Net},
        "data": {"path": images, "global_batch_size": BATCH},
        "trainer__max_steps": 12,
    }
    return toy_config(**{**common, **changes})


def trained(**changes: Any) -> tuple[Trainer, list[float]]:
    """The trainer after training without a warning, and the loss of each step."""
    trainer, _, reporter = fit(config(**changes), DistContext.current(DEVICE))
    assert [details["message"] for kind, details in reporter.events if kind == "warning"] == []
    return trainer, reporter.values("train/loss")


@pytest.fixture(autouse=True)
def _settings_of_the_process() -> Iterator[None]:
    precision, benchmark = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    tf32 = torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = benchmark, tf32


# Number formats


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_short_formats_train(precision: str) -> None:
    class Noting(Net):
        formats: ClassVar[set[torch.dtype]] = set()

        def forward(self, images: Tensor) -> Tensor:
            logits = super().forward(images)
            self.formats.add(logits.dtype)
            return logits

    trainer, losses = trained(model__path=Noting, trainer__precision=precision)
    assert Noting.formats == {torch.bfloat16 if precision == "bf16-mixed" else torch.float16}
    assert {parameter.dtype for parameter in trainer.step.parameters} == {torch.float32}
    assert len(losses) == 12
    assert all(map(isfinite, losses))


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_overflow_in_fp16_are_left_out_and_counted(fused: bool) -> None:
    reporter = MemoryReporter()
    settings = config(trainer__precision="16-mixed", optimizer__fused=fused)
    trainer = build_trainer(settings, DistContext.current(DEVICE), reporter)
    # at this scale the gradient of the logits is beyond fp16's 65,504; each step that is left out halves it
    trainer.state.precision._scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**24)
    updated = updates_of(trainer)
    trainer.fit()
    assert not updated[0]
    assert updated[-1]
    assert reporter.values("skipped_steps") == [updated[: step + 1].count(False) for step in range(len(updated))]
    assert all(map(isfinite, reporter.values("train/loss")))


@pytest.mark.parametrize("name", ["lars", "lamb", "nvlamb", "novograd", "muon", "schedule_free_adamw"])
@pytest.mark.parametrize("limit", [None, 1.0])
def test_steps_in_fp16_are_skipped_without_waiting_for_the_device(name: str, limit: float | None) -> None:
    settings = config(trainer__precision="16-mixed", optimizer={"name": name}, trainer__max_grad_norm=limit)
    trainer = build_trainer(settings, DistContext.current(DEVICE), MemoryReporter())
    trainer.state.precision._scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**24)
    step = trainer.state.precision.step

    def without_waiting(*arguments: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return step(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    trainer.state.precision.step = without_waiting  # type: ignore[method-assign]
    updated = updates_of(trainer)
    trainer.fit()
    assert not updated[0]
    assert updated[-1]
    assert all(torch.isfinite(parameter).all() for parameter in trainer.step.parameters)


def updates_of(trainer: Trainer) -> list[bool]:
    """Whether each step changed the weights."""
    updated: list[bool] = []
    step = trainer.state.precision.step

    def noting(*arguments: Any) -> Any:
        before = [parameter.detach().clone() for parameter in trainer.step.parameters]
        left_out = step(*arguments)
        updated.append(any(not torch.equal(*pair) for pair in zip(trainer.step.parameters, before, strict=True)))
        return left_out

    trainer.state.precision.step = noting  # type: ignore[method-assign]
    return updated


def product(left: Tensor, right: Tensor) -> Tensor:
    return left @ right


def convolution(left: Tensor, right: Tensor) -> Tensor:
    return F.conv2d(left.view(1, 512, 32, 16), right.view(512, 512, 1, 1))


@pytest.mark.parametrize("operation", [product, convolution])
def test_tf32_is_used_when_it_is_asked_for_and_only_then(operation: Callable[[Tensor, Tensor], Tensor]) -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no TF32")
    errors = {}
    for precision in ("highest", "high", "highest"):
        allowed = {"trainer__float32_matmul_precision": precision, "trainer__cudnn_allow_tf32": precision == "high"}
        trained(**allowed, trainer__precision="32-true", trainer__max_steps=1)
        left, right = (torch.randn(512, 512, generator=torch.Generator().manual_seed(i)).to(DEVICE) for i in (0, 1))
        exact = operation(left.double(), right.double())
        errors[precision] = float((operation(left, right) - exact).norm() / exact.norm())
    assert errors["highest"] < 1e-5
    assert errors["high"] > 1e-4


# How it is computed


def test_channels_last_changes_the_layout_alone() -> None:
    _, plain = trained()
    trainer, losses = trained(trainer__memory_format="channels_last")
    weight = trainer.state.task.model.get_parameter("conv2.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert losses == pytest.approx(plain, abs=1e-9)


def test_cudnn_is_told_to_benchmark_before_the_first_convolution() -> None:
    for setting in (True, False):
        Watched.benchmark_flags.clear()
        trained(model__path=Watched, trainer__cudnn_benchmark=setting, trainer__max_steps=2)
        assert set(Watched.benchmark_flags) == {setting}


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
    ],
    ids=lambda optimizer: str(optimizer["name"]),
)
def test_fused_optimizers_compute_the_same(optimizer: dict[str, Any]) -> None:
    _, plain = trained(optimizer={**optimizer, "fused": False})
    trainer, losses = trained(optimizer={**optimizer, "fused": True})
    assert trainer.state.optimizer.defaults["fused"]
    assert losses == pytest.approx(plain, abs=1e-9)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_training_is_the_same(mode: str) -> None:
    """With CUDA graphs too, which write over the gradients of the micro batch before."""
    common = {"trainer__gradient_accumulation_steps": 2, "trainer__max_steps": 5}
    plain_trainer, plain = trained(**common)
    trainer, losses = trained(**common, trainer__compile=mode)
    assert losses == pytest.approx(plain, abs=1e-7)
    for mine, theirs in zip(trainer.step.parameters, plain_trainer.step.parameters, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-7, rtol=0)


def test_activation_checkpointing_takes_less_memory() -> None:
    peaks = {mode: peak_of_resnet18(mode) for mode in ("none", "selective", "full")}
    # on CPU, 305, 338 and 367 MiB; what comes before the first block is kept in any case
    assert peaks["full"] + 10 * MIB < peaks["selective"]
    assert peaks["selective"] + 10 * MIB < peaks["none"]


def peak_of_resnet18(activation_checkpointing: str) -> int:
    """Bytes beyond those that are taken already."""
    settings = config(
        model={"name": "resnet18", "num_classes": 10},
        data={"name": "synthetic", "shape": [3, 96, 96], "num_samples": 128, "global_batch_size": 64},
        trainer__precision="32-true",
        trainer__max_steps=2,
        trainer__activation_checkpointing=activation_checkpointing,
    )
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    fit(settings, DistContext.current(DEVICE))
    return torch.cuda.max_memory_allocated() - before


# What a step waits for


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data__cache": "device"},
        {"data__num_workers": 1},
        {"trainer__precision": "bf16-mixed", "trainer__memory_format": "channels_last"},
        {"trainer__precision": "16-mixed", "trainer__max_grad_norm": 1.0},
        {"trainer__gradient_accumulation_steps": 2, "trainer__zero_grad": "zero"},
        {"model": {"name": "resnet18", "num_classes": CLASSES}, "trainer__activation_checkpointing": "full"},
        {"optimizer": {"name": "adamw", "lr": 0.01}},
        {"optimizer": {"name": "lars", "lr": 0.01}},
        {"optimizer": {"name": "lamb", "lr": 0.01}},
        {"optimizer": {"name": "nvlamb", "lr": 0.01}},
        {"optimizer": {"name": "novograd", "lr": 0.01}},
    ],
    ids=lambda changes: " ".join(str(value) for value in changes.values()) or "plain",
)
def test_no_step_between_two_log_points_waits_for_the_device(changes: dict[str, Any]) -> None:
    settings = config(**{"trainer__precision": "32-true", "trainer__log_every_n_steps": 1000, **changes})
    trainer = build_trainer(
        settings.with_overrides({"trainer.max_steps": 1000}), DistContext.current(DEVICE), MemoryReporter()
    )
    trainer.state.task.train()
    batches = trainer.data.loader.load(0, trainer.data.order.micro_batches(0, 0))
    take_steps(trainer, batches, 4)  # the first ones put constants on the device, and let cuDNN choose
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        take_steps(trainer, batches, 10)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        trainer.data.loader.close()


def take_steps(trainer: Trainer, batches: Any, count: int) -> None:
    for _ in range(count):
        trainer.state.position.advance(trainer.step(batches, trainer.state.position.step).samples, epoch_is_over=False)
        assert not trainer.after_step()


# The largest batch


class Hungry(nn.Module):
    """Keeps some 16 MiB of each sample for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(features)
        wide = logits.sum(dim=1, keepdim=True) * torch.ones(MIB, dtype=logits.dtype, device=logits.device)
        return logits + wide.tanh().sigmoid().mean(dim=1, keepdim=True)


def test_the_largest_micro_batch_within_a_share_of_the_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    share = (torch.cuda.memory_reserved() + 1024 * MIB) / total
    settings = toy_config(
        task={"name": "classification"},
        model__path=Hungry,
        data__path=labelled_points,
        data__global_batch_size=96,
        data__micro_batch_size="max",
    )
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        trainer, outcome, _ = fit(settings, DistContext.current(DEVICE))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert 4 <= trainer.data.order.micro_batch_size <= 48
    assert outcome.step == 2


def labelled_points() -> tuple[TensorData, TensorData]:
    """The toy points without their ids."""
    return tuple(  # type: ignore[return-value]
        TensorData(*(torch.stack([torch.as_tensor(sample[i]) for sample in part]) for i in (0, 1)))
        for part in ([each[i] for i in range(len(each))] for each in points(96, 8))
    )
