"""`parallel.strategy: data_parallel` on two real GPUs; run with -m gpu."""

from typing import Any

import pytest
import torch
from torch import nn

from paceline.data._tensors import TensorData
from paceline.engine.data_parallel import apply_data_parallel
from paceline.engine.dist_context import DistContext
from paceline.engine.state import weights_sha256
from paceline.tasks._classification import Classification
from paceline.tasks.base import TaskOutput
from support.toys import CLASSES, FEATURES, fit, net, net_with_dropout_and_norm, toy_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="data_parallel needs at least 2 CUDA devices"),
]


def points() -> tuple[TensorData, TensorData]:
    """20 samples: of an epoch's batches of 8, the last one has 4."""
    generator = torch.Generator().manual_seed(0)
    data = TensorData(torch.randn(20, FEATURES, generator=generator), torch.arange(20) % CLASSES)
    return data, data


def trained(strategy: str, **overrides: Any) -> Any:
    config = toy_config(
        parallel={"strategy": strategy},
        task={"name": "classification"},
        data={"path": points, "global_batch_size": 8},
    )
    return fit(config.with_overrides(overrides), DistContext.current("cuda"))


def test_training_equals_that_on_one_gpu() -> None:
    plain, replicated = (trained(strategy)[2] for strategy in ("ddp", "data_parallel"))
    for key in ("train/loss", "val/loss"):
        assert replicated.values(key) == pytest.approx(plain.values(key), abs=1e-10)


def test_dropout_is_the_same_in_every_run() -> None:
    outcomes = [trained("data_parallel", **{"model.path": net_with_dropout_and_norm})[1] for _ in range(2)]
    assert outcomes[0].weights_sha256 == outcomes[1].weights_sha256


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)])
def test_each_replica_computes_in_the_format_of_the_run(precision: str, dtype: torch.dtype) -> None:
    formats: list[torch.dtype] = []

    class Watching(Classification):
        def forward(self, batch: Any) -> TaskOutput:
            formats.append(self.model(batch[0]).dtype)
            return super().forward(batch)

    task = Watching(net()).cuda()
    model = apply_data_parallel(task, torch.device("cuda"))
    features, targets = torch.randn(6, FEATURES, device="cuda"), torch.zeros(6, dtype=torch.int64, device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        output: TaskOutput = model((features, targets))
    output.loss_sum.backward()
    assert formats == [dtype] * min(torch.cuda.device_count(), 6)
    assert all(parameter.grad is not None for parameter in task.parameters())
    trained("data_parallel", **{"trainer.precision": precision})


def test_a_batch_smaller_than_the_number_of_gpus() -> None:
    task = Classification(net()).cuda()
    model: nn.Module = apply_data_parallel(task, torch.device("cuda"))
    before = weights_sha256(task.state_dict())
    output: TaskOutput = model(
        (torch.randn(1, FEATURES, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda"))
    )
    assert int(output.weight) == 1
    assert weights_sha256(task.state_dict()) == before
