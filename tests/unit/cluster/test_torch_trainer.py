"""The callbacks of Ray Train that our trainer leaves out."""

import pytest
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

from paceline.cluster.torch_trainer import ONLY_FOR_CLUSTERS, UNUSED, LeanTorchTrainer


def callbacks(trainer: TorchTrainer) -> list[str]:
    classes = map(type, trainer._create_default_callbacks())
    return [f"{each.__module__}.{each.__qualname__}" for each in classes]


@pytest.mark.parametrize(("private", "left_out"), [(True, {UNUSED, ONLY_FOR_CLUSTERS}), (False, {UNUSED})])
def test_only_what_is_not_used_is_left_out(private: bool, left_out: set[str]) -> None:
    scaling = ScalingConfig(num_workers=1)
    stock, lean = (kind(lambda: None, scaling_config=scaling) for kind in (TorchTrainer, LeanTorchTrainer))
    lean.private = private
    assert left_out < set(callbacks(stock)), "Ray has other names for them now"
    assert callbacks(lean) == [name for name in callbacks(stock) if name not in left_out]
