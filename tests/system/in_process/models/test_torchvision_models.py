"""torchvision's models: the shipped list against torchvision itself, and what becomes of heads and weights."""

from typing import Any, get_args
from urllib.error import URLError

import pytest
import torch
from torch import nn
from torchvision import models

from paceline.errors import ConfigError, EnvironmentFault
from paceline.models import _torchvision
from paceline.models.torchvision import TorchvisionModelConfig
from support.refusals import refused

NAMES = get_args(TorchvisionModelConfig.model_fields["name"].annotation)

# One of each kind of last layer.
FAMILIES = [
    "alexnet",
    "densenet121",
    "googlenet",
    "mobilenet_v3_small",
    "resnet18",
    "squeezenet1_1",
    "swin_t",
    "vit_b_32",
]


def config(name: str, **fields: object) -> TorchvisionModelConfig:
    return TorchvisionModelConfig.model_validate({"name": name, **fields})


def test_the_list_is_torchvisions_own() -> None:
    assert list(NAMES) == models.list_models(module=models)


@pytest.mark.parametrize(("name", "size"), [("googlenet", 64), ("inception_v3", 80)])
def test_training_gives_logits_only(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Their own initialisation draws from a slow truncated normal distribution, which is not what this is about.
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda weight, **_: weight)
    model = config(name, num_classes=5).build().train()
    assert model(torch.randn(2, 3, size, size)).shape == (2, 5)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_replaced_layer_is_the_one_that_gives_the_logits(name: str) -> None:
    with torch.device("meta"):
        model = models.get_model(name, num_classes=11, **({"init_weights": False} if name == "googlenet" else {}))
        model.aux_logits = False
        before = {place: parameter.shape for place, parameter in model.named_parameters()}
        _torchvision.replace_head(model, 7)
        logits = model.eval()(torch.empty(1, 3, 224, 224))
    changed = [place for place, parameter in model.named_parameters() if parameter.shape != before[place]]
    assert logits.shape == (1, 7)
    assert len(changed) == 2


class FakeWeights:
    """Stands for the downloaded weights of a model."""

    url = "https://example.org/weights.pth"
    meta: dict[str, Any] = {"categories": ["a"] * 1000}  # noqa: RUF012


@pytest.fixture
def pretrained(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    built: nn.Module = models.get_model("resnet18")
    monkeypatch.setattr(_torchvision, "_weights", lambda name, weights_name: FakeWeights())
    monkeypatch.setattr(models, "get_model", lambda name, weights: built)
    return built


def test_pretrained_weights_stay_but_for_the_head(pretrained: nn.Module) -> None:
    kept = {name: value.clone() for name, value in pretrained.state_dict().items() if not name.startswith("fc.")}
    model = config("resnet18", num_classes=7, weights="DEFAULT").build()
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    assert all(model.state_dict()[name].shape == value.shape for name, value in kept.items())
    assert model.state_dict()["conv1.weight"].equal(kept["conv1.weight"])


def test_pretrained_head_stays_when_the_classes_agree(pretrained: nn.Module) -> None:
    head = pretrained.get_submodule("fc")
    assert config("resnet18", num_classes=1000, weights="DEFAULT").build().get_submodule("fc") is head


def test_weights_that_are_not_to_be_had_are_an_environment_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(models, "get_model", offline)
    refusal = refused(EnvironmentFault, config("resnet18", weights="DEFAULT").build)
    assert refusal.code == "weights-unavailable"
    assert str(refusal.fields["url"]).endswith(".pth")


def test_weights_of_an_unknown_name_are_a_config_error(golden: Any) -> None:
    refusal = refused(ConfigError, config("resnet18", weights="IMAGENET").build)
    assert [(each.code, each.key) for each in refusal.problems] == [("unknown-value", "model.weights")]
    golden(str(refusal))
