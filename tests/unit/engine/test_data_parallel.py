"""`parallel.strategy: data_parallel` without a GPU: its arithmetic over replicas on the CPU, and its refusals."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline.cluster.placement import Room
from paceline.cluster.preflight import Resources, check_resources, needs_gpu
from paceline.engine.data_parallel import SummedReplicas, apply_data_parallel
from paceline.errors import EnvironmentFault, UnusableCode
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from support.refusals import refused
from support.toys import CLASSES, FEATURES, PointsTask, fit, net, tensors, toy_config

DEVICES = 3
PARALLEL = {"strategy": "data_parallel"}


class WeightedTask(Task):
    """Its weight is a tensor, and in evaluation it has two metrics."""

    weight_is_samples = False

    def forward(self, batch: Any) -> TaskOutput:
        logits = self.model(batch["inputs"])
        weights = batch["weights"]
        losses = F.cross_entropy(logits, batch["targets"], reduction="none") * weights
        correct = (logits.argmax(dim=1) == batch["targets"]).sum()
        metrics = {} if self.training else {"accuracy": correct, "norm": logits.detach().norm(dim=1).sum()}
        return TaskOutput(losses.sum(), weights.sum(), metrics)


class FakeScatter:
    """Chunks, as on GPUs, that stay on the CPU."""

    @staticmethod
    def apply(devices: Sequence[int], sizes: None, dim: int, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tensor.chunk(len(devices), dim)


class FakeGather:
    """Refuses what the real one refuses, but for the device."""

    @staticmethod
    def apply(device: int, dim: int, *tensors: torch.Tensor) -> torch.Tensor:
        assert all(tensor.dim() for tensor in tensors), "torch warns of scalars"
        return torch.cat(tensors, dim)


def without_copies(tensors: Sequence[torch.Tensor], devices: Sequence[int], detach: bool) -> list[Any]:
    """Each device's copies of tensors: the same values; of parameters no parameters, as on GPUs."""
    plain = [tensor.view_as(tensor) if isinstance(tensor, nn.Parameter) else tensor for tensor in tensors]
    return [plain for _ in devices]


