"""Cross-entropy and accuracy, as sums over a micro batch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline import Task
from paceline.errors import UnusableCode
from paceline.tasks.classification import ClassificationConfig
from paceline.tasks.imported import ImportedTaskConfig
from support.refusals import refused

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 3.0], [0.5, 0.4, 0.3], [1.0, 2.0, 0.0]], dtype=torch.float64)

TARGETS = torch.tensor([0, 1, 0, 1])


def build(label_smoothing: float = 0.0) -> Task:
    return ClassificationConfig(name="classification", label_smoothing=label_smoothing).build(nn.Identity())


def test_the_loss_is_a_sum_and_the_weight_the_number_of_samples() -> None:
    output = build()((LOGITS, TARGETS))
    picked = LOGITS.softmax(1)[torch.arange(4), TARGETS]
    torch.testing.assert_close(output.loss_sum, -picked.log().sum())
    assert output.weight == 4


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_label_smoothing_spreads_the_target_over_all_classes(smoothing: float) -> None:
    wanted = (1 - smoothing) * F.one_hot(TARGETS, 3) + smoothing / 3
    expected = -(wanted * LOGITS.log_softmax(1)).sum()
    for task in (build(smoothing).train(), build(smoothing).eval()):
        torch.testing.assert_close(task((LOGITS, TARGETS)).loss_sum, expected)


def test_targets_may_be_class_probabilities() -> None:
    """As Mixup gives them: accuracy is of the largest."""
    soft = 0.7 * F.one_hot(TARGETS, 3).double() + 0.1
    expected = -(soft * LOGITS.log_softmax(1)).sum()
    for task in (build().train(), build().eval()):
        torch.testing.assert_close(task((LOGITS, soft)).loss_sum, expected)
    assert build().eval()((LOGITS, soft)).metrics["accuracy"] == 3


def test_evaluation_gives_predictions_and_targets() -> None:
    for targets in (TARGETS, F.one_hot(TARGETS, 3).float()):
        output = build().eval()((LOGITS, targets))
        assert output.metrics["accuracy"] == 3
        assert output.predictions.tolist() == [0, 2, 0, 1]
        assert output.targets.tolist() == TARGETS.tolist()


class Distance(Task):
    """A user's own task."""

    def __init__(self, model: nn.Module, power: int) -> None:
        super().__init__(model)
        self.power = power


def test_a_task_of_the_users_own() -> None:
    model = nn.Identity()
    task = ImportedTaskConfig(path=Distance, args={"power": 3}).build(model)
    assert isinstance(task, Distance)
    assert (task.model, task.power) == (model, 3)


def test_another_object_than_a_task_is_refused() -> None:
    assert refused(UnusableCode, ImportedTaskConfig(path=lambda model: model).build, nn.Identity()).code == "not-a-task"
