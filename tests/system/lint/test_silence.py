"""Nothing is found where nothing is wrong: large models, as installed and as if the user had written them."""

from pathlib import Path
from typing import Any

import pytest

from paceline.config import load_config
from paceline.config.experiment import validate
from paceline.linting.examining import lint

CONFIGS = Path(__file__).parents[3] / "configs"
PHOTOS = {"name": "synthetic", "shape": [3, 224, 224], "num_classes": 8, "num_samples": 10**6, "global_batch_size": 64}
GPT = {
    "name": "gpt",
    "vocab_size": 50304,
    "context_length": 256,
    "num_layers": 12,
    "num_heads": 12,
    "embedding_dim": 768,
}


def of_model(name: str, **model: Any) -> Any:
    """A config for photographs, of which there are too many to be made."""
    return validate(
        {"name": "big", "model": {"name": name, **model}, "data": PHOTOS, "trainer": {"precision": "bf16-mixed"}}
    )


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("resnet18", True),
        *(pytest.param(name, own, marks=SLOW) for name in ("resnet50", "vit_b_16") for own in (True, False)),
    ],
)
def test_torchvisions_models_are_silent(name: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if own:
        everything_is_own(monkeypatch)
    assert lint(of_model(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("dropout", "own"), [(0.1, True), (0.1, False), (0.0, True), (0.0, False)])
def test_gpt_is_silent(own: bool, dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if own:
        everything_is_own(monkeypatch)
    config = validate(
        {
            "name": "gpt",
            "task": {"name": "language_modeling"},
            "model": {**GPT, "dropout": dropout},
            "data": {"name": "text_file", "context_length": 256, "global_batch_size": 32},
            "optimizer": {"name": "adamw", "lr": 0.001},
            "trainer": {"precision": "bf16-mixed"},
        }
    )
    assert lint(config) == []


def everything_is_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at installed code as if the user had written it, but for torch's."""
    from paceline.linting import own_code

    monkeypatch.setattr(own_code, "is_own", lambda file: "/torch/" not in file and not file.startswith("<"))


def test_installed_code_is_seen_when_it_counts_as_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above would be silent on anything if it were not."""
    from paceline.linting.examining import examine

    config = validate({"name": "big", "model": {"name": "resnet18"}, "data": PHOTOS})
    trace = examine(config).trace
    assert trace is not None
    assert not [line for line in trace.training.lines if "torchvision" in line.file]
    everything_is_own(monkeypatch)
    trace = examine(config).trace
    assert trace is not None
    assert [line for line in trace.training.lines if "torchvision" in line.file]


@pytest.mark.parametrize("file", ["mnist_cnn.yaml", "gpt_tiny.yaml", "mnist_batch_lr.yaml", "mnist_pareto.yaml"])
def test_shipped_configs_are_silent(file: str) -> None:
    assert lint(load_config(CONFIGS / file)) == []