def in_turn(replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any, devices: Any) -> list[Any]:
    """One replica after the other."""
    assert len(replicas) == len(inputs)
    return [replica(*each, **named) for replica, each, named in zip(replicas, inputs, kwargs, strict=True)]


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `SummedReplicas` over several pretended devices; containers and replicas are handled by torch."""
    names = {
        "scatter_gather.Scatter": FakeScatter,
        "scatter_gather.Gather": FakeGather,
        "replicate._broadcast_coalesced_reshape": without_copies,
        "data_parallel.parallel_apply": in_turn,
    }
    for name, fake in names.items():
        module, _, attribute = name.partition(".")
        monkeypatch.setattr(import_module(f"torch.nn.parallel.{module}"), attribute, fake)
    monkeypatch.setattr("paceline.engine.data_parallel._seed_replicas", lambda devices: None)

    def spread(task: Task) -> SummedReplicas:
        model = SummedReplicas(task, list(range(DEVICES)))
        parallel = model.replicas
        parallel.device_ids, parallel.dim = list(range(DEVICES)), 0
        parallel.output_device, parallel.src_device_obj = 0, torch.device("cpu")
        return model

    return spread


def batch(samples: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(samples)
    return {
        "inputs": torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64),
        "targets": torch.randint(0, CLASSES, (samples,), generator=generator),
        "weights": torch.rand(samples, generator=generator, dtype=torch.float64),
    }


@pytest.mark.parametrize("samples", [12, 7, 2, 1])
def test_sums_and_gradients_are_those_of_the_whole_batch(spread: Any, samples: int) -> None:
    task = WeightedTask(net().double())
    whole, split = task(batch(samples)), spread(task)(batch(samples))
    assert split.loss_sum.shape == torch.Size([])
    assert split.metrics == {}
    for got, expected in ((split.loss_sum, whole.loss_sum), (split.weight, whole.weight)):
        assert torch.allclose(torch.as_tensor(got), torch.as_tensor(expected), atol=1e-12, rtol=0)
    gradients = (torch.autograd.grad(output.loss_sum, list(task.parameters())) for output in (split, whole))
    for got, expected in zip(*gradients, strict=True):
        assert torch.allclose(got, expected, atol=1e-12, rtol=0)
    model = spread(task).eval()
    metrics, expected_metrics = model(batch(samples)).metrics, task(batch(samples)).metrics
    assert metrics.keys() == expected_metrics.keys() == {"accuracy", "norm"}
    for name, value in expected_metrics.items():
        assert torch.allclose(metrics[name].double(), value.double(), atol=1e-12, rtol=0), name


def test_training_equals_that_on_one_device(spread: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # of an epoch's micro batches of 8 samples, the last one has 4, over 3 devices
    options: dict[str, Any] = {
        "task": {"name": "classification"},
        "data": {"path": lambda: tensors(20), "global_batch_size": 8},
    }
    plain = fit(toy_config(**options))[2]
    monkeypatch.setattr("paceline.engine.strategy.apply_data_parallel", lambda task, device: spread(task))
    replicated = fit(toy_config(parallel=PARALLEL, **options))[2]
    assert len(plain.values("train/loss")) == 6
    for key in ("train/loss", "val/loss", "val/accuracy"):
        assert replicated.values(key) == pytest.approx(plain.values(key), abs=1e-12)


class OwnBatch:
    """A class that torch cannot look into."""


@pytest.mark.parametrize(
    "samples",
    [
        (torch.zeros(4, 2), ["a", "b", "c", "d"]),
        (torch.zeros(4, 2), 3),
        (torch.zeros(4, 2), torch.tensor(3)),
        (torch.zeros(4, 2), torch.zeros(3)),
        OwnBatch(),
    ],
    ids=["strings", "number", "scalar", "lengths", "class"],
)
def test_a_batch_that_cannot_be_cut_is_refused(samples: Any, golden: Any) -> None:
    """DataParallel would give it to each replica whole, and the sums would be too large."""
    refusal = refused(UnusableCode, SummedReplicas(PointsTask(net()), []), samples)
    assert refusal.code == "batch-not-divisible"
    golden(str(refusal))


# Where there are no GPUs


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1)])
def test_the_engine_refuses_less_than_two_gpus(device: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    refusal = refused(EnvironmentFault, apply_data_parallel, PointsTask(net()), torch.device(device))
    assert (refusal.code, refusal.fields) == ("too-few-gpus", {"available": gpus})


@pytest.mark.parametrize(
    ("scaling", "resources", "fits"),
    [
        ({"num_workers": 0}, Resources.of_machine(8, 1), False),
        ({"num_workers": 0}, Resources.of_machine(8, 2), True),
        ({"num_workers": 1, "gpus_per_worker": 4}, Resources.of_machine(8, 3), False),
        ({"num_workers": 1, "gpus_per_worker": 2, "use_gpu": True}, Resources.of_machine(8, 0), False),
        (
            {"num_workers": 1, "gpus_per_worker": 2},
            Resources((Room(2, 1),) * 4),
            False,
        ),  # GPUs on several nodes do not help
        ({"num_workers": 1, "gpus_per_worker": 2}, Resources((Room(4, 2),) * 2), True),
    ],
)
def test_a_launch_needs_the_gpus_on_one_machine(scaling: dict[str, Any], resources: Resources, fits: bool) -> None:
    config = toy_config(parallel=PARALLEL, scaling=scaling)
    assert needs_gpu(config)
    if fits:
        assert check_resources(config, resources, "this machine")
        return
    assert refused(EnvironmentFault, check_resources, config, resources, "this machine").exit_code == 3
