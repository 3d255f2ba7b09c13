"""The callbacks of Ray Train that our trainer leaves out."""

import pytest
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

from paceline.cluster.lean import ONLY_FOR_CLUSTERS, UNUSED, LeanTorchTrainer, start_coordinator


def callbacks(trainer: TorchTrainer) -> list[str]:
    classes = map(type, trainer._create_default_callbacks())
    return [f"{each.__module__}.{each.__qualname__}" for each in classes]


@pytest.mark.parametrize(("private", "left_out"), [(True, {UNUSED, ONLY_FOR_CLUSTERS}), (False, {UNUSED})])
def test_only_what_is_not_used_is_left_out(private: bool, left_out: set[str]) -> None:
    def function() -> None:
        raise AssertionError("is not called")

    scaling = ScalingConfig(num_workers=1)
    stock, lean = TorchTrainer(function, scaling_config=scaling), LeanTorchTrainer(function, scaling_config=scaling)
    lean.private = private
    assert left_out < set(callbacks(stock)), "Ray has other names for them now"
    assert callbacks(lean) == [name for name in callbacks(stock) if name not in left_out]


def test_what_starts_the_coordinator_is_where_we_look_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator

    started = []
    monkeypatch.setattr(
        default_autoscaling_coordinator, "get_or_create_autoscaling_coordinator", lambda: started.append(1)
    )
    start_coordinator()
    assert started
